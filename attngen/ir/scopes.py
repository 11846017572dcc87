"""What a value depends on, and so how often it must be computed.

`Dependence` is a set of sources; the scope of a value is the least frequent moment at which all its sources are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Flag
from typing import Final, Literal, TypeAlias

from attngen.ir.nodes import Expr, Index, LaneAt, LaneSum, Scope, Var
from attngen.ir.walk import fold_expr


class Dependence(Flag):
    """Sources of a value; none of them means that it is known once the launch is."""

    NOTHING = 0
    HEAD = 1  # hk, known to rows and to columns
    ROW = 2
    COLUMN = 4
    LANE = 8
    INPUT = 16  # a stage's input, lse, or what needs all lanes of a vec


Placement: TypeAlias = Scope | Literal["element"]

_NOTHING: Final = ("group", "D", "Dv", "Hq", "Hk")
_OF_INDEX: Final = {
    **dict.fromkeys(_NOTHING, Dependence.NOTHING),
    **dict.fromkeys(("b", "h", "q", "pos", "row", "q_len", "kv_len"), Dependence.ROW),
    **dict.fromkeys(("kv", "slot"), Dependence.COLUMN),
    "hk": Dependence.HEAD,
    "d": Dependence.LANE,
    "lse": Dependence.INPUT,
}
# A binding of a scope, as its readers see it.
OF_SCOPE: Final[dict[Scope, Dependence]] = {
    "launch": Dependence.NOTHING,
    "lane": Dependence.LANE,
    "row": Dependence.ROW,
    "column": Dependence.COLUMN,
}


def dependence(expr: Expr, variables: Mapping[str, Dependence] | None = None) -> Dependence:
    """What an expression depends on; a variable that isn't listed is a stage's input."""
    known = dict(variables or {})
    return fold_expr(expr, lambda node, operands: join(node, operands, known))


def join(node: Expr, operands: Sequence[Dependence], variables: Mapping[str, Dependence]) -> Dependence:
    """What a node depends on, given its operands."""
    match node:
        case Index():
            return _OF_INDEX[node.name]
        case Var():
            return variables.get(node.name, Dependence.INPUT)
        case LaneSum() | LaneAt():
            return Dependence.INPUT
        case _:
            total = Dependence.NOTHING
            for operand in operands:
                total |= operand
            return total


def placement(found: Dependence, *, of_column: bool) -> Placement:
    """The scope of a value; what depends on the KV head alone belongs to the rows unless the stage has only columns."""
    if found & Dependence.INPUT:
        return "element"
    if found & Dependence.LANE:
        return "lane" if found == Dependence.LANE else "element"
    by_row, by_column = bool(found & Dependence.ROW), bool(found & Dependence.COLUMN)
    if found & Dependence.HEAD and not by_row and not by_column:
        return "column" if of_column else "row"
    if by_row and by_column:
        return "element"
    return "row" if by_row else "column" if by_column else "launch"
