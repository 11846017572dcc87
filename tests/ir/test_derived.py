"""What passes derive: bindings, powers of two, value factors and logit bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import binary, call, cast, f32, i32, select
from attngen.ir.nodes import Expr, Index, LaneSum, Let, Load, Scalar, Type, Var, Variant
from attngen.ir.numbers import NUMBERS
from attngen.ir.passes import PASSES
from attngen.ir.passes.fold import fold
from attngen.ir.passes.log2 import log2
from attngen.ir.passes.logit_bound import logit_bound
from attngen.ir.passes.scope import scope
from attngen.ir.passes.value_scale import value_scale
from attngen.ir.printer import print_expr, print_variant
from attngen.ir.scopes import OF_SCOPE, Dependence, dependence
from attngen.ir.specialise import specialise
from attngen.ir.types import F32, I32, VEC
from attngen.ir.walk import inline_lets, nodes
from tests.ir import strategies
from tests.ir.test_passes import SETTINGS, values

S, X, V, OUT = Var("s", F32), Var("x", VEC), Var("v", VEC), Var("o", VEC)
D = Index("d", Type("i32", vec=True))
H, HK, KV, POS, SLOT = (Index(name, I32) for name in ("h", "hk", "kv", "pos", "slot"))  # type: ignore[arg-type]
T, U = Scalar("t", F32), Scalar("u", F32)
SLOPE = Load("slope", (H,), F32)


def variant(**stages: Any) -> Variant:
    return Variant("v", None, strategies.SCALARS, strategies.TENSORS, **stages)


# scope ------------------------------------------------------------------------------------------


@SETTINGS
@given(strategies.variants(), strategies.worlds())
def test_scope_keeps_every_bit(original: Variant, world: strategies.World) -> None:
    folded = fold(original)
    scoped = scope(folded)
    assert values(scoped, world) == values(folded, world)
    known: dict[str, Dependence] = {}
    allowed = {
        "launch": Dependence.NOTHING,
        "lane": Dependence.LANE,
        "row": Dependence.ROW | Dependence.HEAD,
        "column": Dependence.COLUMN | Dependence.HEAD,
    }
    for binding in scoped.bindings:
        assert dependence(binding.value, known) | allowed[binding.scope] == allowed[binding.scope]
        known[binding.name] = OF_SCOPE[binding.scope]
    assert len(known) == len(scoped.bindings)


def bindings(scoped: Variant) -> dict[str, str]:
    return {binding.name: print_expr(binding.value) for binding in scoped.bindings}


def test_alibi_is_hoisted_by_row() -> None:
    distance = cast(binary("-", KV, POS), "f32")
    scoped = scope(variant(logits=binary("+", S, binary("*", SLOPE, distance)), sink=SLOPE))
    assert bindings(scoped) == {"row0": "slope[h]"}
    assert scoped.logits is not None and print_expr(scoped.logits) == "s + row0 * f32(kv - pos)"
    assert scoped.sink is not None and print_expr(scoped.sink) == "slope[h]"


def test_rope_frequencies_are_a_table() -> None:
    frequency = call("exp2", binary("*", cast(binary("%", D, i32(4)), "f32"), call("log2", T)))
    angle = binary("*", cast(POS, "f32"), Var("f", VEC))
    query = Let("f", frequency, binary("*", X, binary("+", call("cos", angle), call("sin", angle))), VEC)
    key = binary("*", X, call("cos", binary("*", cast(KV, "f32"), frequency)))
    scoped = scope(fold(variant(query=query, key=key)))
    assert bindings(scoped) == {
        "launch0": "log2(t)",
        "lane0": "exp2(f32(d % 4) * launch0)",
        "row0": "f32(pos)",
        "column0": "f32(kv)",
    }


def test_heads_belong_to_rows_and_columns() -> None:
    both = binary("*", Load("slope", (HK,), F32), f32(3.0))
    scoped = scope(variant(logits=binary("*", S, both), value=binary("*", V, both)))
    assert [(b.scope, b.name) for b in scoped.bindings] == [("row", "row0"), ("column", "column0")]


def test_lse_and_lane_sums_stay() -> None:
    output = binary("*", OUT, call("exp", Index("lse", F32)))
    query = binary("*", X, call("rsqrt", LaneSum(binary("*", X, X), F32)))
    scoped = scope(variant(output=output, query=query))
    assert scoped.bindings == () and scoped.output == output and scoped.query == query


# value_scale ------------------------------------------------------------------------------------


def test_value_scale() -> None:
    token = Load("slope", (SLOT,), F32)
    plain = value_scale(variant(value=binary("*", V, token)))
    assert plain.value is None and plain.value_scale == token
    gate = Load("slope", (D,), VEC)
    mixed = value_scale(variant(value=binary("*", binary("*", binary("*", V, token), gate), T)))
    assert mixed.value == binary("*", V, gate) and mixed.value_scale == binary("*", token, T)
    norm = variant(value=binary("*", V, call("rsqrt", LaneSum(binary("*", V, V), F32))))
    assert value_scale(norm) is norm
    shifted = variant(value=binary("+", V, token))
    assert value_scale(shifted) is shifted


# log2 -------------------------------------------------------------------------------------------


def log_weight(original: Variant, env: Environment[Any], dot: float) -> float:
    """The natural logit that a variant gives a dot product, before log2."""
    assert original.scale is not None
    s: Any = evaluate(original.scale, env, NUMBERS) * dot  # type: ignore[operator]
    return evaluate(original.logits, env.bind(s=s), NUMBERS) if original.logits is not None else s  # type: ignore[return-value]


def exponent(lowered: Variant, env: Environment[Any], dot: float) -> float:
    """The power of two that a kernel computes for it."""
    logits: Any = evaluate(lowered.logits, env.bind(s=dot), NUMBERS) if lowered.logits is not None else dot
    assert lowered.scale_log2 is not None
    return evaluate(lowered.scale_log2, env, NUMBERS) * logits  # type: ignore[operator, no-any-return]


PIECES = st.sampled_from(
    [T, U, SLOPE, f32(2.0), f32(-3.0), f32(0.5), cast(KV, "f32"), cast(binary("-", KV, POS), "f32")]
)


@st.composite
def scores(draw: Any, depth: int = 4) -> Expr:
    """Sums, products and smooth functions of the score."""
    if depth == 0:
        return S
    inner = draw(scores(depth=draw(st.integers(0, depth - 1))))
    kind = draw(st.sampled_from(["+", "-", "*", "/", "r-", "r*", "tanh", "sigmoid", "-x", "let", "select", "s+s"]))
    match kind:
        case "tanh" | "sigmoid":
            return call(kind, inner)
        case "-x":
            return binary("*", f32(-1.0), inner)
        case "let":
            name = f"a{depth}"
            return Let(name, inner, binary("+", Var(name, F32), call("tanh", Var(name, F32))), F32)
        case "select":
            return select(binary("<", KV, POS), inner, binary("*", inner, U))
        case "s+s":
            return binary("+", inner, S)
        case "r-" | "r*":
            return binary(kind[1], draw(PIECES), inner)  # type: ignore[arg-type]
        case _:
            return binary(kind, inner, draw(PIECES if kind != "/" else st.sampled_from([U, f32(3.0)])))


@SETTINGS
@given(
    scores(), st.sampled_from([None, f32(0.25), U, T, binary("*", U, SLOPE)]), strategies.worlds(), st.floats(-30, 30)
)
def test_log2_keeps_weights(logits: Expr, scale: Expr | None, world: strategies.World, dot: float) -> None:
    original = specialise(variant(logits=logits, scale=scale), 64, 64)
    lowered = log2(fold(original))
    assert lowered.scale is None and lowered.scale_log2 is not None
    env = world.environment()
    expected = log_weight(original, env, dot) * math.log2(math.e)
    assume(math.isfinite(expected) and abs(expected) < 1e6)
    size = max([1.0, *(abs(x) for x in terms(original, env, dot))])
    assert exponent(lowered, env, dot) == pytest.approx(expected, rel=1e-5, abs=1e-5 * size)


def terms(original: Variant, env: Environment[Any], dot: float) -> list[float]:
    """Intermediate values, whose size bounds what cancellation may cost."""
    assert original.logits is not None
    s = log_weight(replace(original, logits=None), env, dot)
    found: list[Any] = [
        evaluate(n, env.bind(s=s), NUMBERS) for n in nodes(inline_lets(original.logits)) if n.type == F32
    ]
    return [x * abs(y) for x in found for y in (1.0, 3.0, 30.0) if math.isfinite(x)]


@settings(max_examples=50, deadline=None)
@given(scores(), strategies.worlds(), st.floats(-30, 30))
def test_log2_without_softmax(logits: Expr, world: strategies.World, dot: float) -> None:
    original = specialise(variant(logits=logits, softmax=False), 64, 64)
    lowered = log2(fold(original))
    assert lowered.scale is None and lowered.scale_log2 is None and lowered.logits is not None
    env = world.environment()
    expected = log_weight(original, env, dot)
    assume(math.isfinite(expected))
    size = max([1.0, *(abs(x) for x in terms(original, env, dot))])
    found: Any = evaluate(lowered.logits, env.bind(s=dot), NUMBERS)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5 * size)


def lowered(logits: Expr | None, scale: Expr | None = None) -> tuple[str | None, str]:
    result = log2(fold(specialise(variant(logits=logits, scale=scale), 64, 64)))
    assert result.scale_log2 is not None
    return None if result.logits is None else print_expr(result.logits), print_expr(result.scale_log2)


L = "1.442695"


@pytest.mark.parametrize(
    ("logits", "scale", "expected"),
    [
        (None, None, (None, "0.18033688")),
        (None, U, (None, f"u * {L}")),
        (None, T, ("s * t", L)),  # t may be negative
        (binary("*", S, f32(2.0)), None, (None, "0.36067376")),
        (
            binary("*", f32(50.0), call("tanh", binary("/", S, f32(50.0)))),
            None,
            ("tanh(s * 0.0025)", "72.13475"),
        ),
        (binary("+", S, SLOPE), None, ("s + slope[h] * 8.0", "0.18033688")),
        (binary("+", S, SLOPE), f32(-0.125), (f"s * -0.18033688 + slope[h] * {L}", "1.0")),
        (binary("+", S, SLOPE), f32(0.0001), (f"s * 0.0001442695 + slope[h] * {L}", "1.0")),
        (call("clamp", S, f32(-5.0), f32(5.0)), None, ("clamp(s * 0.125, -5.0, 5.0)", L)),
    ],
)
def test_log2_by_hand(logits: Expr | None, scale: Expr | None, expected: tuple[str | None, str]) -> None:
    assert lowered(logits, scale) == expected


# logit_bound ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "bound"),
    [
        (None, None),
        (binary("*", f32(50.0), call("tanh", binary("/", S, f32(50.0)))), 72.14),
        (binary("*", f32(60.0), call("tanh", binary("/", S, f32(60.0)))), None),
        (call("clamp", S, f32(-5.0), f32(7.0)), 10.1),
        (call("sigmoid", S), 1.443),
        (binary("+", call("tanh", S), SLOPE), None),
        (binary("+", call("tanh", S), Load("bias", (H, i32(0)), F32)), 4.33),
    ],
)
def test_logit_bound(logits: Expr | None, bound: float | None) -> None:
    found = logit_bound(log2(fold(specialise(variant(logits=logits), 64, 64)))).logit_bound
    assert (found is None) == (bound is None)
    if found is not None and bound is not None:
        assert found <= bound and found > 0.99 * bound - 0.01


# all of them ------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(strategies.variants(control=True))
def test_every_pass_runs_on_anything(original: Variant) -> None:
    result = specialise(original, 8, 8)
    for rewrite in PASSES:
        result = rewrite(result)
    assert result.name == original.name and not result.functions
    assert print_variant(result).startswith("attention random:")
