"""The meaning of nodes: the corners by hand, and numbers against torch on random expressions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.ir.builtins import IN_IR
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import binary, call, cast, f32, i32, negative
from attngen.ir.nodes import Carry, Const, Expr, Index, LaneAt, LaneSum, Let, Load, Loop, Reduce, Type, Var
from attngen.ir.numbers import FUNCTIONS, INTEGER_FUNCTIONS, NUMBERS, NUMBERS_F32, round_f32
from attngen.ir.types import BOOL, F32, I32, I64, VEC
from attngen.torch_ops import FUNCTIONS as TORCH_FUNCTIONS
from attngen.torch_ops import INTEGER_FUNCTIONS as TORCH_INTEGER_FUNCTIONS
from attngen.torch_ops import TorchOps
from tests.ir import strategies

LOW, HIGH = -(2**31), 2**31 - 1
NAN, INF = math.nan, math.inf


def number(value: float, type: Type = F32) -> Const:
    return Const(value, type)


CORNERS: list[tuple[Expr, Any]] = [
    (binary("+", i32(HIGH), i32(1)), LOW),
    (binary("*", i32(65536), i32(65536)), 0),
    (binary("//", i32(-7), i32(2)), -4),
    (binary("//", i32(7), i32(0)), 0),
    (binary("//", i32(LOW), i32(-1)), LOW),
    (binary("%", i32(-7), i32(3)), 2),
    (binary("%", i32(7), i32(-3)), -2),
    (binary("%", i32(7), i32(0)), 0),
    (binary("%", i32(LOW), i32(-1)), 0),
    (binary("<<", i32(1), i32(33)), 2),
    (binary("<<", i32(1), i32(31)), LOW),
    (binary(">>", i32(-8), i32(1)), -4),
    (binary(">>", i32(8), i32(-31)), 4),
    (binary("<<", Const(1, I64), Const(40, I64)), 2**40),
    (negative(i32(LOW)), LOW),
    (call("abs", i32(LOW)), LOW),
    (cast(Const(2**32 + 5, I64), "i32"), 5),
    (cast(Const(2**31, I64), "i32"), LOW),
    (cast(f32(3.9), "i32"), 3),
    (cast(f32(-3.9), "i32"), -3),
    (cast(f32(1e20), "i32"), HIGH),
    (cast(f32(-INF), "i64"), -(2**63)),
    (cast(f32(INF), "i64"), 2**63 - 1),
    (cast(f32(NAN), "i32"), 0),
    (cast(f32(NAN), "bool"), True),
    (cast(Const(True, BOOL), "f32"), 1.0),
    (cast(i32(16777217), "f32"), 16777216.0),
    (binary("/", f32(1.0), f32(0.0)), INF),
    (binary("/", f32(1.0), f32(-0.0)), -INF),
    (binary("/", f32(0.0), f32(0.0)), NAN),
    (binary("//", f32(7.0), f32(0.0)), 0.0),
    (binary("%", f32(-7.0), f32(3.0)), 2.0),
    (call("log", f32(-1.0)), NAN),
    (call("log", f32(0.0)), -INF),
    (call("exp", f32(1e4)), INF),
    (call("sqrt", f32(-1.0)), NAN),
    (call("rsqrt", f32(0.0)), INF),
    (call("pow", f32(-8.0), f32(0.5)), NAN),
    (call("pow", f32(0.0), f32(-1.0)), INF),
    (call("sin", f32(INF)), NAN),
    (call("min", f32(NAN), f32(2.0)), 2.0),
    (call("max", f32(2.0), f32(NAN)), 2.0),
    (call("clamp", f32(NAN), f32(-1.0), f32(1.0)), -1.0),
    (call("relu", f32(NAN)), 0.0),
    (call("sign", f32(NAN)), 0.0),
    (call("round", f32(2.5)), 2.0),
    (call("round", f32(-1.5)), -2.0),
    (binary("==", f32(NAN), f32(NAN)), False),
    (binary("!=", f32(NAN), f32(NAN)), True),
]


@pytest.mark.parametrize(("expr", "expected"), CORNERS, ids=range(len(CORNERS)))
def test_corner(expr: Expr, expected: Any) -> None:
    found = [evaluate(expr, Environment(), ops) for ops in (NUMBERS, NUMBERS_F32)]
    found += [evaluate(expr, Environment(), TorchOps(dtype)).item() for dtype in (torch.float64, torch.float32)]
    for value in found:
        assert value == expected or (value != value and expected != expected)


def test_comparisons_and_casts_see_32_bits() -> None:
    third = binary("/", f32(1.0), f32(3.0))
    wide = Environment(variables={"y": 1.0 + 1e-12})
    assert evaluate(binary("==", Var("y", F32), f32(1.0)), wide, NUMBERS)
    assert evaluate(cast(binary("*", Var("y", F32), f32(0.9999999999)), "i32"), wide, NUMBERS) == 1
    assert evaluate(third, wide, NUMBERS) == 1 / 3
    assert evaluate(third, wide, NUMBERS_F32) == round_f32(1 / 3)
    tensors = Environment(variables={"y": torch.tensor(1.0 + 1e-12, dtype=torch.float64)})
    assert evaluate(binary("==", Var("y", F32), f32(1.0)), tensors, TorchOps())


def test_loads_clamp() -> None:
    env: Environment[Any] = Environment(tensors={"t": [[1, 2], [3, 4]], "none": []})
    assert evaluate(Load("t", (i32(9), i32(-9)), I32), env, NUMBERS) == 3
    assert evaluate(Load("none", (i32(0),), I32), env, NUMBERS) == 0


def test_lanes() -> None:
    x = Var("x", VEC)
    env: Environment[Any] = Environment({"d": (0, 1, 2, 3)}, variables={"x": (1.0, 2.0, 3.0, 4.0)}, lanes=4)
    assert evaluate(LaneAt(x, "half", None, VEC), env, NUMBERS) == (3.0, 4.0, 1.0, 2.0)
    assert evaluate(LaneAt(x, "pair", None, VEC), env, NUMBERS) == (2.0, 1.0, 4.0, 3.0)
    assert evaluate(LaneAt(x, "index", i32(7), F32), env, NUMBERS) == 4.0
    mirrored = binary("-", i32(3), Index("d", Type("i32", vec=True)))
    assert evaluate(LaneAt(x, "index", mirrored, VEC), env, NUMBERS) == (4.0, 3.0, 2.0, 1.0)
    assert evaluate(LaneSum(binary("+", x, f32(1.0)), F32), env, NUMBERS) == 14.0


def test_carried_values_move_together() -> None:
    a, b = Var("a", I32), Var("b", I32)
    fibonacci = Loop("j", i32(10), (Carry("a", i32(0), b), Carry("b", i32(1), binary("+", a, b))), "a", I32)
    assert evaluate(fibonacci, Environment(), NUMBERS) == 55


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_empty_and_full_reductions(op: str) -> None:
    squares = Reduce(op, "j", i32(5), binary("*", Var("j", I32), Var("j", I32)), I32)  # type: ignore[arg-type]
    nothing = Reduce(op, "k", i32(0), Var("k", I32), I32)  # type: ignore[arg-type]
    assert evaluate(squares, Environment(), NUMBERS) == {"sum": 30, "max": 16, "min": 0}[op]
    assert evaluate(nothing, Environment(), NUMBERS) == {"sum": 0, "max": LOW, "min": HIGH}[op]


def test_long_chains_of_lets() -> None:
    expr: Expr = Var("a4999", I32)
    for i in reversed(range(5000)):
        expr = Let(f"a{i}", binary("+", Var(f"a{i - 1}", I32), i32(1)) if i else i32(0), expr, I32)
    assert evaluate(expr, Environment(), NUMBERS) == 4999


def test_every_builtin_is_implemented_everywhere() -> None:
    assert set(FUNCTIONS) == set(TORCH_FUNCTIONS) == IN_IR
    assert set(INTEGER_FUNCTIONS) == set(TORCH_INTEGER_FUNCTIONS) <= IN_IR


def to_torch(world: strategies.World) -> Environment[Any]:
    def tensor(value: Any) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)

    indices: dict[str, Any] = {k: torch.tensor(v, dtype=torch.int32) for k, v in world.indices.items()}
    indices["d"] = torch.arange(strategies.LANES, dtype=torch.int32)
    bases = {s.name: s.type for s in strategies.SCALARS}
    dtypes = {"bool": torch.bool, "i32": torch.int32, "i64": torch.int64, "f32": torch.float64}
    scalars = {k: torch.tensor(v, dtype=dtypes[bases[k]]) for k, v in world.scalars.items()}
    tensors = {t.name: torch.tensor(world.tensors[t.name], dtype=dtypes[t.dtype]) for t in strategies.TENSORS}
    inputs = {k: torch.tensor(v, dtype=torch.float64) for k, v in world.inputs.items()}
    functions = {function.name: function for function in strategies.FUNCTIONS}
    return Environment(indices, scalars, tensors, inputs, functions, strategies.LANES)


@settings(max_examples=150, deadline=None)
@given(st.data(), strategies.worlds(), st.sampled_from(["logits", "mask", "query", "value"]))
def test_torch_agrees(data: Any, world: strategies.World, stage: str) -> None:
    type = {"logits": F32, "mask": BOOL}.get(stage, VEC)
    expr = data.draw(strategies.expressions(type, stage, control=True))
    expected = evaluate(expr, world.environment(strategies.FUNCTIONS), NUMBERS)
    found = evaluate(expr, to_torch(world), TorchOps())
    found = found.expand(strategies.LANES) if type.vec else found
    expected = expected * strategies.LANES if isinstance(expected, tuple) and len(expected) == 1 else expected
    torch.testing.assert_close(
        found.to(torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6, equal_nan=True
    )
