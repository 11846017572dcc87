"""Sets of keys as seen from a tile of queries: which some query may see, and which every query surely sees.

A `Range` is [lo, hi) with expressions or None (no limit) as ends, and means its part in [0, kv_len).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from attngen.ir.affine import KV_LEN, difference, largest, smallest
from attngen.ir.algebra import simplify
from attngen.ir.make import binary, i32, inverted, select
from attngen.ir.nodes import Const, Expr
from attngen.ir.walk import fold_expr

LARGE: Final = 96  # nodes; a union of bigger expressions is given up for one of its parts


@dataclass(frozen=True)
class Range:
    """Keys from lo to before hi."""

    lo: Expr | None = None
    hi: Expr | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it certainly holds no key."""
        return isinstance(self.hi, Const) and self.hi.value <= 0


ALL: Final = Range()
NONE: Final = Range(None, i32(0))


@dataclass(frozen=True)
class KeySet:
    """No key outside `some` is allowed for any query of the tile; every key of `every` is allowed for all of them."""

    some: Range
    every: Range


UNKNOWN: Final = KeySet(ALL, NONE)


def both(a: KeySet, b: KeySet) -> KeySet:
    """Keys that two conditions allow."""
    return KeySet(_intersection(a.some, b.some), _intersection(a.every, b.every))


def either(a: KeySet, b: KeySet) -> KeySet:
    """Keys that one of two conditions allows."""
    return KeySet(_hull(a.some, b.some), _union_inside(a.every, b.every))


def gate(condition: Expr) -> Range:
    """All keys if a condition on lengths and scalars holds, none otherwise."""
    if isinstance(condition, Const):
        return ALL if condition.value else NONE
    return Range(None, select(condition, KV_LEN, i32(0)))


def guarded(condition: Expr, keys: KeySet) -> KeySet:
    """What is known of a set if `condition` holds, and UNKNOWN otherwise."""
    if isinstance(condition, Const):
        return keys if condition.value else UNKNOWN
    lo = None if keys.some.lo is None else select(condition, keys.some.lo, i32(0))
    hi = None if keys.some.hi is None else select(condition, keys.some.hi, KV_LEN)
    return KeySet(Range(lo, hi), _intersection(keys.every, gate(condition)))


def _intersection(a: Range, b: Range) -> Range:
    if a.is_empty or b.is_empty:
        return NONE
    lo = b.lo if a.lo is None else a.lo if b.lo is None else largest(a.lo, b.lo)
    hi = b.hi if a.hi is None else a.hi if b.hi is None else smallest(a.hi, b.hi)
    return Range(lo, hi)


def _hull(a: Range, b: Range) -> Range:
    """A range around both; an empty one that isn't known to be empty may make it too wide, never too narrow."""
    if a.is_empty or b.is_empty:
        return b if a.is_empty else a
    lo = None if a.lo is None or b.lo is None else smallest(a.lo, b.lo)
    hi = None if a.hi is None or b.hi is None else largest(a.hi, b.hi)
    return Range(lo, hi)


def _union_inside(a: Range, b: Range) -> Range:
    """A range inside the union: all of it where the two touch, else the longer one."""
    if a.is_empty or b.is_empty:
        return b if a.is_empty else a
    if ALL in (a, b):
        return ALL
    if a.lo is None and b.lo is None and a.hi is not None and b.hi is not None:
        return Range(None, largest(a.hi, b.hi))
    if a.hi is None and b.hi is None and a.lo is not None and b.lo is not None:
        return Range(smallest(a.lo, b.lo), None)
    if a.lo is None and b.hi is None and a.hi is not None and b.lo is not None:
        return _ends_inside(a.hi, b.lo)
    if b.lo is None and a.hi is None and b.hi is not None and a.lo is not None:
        return _ends_inside(b.hi, a.lo)
    (a_lo, a_hi), (b_lo, b_hi) = _closed(a), _closed(b)
    if sum(tree_size(end) for end in (a_lo, a_hi, b_lo, b_hi)) > LARGE:
        return a
    # An empty range has hi <= lo: it touches nothing unless lo == hi, and is the shorter one of any two.
    touch = simplify(binary("<=", largest(a_lo, b_lo), smallest(a_hi, b_hi)))
    longer = simplify(binary("<=", difference(b_hi, b_lo), difference(a_hi, a_lo)))
    lo = _choice(touch, smallest(a_lo, b_lo), _choice(longer, a_lo, b_lo))
    hi = _choice(touch, largest(a_hi, b_hi), _choice(longer, a_hi, b_hi))
    return Range(lo, hi)


def _ends_inside(low_end: Expr, high_start: Expr) -> Range:
    """A range inside the keys before `low_end` and those from `high_start` on: all where they meet, else the longer."""
    meet = simplify(binary("<=", high_start, low_end))
    low_longer = simplify(binary("<=", difference(KV_LEN, high_start), low_end))
    lo = _choice(simplify(binary("|", meet, low_longer)), i32(0), high_start)
    hi = _choice(simplify(binary("|", meet, simplify(inverted(low_longer)))), KV_LEN, low_end)
    return Range(lo, hi)


def _choice(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    return then if then == otherwise else simplify(select(condition, then, otherwise))


def _closed(keys: Range) -> tuple[Expr, Expr]:
    return (i32(0) if keys.lo is None else keys.lo), (KV_LEN if keys.hi is None else keys.hi)


def tree_size(expr: Expr) -> int:
    """How many nodes an expression has when written out."""
    return fold_expr(expr, lambda _, sizes: 1 + sum(sizes))
