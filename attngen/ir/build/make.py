"""Small constructors of IR nodes: implicit conversions, lets, and the sharing of operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from attngen.errors import Span
from attngen.ir.nodes import (
    Base,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    LaneAt,
    Let,
    Scalar,
    Select,
    Type,
    Unary,
    Var,
)
from attngen.ir.types import F32, I32, fits, is_integer, promote, with_base
from attngen.ir.walk import Names, nodes

Lane: TypeAlias = Literal["D", "Dv"]  # the size of a vec: query and key have D lanes, value and output Dv
Bindings: TypeAlias = list[tuple[str, Expr]]
ArithmeticOp: TypeAlias = Literal["+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>"]
CompareOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]


def integer(value: int, span: Span) -> Const:
    """An i32 constant."""
    return Const(value, I32, span=span)


def lane_size(lane: Lane, span: Span) -> Index:
    """The number of lanes as an expression."""
    return Index(lane, I32, span=span)


def lane_index(span: Span) -> Index:
    """`d`, the number of the lane."""
    return Index("d", Type("i32", vec=True), span=span)


def is_atom(expr: Expr) -> bool:
    """Whether naming the expression once more costs nothing."""
    return isinstance(expr, Const | Index | Scalar | Var)


def implicit(expr: Expr, base: Base) -> Expr | None:
    """The expression in another base type, if the language converts it without being asked."""
    have = expr.type.base
    if have == base:
        return expr
    if "bool" in (have, base):
        return None
    if isinstance(expr, Const) and isinstance(expr.value, int):
        if base == "f32":
            return Const(float(expr.value), F32, span=expr.span)
        return Const(expr.value, Type(base), span=expr.span) if fits(expr.value, base) else None
    widened = promote(Type(have), Type(base))
    if widened is None or widened.base != base:
        return None
    return Cast(expr, with_base(expr.type, base), span=expr.span)


def splat(expr: Expr, lane: Lane) -> Expr:
    """A vec with the scalar in every lane; `d < size` always holds and makes it a vec operation."""
    if expr.type.vec:
        return expr
    zero = Const(0.0, F32, span=expr.span)
    everywhere = Binary("<", lane_index(expr.span), lane_size(lane, expr.span), Type("bool", vec=True), span=expr.span)
    return Select(everywhere, expr, zero, with_base(Type("f32", vec=True), expr.type.base), span=expr.span)


def arithmetic(op: ArithmeticOp, lhs: Expr, rhs: Expr, span: Span) -> Binary:
    """A binary operation on operands of one base type, which is the result's."""
    return Binary(op, lhs, rhs, Type(lhs.type.base, lhs.type.vec or rhs.type.vec), span=span)


def comparison(op: CompareOp, lhs: Expr, rhs: Expr, span: Span) -> Expr:
    """A comparison of operands of one base type; bools compare by `^`."""
    type = Type("bool", lhs.type.vec or rhs.type.vec)
    if lhs.type.base == "bool":
        differ = Binary("^", lhs, rhs, type, span=span)
        return Unary("~", differ, type, span=span) if op == "==" else differ
    return Binary(op, lhs, rhs, type, span=span)


def pairwise(function: str, args: list[Expr], type: Type, span: Span) -> Expr:
    """`min(a, b, c)` as nested calls of two arguments."""
    result = args[0]
    for arg in args[1:]:
        result = Call(function, (result, arg), type, span=span)
    return result


def share(names: Names, expr: Expr, base: str, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of the expression, which is computed once however often `body` names it."""
    if is_atom(expr):
        return body(expr)
    name = names.fresh(base)
    result = body(Var(name, expr.type, span=expr.span))
    return Let(name, expr, result, result.type, span=expr.span)


def variables(expr: Expr) -> frozenset[str]:
    """Every name of a Var anywhere in the expression."""
    return frozenset(node.name for node in nodes(expr) if isinstance(node, Var))


def wrap(bindings: Bindings, result: Expr) -> Expr:
    """The result under its lets, without those that it doesn't need."""
    needed = set(variables(result))
    for name, value in reversed(bindings):
        if name in needed:
            needed |= variables(value)
            result = Let(name, value, result, result.type, span=value.span)
    return result


def rotate(names: Names, x: Expr, partner: Literal["half", "pair"], lane: Lane, span: Span) -> Expr:
    """The partner lane of each lane, negated in the first half (or in the even lanes)."""
    if partner == "half":
        half = Binary("//", lane_size(lane, span), integer(2, span), I32, span=span)
        first: Expr = Binary("<", lane_index(span), half, Type("bool", vec=True), span=span)
    else:
        odd = Binary("&", lane_index(span), integer(1, span), Type("i32", vec=True), span=span)
        first = Binary("==", odd, integer(0, span), Type("bool", vec=True), span=span)
    moved = LaneAt(x, partner, None, x.type, span=span)
    return share(names, moved, "t", lambda t: Select(first, Unary("-", t, x.type, span=span), t, x.type, span=span))


def to_bool(expr: Expr, span: Span) -> Expr:
    """Whether a number is not 0."""
    if expr.type.base == "bool":
        return expr
    zero = Const(0 if is_integer(expr.type) else 0.0, Type(expr.type.base), span=span)
    return Binary("!=", expr, zero, Type("bool", expr.type.vec), span=span)
