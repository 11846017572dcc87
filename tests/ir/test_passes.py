"""Passes keep the meaning of every expression, to the bit where they promise it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from attngen.errors import AttnError
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import binary, f32, i32
from attngen.ir.nodes import Apply, Carry, Const, Expr, Function, Index, Let, Loop, Reduce, Type, Var, Variant
from attngen.ir.numbers import NUMBERS_F32
from attngen.ir.passes.fold import fold
from attngen.ir.passes.inline import inline
from attngen.ir.passes.unroll import unroll
from attngen.ir.specialise import specialise
from attngen.ir.types import F32, I32, VEC
from attngen.ir.walk import expressions, nodes, stages
from tests.ir import strategies

SETTINGS = settings(max_examples=150, deadline=None)


def values(variant: Variant, world: strategies.World) -> dict[str, Any]:
    """Every stage evaluated as kernels compute it, in a comparable form."""
    env: Environment[Any] = world.environment(variant.functions)
    for binding in variant.bindings:
        env = env.bind(**{binding.name: evaluate(binding.value, env, NUMBERS_F32)})
    return {name: plain(evaluate(expr, env, NUMBERS_F32), expr.type) for name, expr in stages(variant)}


def plain(value: Any, type: Type) -> Any:
    """NaN and the signs of zeros made comparable, vecs at full length."""
    if isinstance(value, tuple):
        return tuple(plain(x, type) for x in (value * strategies.LANES if len(value) == 1 else value))
    return repr(value) if isinstance(value, float) else value


def gone(variant: Variant, *kinds: type) -> bool:
    return not any(isinstance(node, kinds) for expr in expressions(variant) for node in nodes(expr))


@SETTINGS
@given(strategies.variants(control=True), strategies.worlds())
def test_inline_unroll_fold_keep_every_bit(variant: Variant, world: strategies.World) -> None:
    expected = values(variant, world)
    inlined = inline(variant)
    assert gone(inlined, Apply) and not inlined.functions
    assert values(inlined, world) == expected
    unrolled = unroll(inlined)
    assert gone(unrolled, Reduce, Loop)
    assert values(unrolled, world) == expected
    folded = fold(unrolled)
    assert values(folded, world) == expected
    assert fold(folded) is folded
    assert fold(inlined) is not None and values(fold(inlined), world) == expected


@SETTINGS
@given(strategies.variants(control=True))
def test_names_stay_unique(variant: Variant) -> None:
    for rewrite in (inline, unroll, fold):
        variant = rewrite(variant)
        lets = [n.name for e in expressions(variant) for n in nodes(e) if isinstance(n, Let)]
        assert len(lets) == len(set(lets))


def test_too_many_iterations_are_refused() -> None:
    inner = Reduce("sum", "k", i32(100), Var("k", I32), I32)
    outer = Reduce("sum", "j", i32(100), binary("+", inner, Var("j", I32)), I32)
    with pytest.raises(AttnError) as caught:
        unroll(Variant("a", None, (), (), mask=binary("<", outer, i32(3))))
    assert [d.id for d in caught.value.diagnostics] == ["loop-too-long"]


def test_deep_loops_unroll_without_deep_recursion() -> None:
    step = binary("+", binary("*", Var("a", F32), Var("s", F32)), f32(1.0))
    loop = Loop("j", i32(1000), (Carry("a", f32(0.0), step),), "a", F32)
    variant = fold(unroll(Variant("a", None, (), (), logits=loop)))
    env: Environment[Any] = Environment(variables={"s": 0.5})
    assert variant.logits is not None
    assert evaluate(variant.logits, env, NUMBERS_F32) == 2.0


def test_specialise() -> None:
    half = binary("//", Index("D", I32), i32(2))
    variant = Variant("a", None, (), (), logits=binary("/", Var("s", F32), f32(2.0)), mask=binary("<", half, i32(3)))
    fixed = fold(specialise(variant, 4, 8))
    assert fixed.mask == Const(True, Type("bool"))
    assert fixed.scale == f32(0.5)


X = Var("x", VEC)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (binary("+", Var("s", F32), f32(0.0)), None),
        (binary("-", Var("s", F32), f32(0.0)), Var("s", F32)),
        (binary("*", f32(1.0), Var("s", F32)), Var("s", F32)),
        (binary("*", Var("s", F32), f32(0.0)), None),
        (binary("*", Var("i", I32), i32(0)), i32(0)),
        (binary("/", Var("s", F32), f32(8.0)), binary("*", Var("s", F32), f32(0.125))),
        (binary("/", Var("s", F32), f32(3.0)), None),
        (binary("+", binary("+", Var("i", I32), i32(3)), i32(-3)), Var("i", I32)),
    ],
)
def test_identities(expr: Expr, expected: Expr | None) -> None:
    folded = fold(Variant("a", None, (), (), logits=expr))
    assert folded.logits == (expr if expected is None else expected)


def test_a_scalar_may_be_given_for_a_vec() -> None:
    p, x = Var("p", VEC), Var("x", VEC)
    square = Function("square", (p,), binary("*", p, p))
    query = binary("+", x, Apply("square", (f32(3.0),), None, None, VEC))
    variant = Variant("a", None, (), (), (square,), query=query)
    inlined = fold(inline(variant))
    assert inlined.query == binary("+", x, f32(9.0))
    env: Environment[Any] = Environment(variables={"x": (1.0, 2.0)}, functions={"square": square}, lanes=2)
    assert evaluate(query, env, NUMBERS_F32) == (10.0, 11.0)
