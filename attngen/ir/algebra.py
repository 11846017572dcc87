"""One-step simplification of a node: constants and exact identities.

Every rule keeps the bits of `evaluate` with NUMBERS_F32, signed zeros and NaN included: so x * 1.0 is x, but x + 0.0 is
not (x may be -0.0), and no float is reassociated.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import FALSE, TRUE, binary, inverted
from attngen.ir.nodes import Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Unary, Var
from attngen.ir.numbers import NUMBERS_F32
from attngen.ir.types import is_integer
from attngen.ir.walk import children, map_expr

_OPPOSITE: Final[dict[str, Any]] = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_COMMUTATIVE: Final = ("+", "*", "&", "|", "^")


def is_leaf(expr: Expr) -> bool:
    """Whether an expression is a name or a constant, free to repeat."""
    return isinstance(expr, Const | Index | Scalar | Var)


def simplified(expr: Expr) -> Expr:
    """The whole expression, simplified bottom-up."""
    return map_expr(expr, simplify)


def simplify(node: Expr) -> Expr:
    """An equal node that costs no more; its operands are taken as simplified already."""
    if isinstance(node, Unary | Binary | Select | Cast | Call) and not node.type.vec:
        operands = children(node)
        if all(isinstance(operand, Const) for operand in operands):
            value: Any = evaluate(node, Environment(), NUMBERS_F32)
            return Const(value, node.type, span=node.span)
    match node:
        case Unary():
            return _unary(node)
        case Binary():
            return _kept_shape(node, _binary(node))
        case Select():
            return _kept_shape(node, _select(node))
        case Cast():
            return _cast(node)
        case _:
            return node


def _kept_shape(node: Expr, new: Expr) -> Expr:
    """The new node unless it turned a vec into a scalar."""
    return new if new.type == node.type else node


def _unary(node: Unary) -> Expr:
    match node.operand:
        case Unary(op=op, operand=inner) if op == node.op:
            return inner
        case Binary() as compare if node.op == "~" and compare.op in _OPPOSITE:
            if is_integer(compare.lhs.type) or compare.op in ("==", "!="):  # NaN is not less and not at least
                return replace(compare, op=_OPPOSITE[compare.op])
    return node


def _select(node: Select) -> Expr:
    if isinstance(node.condition, Const):
        return node.then if node.condition.value else node.otherwise
    if node.then is node.otherwise or (is_leaf(node.then) and same_leaf(node.then, node.otherwise)):
        return node.then
    if node.then == TRUE and node.otherwise == FALSE:
        return node.condition
    return node


def same_leaf(a: Expr, b: Expr) -> bool:
    """Whether two leaves are the same value to the bit (0.0 and -0.0 are not)."""
    if isinstance(a, Const) and isinstance(b, Const):
        return a.type == b.type and repr(a.value) == repr(b.value)
    return is_leaf(a) and a == b


def _cast(node: Cast) -> Expr:
    operand = node.operand
    if operand.type == node.type:
        return operand
    if isinstance(operand, Cast) and operand.operand.type == node.type:
        inner, outer = operand.operand.type.base, operand.type.base
        if inner == "bool" or (inner, outer) == ("i32", "i64"):  # widened and narrowed again
            return operand.operand
    return node


def _binary(node: Binary) -> Expr:
    lhs, rhs = node.lhs, node.rhs
    if node.op in _COMMUTATIVE and isinstance(lhs, Const) and not isinstance(rhs, Const):
        lhs, rhs = rhs, lhs
    if isinstance(rhs, Const):
        match lhs.type.base:
            case "bool":
                return _with_bool(node, lhs, bool(rhs.value))
            case "f32":
                return _with_float(node, lhs, rhs)
            case _:
                return _with_integer(node, lhs, rhs)
    if isinstance(lhs, Const) and is_integer(lhs.type) and lhs.value == 0 and node.op in ("//", "%", "<<", ">>"):
        return lhs
    return node


def _with_bool(node: Binary, x: Expr, value: bool) -> Expr:
    match node.op, value:
        case ("&", True) | ("|", False) | ("^", False) | ("==", True) | ("!=", False):
            return x
        case ("&", False) | ("|", True):
            return Const(value, node.type, span=node.span)
        case ("^", True) | ("==", False) | ("!=", True):
            return simplify(inverted(x))
        case _:
            return node


def _with_integer(node: Binary, x: Expr, constant: Const) -> Expr:
    match node.op, int(constant.value):
        case ("+" | "-" | "|" | "^" | "<<" | ">>", 0) | ("*" | "//", 1) | ("&", -1):
            return x
        case ("*" | "&" | "//" | "%", 0) | ("%", 1):
            return Const(0, node.type, span=node.span)
        case ("+", _) if isinstance(x, Binary) and x.op == "+" and isinstance(x.rhs, Const):
            return replace(node, lhs=x.lhs, rhs=simplify(binary("+", x.rhs, constant)))  # wrapping addition associates
        case _:
            return node


def _with_float(node: Binary, x: Expr, constant: Const) -> Expr:
    value = float(constant.value)
    match node.op:
        case "*" | "/" if value == 1.0:
            return x
        case "*" | "/" if value == -1.0:
            return simplify(Unary("-", x, x.type, span=node.span))
        case "-" if value == 0.0 and math.copysign(1.0, value) > 0:
            return x
        case "+" if value == 0.0 and math.copysign(1.0, value) < 0:
            return x
        case "/" if _is_power_of_two(value):
            return replace(node, op="*", rhs=replace(constant, value=1.0 / value))
        case _:
            return node


def _is_power_of_two(value: float) -> bool:
    """Whether multiplying by the reciprocal is the same as dividing, to the bit."""
    mantissa, exponent = math.frexp(abs(value))
    return mantissa == 0.5 and -100 < exponent < 100
