"""Fold constants, drop what does nothing, and tidy Lets.

Applies exact identities only: every result is bit-identical to `evaluate` with NUMBERS_F32.  Lets rise to the root of
their stage, so that a stage is a list of named values and one expression; unused ones go, and names, constants and
small values that are used once are put in place.  Doesn't reassociate floats, and doesn't merge equal expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from attngen.ir.algebra import is_leaf, simplified, simplify
from attngen.ir.nodes import Expr, LaneAt, LaneSum, Let, Loop, Reduce, Var, Variant
from attngen.ir.walk import children, fold_expr, let_spine, map_expr, map_variant, nodes, substitute, with_children

DEPTH: Final = 12  # a value used once is put in place unless that nests deeper


def fold(variant: Variant) -> Variant:
    """The variant with constants folded and Lets tidied."""
    return map_variant(variant, fold_expression)


def fold_expression(expr: Expr) -> Expr:
    """One stage, folded."""
    if any(isinstance(node, Reduce | Loop) for node in nodes(expr)):
        return simplified(expr)
    expr = _raise_lets(expr)
    while (folded := _pass(expr)) is not expr:
        expr = folded
    return expr


def _raise_lets(expr: Expr) -> Expr:
    """All Lets in one chain at the root; names are unique, so scopes may grow."""
    raised: list[Let] = []
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        if id(node) not in memo:
            lets, body = let_spine(node)
            for let in lets:
                value = visit(let.value)
                raised.append(let if value is let.value else replace(let, value=value))
            memo[id(node)] = with_children(body, [visit(child) for child in children(body)])
        return memo[id(node)]

    body = visit(expr)
    return _chain(expr, raised, body)


def _chain(original: Expr, lets: Sequence[Let], body: Expr) -> Expr:
    """The Lets around the body; the original object where it is that already."""
    old, old_body = let_spine(original)
    if body is old_body and len(old) == len(lets) and all(a.value is b.value for a, b in zip(old, lets, strict=True)):
        return original
    for let in reversed(lets):
        body = replace(let, body=body, type=body.type)
    return body


def _pass(expr: Expr) -> Expr:
    """Simplify every value and the body once, then drop or place Lets."""
    lets, body = let_spine(expr)
    trivial: dict[str, Expr] = {}
    kept: list[Let] = []
    for let in lets:
        value = _rewrite(let.value, trivial)
        if is_leaf(value):
            trivial[let.name] = value
        else:
            kept.append(let if value is let.value else replace(let, value=value))
    return _chain(expr, *_place(kept, _rewrite(body, trivial)))


def _rewrite(expr: Expr, variables: Mapping[str, Expr]) -> Expr:
    def step(node: Expr) -> Expr:
        return variables.get(node.name, node) if isinstance(node, Var) else simplify(node)

    return map_expr(expr, step)


def _place(lets: Sequence[Let], body: Expr) -> tuple[list[Let], Expr]:
    """Without unused Lets, and with small values that are used once put where they are used."""
    users: dict[str, list[Expr]] = {}
    _note_users(body, users)
    used: list[Let] = []
    for let in reversed(lets):
        if let.name in users:
            used.append(let)
            _note_users(let.value, users)
    placed: dict[str, Expr] = {}
    kept: list[Let] = []
    for let in reversed(used):
        value = substitute(let.value, placed)
        if len(users[let.name]) == 1 and _may_move(value, users[let.name][0]):
            placed[let.name] = value
        else:
            kept.append(let if value is let.value else replace(let, value=value))
    return kept, substitute(body, placed)


def _note_users(expr: Expr, users: dict[str, list[Expr]]) -> None:
    """For every variable, the nodes that read it (itself where it is the whole expression)."""
    if isinstance(expr, Var):
        users.setdefault(expr.name, []).append(expr)
    for node in nodes(expr):
        for child in children(node):
            if isinstance(child, Var):
                users.setdefault(child.name, []).append(node)


def _may_move(value: Expr, user: Expr) -> bool:
    """Whether a value may stand in place of its only use: not where a scalar would be computed once a lane."""
    if isinstance(user, LaneAt | LaneSum) or (user.type.vec and not value.type.vec):
        return False
    if any(isinstance(node, LaneSum) for node in nodes(value)):
        return isinstance(user, Var)
    return fold_expr(value, lambda _, depths: 1 + max(depths, default=0)) <= DEPTH
