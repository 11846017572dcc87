"""Which signed operations can't overflow, so that they may be spelt with C++'s own operators.

Index arithmetic such as `kv - pos` is the common case.  No request and no pool has 2^30 tokens or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attngen.codegen.graph import Node
from attngen.ir.types import LIMITS

Range = tuple[int, int]
_INDEX: Final = 2**30 - 1


def integer_range(node: Node, args: Sequence[Range]) -> Range:
    """The values that an integer node can take, given those of its operands."""
    limits = LIMITS[node.type.base]
    match node.kind, node.payload:
        case "const", _:
            return (int(str(node.payload)),) * 2
        case "index", "pos" | "pos_lo" | "pos_hi":
            return (-_INDEX, _INDEX)
        case "index", _:
            return (0, _INDEX)
        case "select", _:
            return (min(args[1][0], args[2][0]), max(args[1][1], args[2][1]))
        case (("binary" | "unary"), ("+" | "-" | "*")):
            exact = exact_range(node, args)
            return exact if within(exact, limits) else limits
        case "binary", "&" if args[0][0] >= 0 or args[1][0] >= 0:
            return (0, min(hi for lo, hi in args if lo >= 0))
        case "binary", "%" if args[1][0] > 0:
            return (0, args[1][1] - 1)
        case "binary", "//" if args[1][0] > 0:
            return (min(args[0][0], 0), max(args[0][1], 0))
        case "call", "min":
            return (min(args[0][0], args[1][0]), min(args[0][1], args[1][1]))
        case "call", "max":
            return (max(args[0][0], args[1][0]), max(args[0][1], args[1][1]))
        case "call", "clamp":
            (_, low, high) = args
            return (min(low[0], high[0]), max(low[1], high[1]))
        case "call", "sign":
            return (-1, 1)
        case "cast", _ if args and within(args[0], limits):
            return args[0]
        case _:
            return limits


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
