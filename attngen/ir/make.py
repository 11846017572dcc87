"""Short constructors for IR nodes: operations that infer their result type."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attngen.ir.nodes import Base, Binary, Call, Cast, Const, Expr, Select, Type, Unary
from attngen.ir.types import BOOL, F32, I32

BinaryOp: TypeAlias = Literal[
    "+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">="
]  # fmt: skip
COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
TRUE: Final = Const(True, BOOL)
FALSE: Final = Const(False, BOOL)


def i32(value: int) -> Const:
    """An i32 constant."""
    return Const(value, I32)


def f32(value: float) -> Const:
    """An f32 constant."""
    return Const(float(value), F32)


def binary(op: BinaryOp, lhs: Expr, rhs: Expr) -> Binary:
    """`lhs op rhs`; a comparison is bool, anything else has the operands' base, and a vec operand makes a vec."""
    vec = lhs.type.vec or rhs.type.vec
    base: Base = "bool" if op in COMPARISONS else lhs.type.base
    return Binary(op, lhs, rhs, Type(base, vec), span=lhs.span)


def negative(operand: Expr) -> Unary:
    """`-operand`."""
    return Unary("-", operand, operand.type, span=operand.span)


def inverted(operand: Expr) -> Unary:
    """`~operand`: logical not of a bool, bitwise of an integer."""
    return Unary("~", operand, operand.type, span=operand.span)


def call(function: str, *args: Expr) -> Call:
    """A builtin whose result has its arguments' base type."""
    vec = any(arg.type.vec for arg in args)
    return Call(function, args, Type(args[0].type.base, vec), span=args[0].span)


def select(condition: Expr, then: Expr, otherwise: Expr) -> Select:
    """`then if condition else otherwise`."""
    vec = condition.type.vec or then.type.vec or otherwise.type.vec
    return Select(condition, then, otherwise, Type(then.type.base, vec), span=condition.span)


def cast(operand: Expr, base: Base) -> Expr:
    """The operand converted to another base type; itself where it has that type already."""
    if operand.type.base == base:
        return operand
    return Cast(operand, Type(base, operand.type.vec), span=operand.span)
