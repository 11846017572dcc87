"""Which integer operations may leave their width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attngen.ir.interval import Interval, binary_interval, call_interval, hull, negated
from attngen.ir.intervals import Ranges
from attngen.ir.nodes import Binary, Call, Cast, Const, Expr, Index, Select, Unary
from attngen.ir.types import LIMITS, is_integer
from attngen.ir.walk import fold_expr

LONGEST: Final = 2**29  # no request has more queries or keys
_POSITIONS: Final = ("q", "kv", "pos", "q_len", "kv_len")


def may_wrap(expr: Expr, ranges: Ranges) -> bool:
    """Whether this operation itself may wrap, for requests of any length up to LONGEST."""
    if not isinstance(expr, Binary | Unary | Call | Cast) or not is_integer(expr.type) or expr.type.vec:
        return False
    found = fold_expr(expr, lambda node, operands: _unwrapped(node, operands, ranges))
    low, high = LIMITS[expr.type.base]
    if expr.type.base == "i64":  # what leaves 64 bits is any i64
        return not (low < found.lo and found.hi < high)
    return not (low <= found.lo and found.hi <= high)


def _unwrapped(node: Expr, operands: Sequence[Interval], ranges: Ranges) -> Interval:
    """What an operation would give in whole numbers (64 bits, beyond which it is anything)."""
    match node:
        case Const():
            return Interval(node.value, node.value)
        case Index() if node.name in _POSITIONS:
            return Interval(-LONGEST if node.name == "pos" else 0, LONGEST)
        case Unary(op=op) if is_integer(node.type):
            return negated(op, operands[0], "i64")
        case Binary(op=op) if is_integer(node.type):
            return binary_interval(op, operands[0], operands[1], "i64")
        case Call() if is_integer(node.type):
            return call_interval(node.function, operands, "i64")
        case Select() if is_integer(node.type):
            return hull(operands[1], operands[2])
        case Cast() if is_integer(node.operand.type) and is_integer(node.type):
            return operands[0]
        case _:
            return ranges.of(node)
