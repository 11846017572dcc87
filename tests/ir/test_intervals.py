"""Intervals contain every value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.ir.evaluate import evaluate
from attngen.ir.interval import Interval, outward
from attngen.ir.intervals import Ranges
from attngen.ir.make import binary, call, cast, f32, i32, select
from attngen.ir.nodes import Expr, Index, Load, Scalar, Var, Variant
from attngen.ir.numbers import NUMBERS, NUMBERS_F32, round_f32
from attngen.ir.types import BOOL, F32, I32, I64, VEC
from tests.ir import strategies

VARIANT = Variant("ranges", None, strategies.SCALARS, strategies.TENSORS)


@settings(max_examples=300, deadline=None)
@given(st.data(), strategies.worlds(), st.sampled_from([F32, BOOL, I32, I64, VEC]))
def test_intervals_contain_the_value(data: Any, world: strategies.World, type: Any) -> None:
    stage = "query" if type.vec else "logits"
    expr = data.draw(strategies.expressions(type, stage))
    interval = Ranges(VARIANT).of(expr)
    for ops in (NUMBERS, NUMBERS_F32):
        value: Any = evaluate(expr, world.environment(), ops)
        for lane in value if isinstance(value, tuple) else (value,):
            assert lane in interval


@given(st.floats(allow_nan=False))
def test_outward_encloses_tightly(x: float) -> None:
    interval = outward(x, x)
    assert interval.lo <= x <= interval.hi
    assert round_f32(x) in (interval.lo, interval.hi)
    assert round_f32(interval.lo) == interval.lo and round_f32(interval.hi) == interval.hi
    if math.isfinite(interval.lo) and math.isfinite(interval.hi):
        assert interval.hi - interval.lo <= max(abs(x) * 2.0**-23, 2.0**-149) * 1.001


S = Var("s", F32)


@pytest.mark.parametrize(
    ("expr", "lo", "hi"),
    [
        (binary("*", f32(50.0), call("tanh", binary("/", S, f32(50.0)))), -50.001, 50.001),
        (call("clamp", S, f32(-3.0), f32(4.0)), -3.0, 4.0),
        (call("sigmoid", S), 0.0, 1.00001),
        (Scalar("u", F32), 0.5, 4.0),
        (binary("%", Index("kv", I32), i32(7)), 0, 6),
        (Load("doc", (i32(0), i32(0)), I32), 0, 3),
        (select(binary("<", Index("kv", I32), i32(0)), i32(9), i32(1)), 1, 1),
        (cast(call("floor", call("relu", call("tanh", S))), "i32"), 0, 1),
    ],
)
def test_known_intervals(expr: Expr, lo: float, hi: float) -> None:
    found = Ranges(VARIANT).of(expr)
    assert isinstance(found, Interval)
    assert lo <= found.lo and found.hi <= hi


def test_positivity() -> None:
    ranges = Ranges(VARIANT)
    assert ranges.is_positive(Scalar("u", F32))
    assert ranges.is_positive(binary("*", f32(0.125), call("exp", Scalar("u", F32))))
    assert not ranges.is_positive(Scalar("t", F32))
    assert not ranges.is_positive(call("exp", Scalar("t", F32)))
