"""Which values integers can take, and so which operations on them may be spelt with C++'s own operators.

Index arithmetic such as `kv - pos` is the common case.  No request and no pool has 2^30 tokens or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attngen.codegen.graph import Node
from attngen.ir.interval import Interval, binary_interval, call_interval, hull, negated
from attngen.ir.types import LIMITS

Range = tuple[int, int]
_INDEX: Final = 2**30 - 1


def declared_range(ends: Sequence[int | float | str] | None) -> Range | None:
    """The values that a half-open range of whole numbers declares; an end that names a dimension is any size."""
    if ends is None or any(isinstance(end, float) for end in ends):
        return None
    low, high = ((side * (_INDEX + 1)) if isinstance(end, str) else int(end) for side, end in enumerate(ends))
    return low, high - 1


def integer_range(node: Node, args: Sequence[Range]) -> Range:
    """The values that an integer node can take, given those of its operands."""
    base, operands = node.type.base, [Interval(*arg) for arg in args]
    limits = LIMITS[base]
    match node.kind, node.payload:
        case "const", _:
            return (int(str(node.payload)),) * 2
        case "index", "pos" | "pos_lo" | "pos_hi":
            return (-_INDEX, _INDEX)
        case "index", _:
            return (0, _INDEX)
        case "select", _:
            found = hull(operands[1], operands[2])
        case "unary", _:
            found = negated(str(node.payload), operands[0], base)
        case "binary", _:
            found = binary_interval(str(node.payload), operands[0], operands[1], base)
        case "call", _:
            found = call_interval(str(node.payload), operands, base)
        case "cast", _ if within(args[0], limits):
            return args[0]
        case _:
            return limits
    return int(found.lo), int(found.hi)


def exact_range(node: Node, args: Sequence[Range]) -> Range:
    """The range of `+`, `-` and `*` before it wraps."""
    if node.kind == "unary":
        return (-args[0][1], -args[0][0])
    (a, b), (c, d) = args
    match node.payload:
        case "+":
            return (a + c, b + d)
        case "-":
            return (a - d, b - c)
        case _:
            products = (a * c, a * d, b * c, b * d)
            return (min(products), max(products))


def within(values: Range, limits: Range) -> bool:
    """Whether all values lie inside the limits."""
    return limits[0] <= values[0] and values[1] <= limits[1]
