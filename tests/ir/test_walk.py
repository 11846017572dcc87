"""Travelling over expressions: identity, names, and printing."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import binary, i32
from attngen.ir.nodes import Expr, Index, Let, Var, Variant
from attngen.ir.numbers import NUMBERS
from attngen.ir.printer import print_expr
from attngen.ir.types import F32, I32
from attngen.ir.walk import (
    Names,
    children,
    copy_expr,
    free_vars,
    inline_lets,
    map_expr,
    map_variant,
    nodes,
    substitute,
    with_children,
)
from tests.ir import strategies

SETTINGS = settings(max_examples=60, deadline=None)


@SETTINGS
@given(strategies.variants(control=True))
def test_nothing_changed_is_the_same_object(variant: Variant) -> None:
    assert map_variant(variant, lambda expr: map_expr(expr, lambda node: node)) is variant
    for node in nodes(variant.functions[0].body):
        assert with_children(node, children(node)) is node


@SETTINGS
@given(strategies.expressions(F32, control=True))
def test_copies_are_equal_but_for_names(expr: Expr) -> None:
    names = Names.of(Variant("v", None, strategies.SCALARS, strategies.TENSORS, strategies.FUNCTIONS, logits=expr))
    copy = copy_expr(expr, names)
    bound = {n.name for n in nodes(expr) if isinstance(n, Let)}
    assert bound.isdisjoint(n.name for n in nodes(copy) if isinstance(n, Let))
    assert free_vars(copy) == free_vars(expr)
    assert len(print_expr(copy)) >= len(print_expr(expr))


def test_substitution_reaches_variables_and_indices() -> None:
    expr = Let("a", binary("+", Index("pos", I32), Var("n", I32)), binary("*", Var("a", I32), Index("kv", I32)), I32)
    found = substitute(expr, {"n": i32(3)}, {"pos": i32(4), "kv": i32(5)})
    assert free_vars(expr) == {"n"} and free_vars(found) == frozenset()
    env: Environment[Any] = Environment()
    assert evaluate(found, env, NUMBERS) == 35
    assert print_expr(inline_lets(found)) == "(4 + 3) * 5"


def test_inline_lets_shares_what_it_repeats() -> None:
    expr: Expr = Var("a60", I32)
    for i in reversed(range(61)):
        value = binary("+", Var(f"a{i - 1}", I32), Var(f"a{i - 1}", I32)) if i else Index("pos", I32)
        expr = Let(f"a{i}", value, expr, I32)
    flat = inline_lets(expr)
    assert not any(isinstance(node, Let) for node in nodes(flat))
    env: Environment[Any] = Environment({"pos": 1})
    assert evaluate(flat, env, NUMBERS) == 0  # 2 ** 60 in 32 bits


def test_parentheses_are_printed_where_they_matter() -> None:
    a, b, c = (Var(name, I32) for name in "abc")
    assert print_expr(binary("-", a, binary("-", b, c))) == "a - (b - c)"
    assert print_expr(binary("-", binary("-", a, b), c)) == "a - b - c"
    assert print_expr(binary("&", binary("<", a, b), binary("<", b, c))) == "(a < b) & (b < c)"
    assert print_expr(binary("==", binary("<", a, b), binary("<", b, c))) == "(a < b) == (b < c)"
    assert print_expr(binary("*", binary("+", a, b), i32(-2))) == "(a + b) * -2"
