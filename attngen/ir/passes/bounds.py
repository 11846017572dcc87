"""Find which keys a tile of queries can see, as data for the planner.

Reads comparisons of integers that are affine or monotone in `pos` and `kv` (with floor division, min, max, abs, clamp
and conditionals), constants, scalars and lengths, under any & | ~ ^.  What it can't read (loads, floats, remainders of
kv) is unknown: it neither excludes a key nor calls one surely allowed.  The bounds err to the safe side and are exact
for the usual masks.

They are exact in whole numbers, while the mask itself wraps at 32 bits.  So the planner must drop them when any
intermediate value leaves 32 bits; sums that could wrap in the mask are put into `first`, times 0, for that purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from attngen.ir.affine import KV_LEN, Linear, Tile, UnreadableError, linear, product, quotient
from attngen.ir.algebra import simplify
from attngen.ir.intervals import Ranges
from attngen.ir.keysets import ALL, NONE, UNKNOWN, KeySet, Range, both, either, gate, guarded
from attngen.ir.make import binary, call, i32
from attngen.ir.nodes import Binary, Call, Cast, Const, Expr, Index, KeyBounds, Select, Unary, Variant
from attngen.ir.overflow import may_wrap
from attngen.ir.types import BOOL, is_integer
from attngen.ir.walk import bounds_of, index_names, inline_lets, nodes, scalar_names

_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def bounds(variant: Variant) -> Variant:
    """The variant with `key_bounds`, or without where nothing is known about its mask."""
    if variant.mask is None:
        return replace(variant, key_bounds=KeyBounds(i32(0), i32(0), KV_LEN, KV_LEN))
    reader = _Reader(Ranges(variant))
    keys = reader.keys(inline_lets(variant.mask), True)
    if keys == UNKNOWN:
        return variant
    first, last = _clipped(keys.some)
    full_from, full_to = _clipped(keys.every)
    return replace(variant, key_bounds=KeyBounds(reader.watch(first), full_from, full_to, last))


def plan_scalars(variant: Variant) -> tuple[str, ...]:
    """The scalar parameters that the key bounds read: arguments of plan()."""
    if variant.key_bounds is None:
        return ()
    read = frozenset[str]().union(*(scalar_names(end) for end in bounds_of(variant.key_bounds)))
    return tuple(scalar.name for scalar in variant.scalars if scalar.name in read)


def hides_the_end(mask: Expr) -> bool:
    """Whether the mask says by itself that keys from kv_len on are hidden: it asks for kv <= pos or kv < kv_len.

    A mask that hides them in another way is not recognised.
    """
    match inline_lets(mask):
        case Binary(op="&", lhs=lhs, rhs=rhs):
            return hides_the_end(lhs) or hides_the_end(rhs)
        case Binary(op="<=" | "<", lhs=Index(name="kv"), rhs=Index(name="pos" | "kv_len" as bound)) as test:
            return bound == "pos" or test.op == "<"
        case Binary(op=">=" | ">", lhs=Index(name="pos" | "kv_len" as bound), rhs=Index(name="kv")) as test:
            return bound == "pos" or test.op == ">"
    return False


def _clipped(keys: Range) -> tuple[Expr, Expr]:
    """The ends within [0, kv_len); hi may be below lo where the range is empty."""
    if keys.is_empty:
        return i32(0), i32(0)
    lo = i32(0) if keys.lo is None else simplify(call("max", keys.lo, i32(0)))
    hi = KV_LEN if keys.hi in (None, KV_LEN) else simplify(call("min", keys.hi, KV_LEN))
    return lo, hi


class _Reader:
    """Reads conditions on `pos` and `kv` as sets of keys."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._positive: frozenset[str] = frozenset()
        self._watched: dict[str, Expr] = {}

    def keys(self, expr: Expr, wanted: bool) -> KeySet:
        """The keys for which a condition is as wanted."""
        match expr:
            case Const():
                return _KNOWN[bool(expr.value) == wanted]
            case Unary(op="~"):
                return self.keys(expr.operand, not wanted)
            case Binary(op="&" | "|") if expr.type == BOOL:
                join = both if (expr.op == "&") == wanted else either
                return join(self.keys(expr.lhs, wanted), self.keys(expr.rhs, wanted))
            case Binary(op="^" | "==" | "!=") if expr.lhs.type == BOOL:
                return self._equal(expr, (expr.op == "==") == wanted)
            case Select():
                then = both(self.keys(expr.condition, True), self.keys(expr.then, wanted))
                return either(then, both(self.keys(expr.condition, False), self.keys(expr.otherwise, wanted)))
            case Binary() if is_integer(expr.lhs.type):
                return self._compared(expr.op if wanted else _OPPOSITE[expr.op], expr.lhs, expr.rhs)
            case Cast() if is_integer(expr.operand.type):
                return self._compared("!=" if wanted else "==", expr.operand, i32(0))
            case _:
                return self._fixed(expr, wanted)

    def watch(self, first: Expr) -> Expr:
        """`first`, with everything that must not leave 32 bits as an intermediate value."""
        if not self._watched:
            return first
        watched = list(self._watched.values())
        total = watched[0]
        for value in watched[1:]:
            total = call("min", total, value)
        return binary("+", first, binary("*", i32(0), total))

    def _equal(self, expr: Binary, same: bool) -> KeySet:
        lhs, rhs = expr.lhs, expr.rhs
        holds = both(self.keys(lhs, True), self.keys(rhs, same))
        return either(holds, both(self.keys(lhs, False), self.keys(rhs, not same)))

    def _fixed(self, expr: Expr, wanted: bool) -> KeySet:
        """A condition that is the same for all keys and positions."""
        try:
            condition = self._tile().condition(expr if wanted else Unary("~", expr, BOOL))
        except UnreadableError:
            return UNKNOWN
        return KeySet(gate(condition), gate(condition))

    def _tile(self) -> Tile:
        return Tile(self._ranges, self._positive)

    def _compared(self, op: str, lhs: Expr, rhs: Expr) -> KeySet:
        try:
            self._watch_sums(lhs)
            self._watch_sums(rhs)
        except UnreadableError:
            return UNKNOWN
        more = linear(lhs).plus(linear(rhs), -1)
        one = Linear(1)
        match op:
            case "<=":
                return self._not_above_zero(more)
            case "<":
                return self._not_above_zero(more.plus(one))
            case ">=":
                return self._not_above_zero(more.times(-1))
            case ">":
                return self._not_above_zero(one.plus(more, -1))
            case "==":
                return both(self._not_above_zero(more), self._not_above_zero(more.times(-1)))
            case _:
                return either(self._not_above_zero(more.plus(one)), self._not_above_zero(one.plus(more, -1)))

    def _watch_sums(self, expr: Expr) -> None:
        """Note what could wrap in the mask although the bounds, in whole numbers, don't show it."""
        for node in nodes(expr):
            if may_wrap(node, self._ranges):
                for end in Tile(self._ranges, all_keys=True).ends(linear(node)):
                    self._watched[repr(end)] = end

    def _not_above_zero(self, value: Linear) -> KeySet:
        """The keys for which a sum is at most 0."""
        try:
            terms = list(value.mentioning("kv"))
            if not terms:
                low, high = self._tile().ends(value)
                return KeySet(*(gate(simplify(binary("<=", end, i32(0)))) for end in (low, high)))
            if len(terms) > 1:
                return UNKNOWN
            key, atom, coefficient = terms[0]
            limit = value.without(key).times(-1)
            if coefficient > 0:
                return self._limited(atom, quotient(limit, coefficient), below=True)
            return self._limited(atom, quotient(limit, -coefficient).times(-1), below=False)
        except UnreadableError:
            return UNKNOWN

    def _limited(self, atom: Expr, limit: Linear, *, below: bool) -> KeySet:
        """The keys for which an atom is at most (at least, if not `below`) its limit, which doesn't read `kv`."""

        def part(expr: Expr, sign: int = 1) -> KeySet:
            value = linear(expr).times(sign)
            return self._not_above_zero(value.plus(limit, -1) if below else limit.plus(value, -1))

        match atom:
            case Index(name="kv"):
                low, high = self._tile().ends(limit.plus(Linear(1)) if below else limit)
                if below:
                    return KeySet(Range(None, high), Range(None, low))
                return KeySet(Range(low, None), Range(high, None))
            case Binary(op="//"):
                return self._divided(atom, limit, below=below)
            case Call(function="min" | "max", args=(a, b)):
                join = either if (atom.function == "min") == below else both
                return join(part(a), part(b))
            case Call(function="clamp", args=(x, lo, hi)):
                return part(call("min", call("max", x, lo), hi))
            case Call(function="abs", args=(x,)):
                join = both if below else either
                return join(part(x), part(x, -1))
            case Select():
                then = both(self.keys(atom.condition, True), part(atom.then))
                return either(then, both(self.keys(atom.condition, False), part(atom.otherwise)))
            case _:
                return UNKNOWN

    def _divided(self, atom: Binary, limit: Linear, *, below: bool) -> KeySet:
        """x // d <= limit is x <= limit * d + d - 1, and x // d >= limit is x >= limit * d, for a positive d."""
        x, divisor = linear(atom.lhs), atom.rhs
        if isinstance(divisor, Const) and divisor.value < 0:
            x, divisor = x.times(-1), i32(-int(divisor.value))
        if not index_names(divisor).isdisjoint(("pos", "kv", "q")):
            return UNKNOWN
        if not self._tile().is_positive(divisor):
            return self._divided_if_positive(atom, limit, below=below)
        start = product(limit, divisor)
        if below:
            return self._not_above_zero(x.plus(start, -1).plus(linear(divisor), -1).plus(Linear(1)))
        return self._not_above_zero(start.plus(x, -1))

    def _divided_if_positive(self, atom: Binary, limit: Linear, *, below: bool) -> KeySet:
        outer, condition = self._positive, binary("<", i32(0), self._tile().fixed(atom.rhs))
        self._positive = outer | {repr(atom.rhs)}
        keys = self._divided(atom, limit, below=below)
        self._positive = outer
        return guarded(simplify(condition), keys)


_KNOWN: Final = {True: KeySet(ALL, ALL), False: KeySet(NONE, NONE)}
