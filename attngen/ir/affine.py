"""Integer expressions as sums of terms, and their ends over the query positions of a tile.

A `Linear` is a constant plus integer multiples of atoms; an atom is any expression that is not itself a sum (`pos`, a
scalar, `pos // 16`, `min(a, b)`).  All arithmetic is exact: who uses the results watches for values beyond 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from attngen.ir.algebra import simplify
from attngen.ir.intervals import Ranges
from attngen.ir.make import binary, call, cast, i32, negative, select
from attngen.ir.nodes import Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Unary
from attngen.ir.types import BOOL, I32, I64, fits, is_integer
from attngen.ir.walk import index_names

KV_LEN = Index("kv_len", I32)
Ends = tuple[Expr, Expr]  # the smallest and the largest value


class UnreadableError(Exception):
    """An expression whose ends can't be written in terms of lengths, scalars and the ends of a tile."""


@dataclass(frozen=True)
class Linear:
    """`constant` + the sum of coefficient * atom; atoms are keyed by their text."""

    constant: int = 0
    terms: Mapping[str, tuple[Expr, int]] = field(default_factory=dict)

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """self + times * other."""
        terms = dict(self.terms)
        for key, (atom, coefficient) in other.terms.items():
            total = terms.get(key, (atom, 0))[1] + times * coefficient
            terms[key] = (atom, total)
        return Linear(self.constant + times * other.constant, {k: t for k, t in terms.items() if t[1]})

    def times(self, factor: int) -> Linear:
        """factor * self."""
        return Linear().plus(self, factor)

    def without(self, key: str) -> Linear:
        """The sum without one term."""
        return Linear(self.constant, {k: t for k, t in self.terms.items() if k != key})

    def mentioning(self, index: str) -> Iterator[tuple[str, Expr, int]]:
        """The terms whose atoms read an index."""
        for key, (atom, coefficient) in self.terms.items():
            if index in index_names(atom):
                yield key, atom, coefficient


def atom_of(expr: Expr) -> Linear:
    """A sum of one term."""
    return Linear(0, {repr(expr): (expr, 1)})


def linear(expr: Expr) -> Linear:
    """The sum that an integer expression is; `q` is read as pos - kv_len + q_len."""
    match expr:
        case Const():
            return Linear(int(expr.value))
        case Index(name="q"):
            shift = atom_of(Index("q_len", I32)).plus(atom_of(KV_LEN), -1)
            return atom_of(Index("pos", I32)).plus(shift)
        case Unary(op="-"):
            return linear(expr.operand).times(-1)
        case Unary(op="~"):
            return Linear(-1).plus(linear(expr.operand), -1)
        case Cast(operand=Scalar()) if expr.operand.type == I64 and expr.type == I32:
            return atom_of(expr)  # what `_of_atom` makes of the scalar
        case Cast() if is_integer(expr.operand.type):
            return linear(expr.operand)
        case Binary(op="+" | "-"):
            return linear(expr.lhs).plus(linear(expr.rhs), 1 if expr.op == "+" else -1)
        case Binary(op="*"):
            lhs, rhs = linear(expr.lhs), linear(expr.rhs)
            if not rhs.terms:
                return lhs.times(rhs.constant)
            return rhs.times(lhs.constant) if not lhs.terms else atom_of(expr)
        case Binary(op="<<", rhs=Const(value=count)) if 0 <= count < 31:
            return linear(expr.lhs).times(1 << int(count))
        case Binary(op=">>", rhs=Const(value=count)) if 0 <= count < 31:
            return atom_of(binary("//", cast(expr.lhs, "i32"), i32(1 << int(count))))
        case _:
            return atom_of(expr)


def product(value: Linear, factor: Expr) -> Linear:
    """A sum times an expression."""
    if isinstance(factor, Const):
        return value.times(int(factor.value))
    return atom_of(simplify(binary("*", to_expr(value), factor)))


def quotient(value: Linear, divisor: int) -> Linear:
    """A sum, floor divided by a positive constant."""
    if divisor == 1:
        return value
    if not value.terms:
        return Linear(value.constant // divisor)
    return atom_of(binary("//", to_expr(value), i32(divisor)))


def to_expr(value: Linear) -> Expr:
    """The sum as an expression."""
    return _sum(value.constant, ((atom, coefficient) for atom, coefficient in value.terms.values()))


def _sum(constant: int, terms: Iterator[tuple[Expr, int]]) -> Expr:
    """Positive terms first, so that the text reads `pos_lo - n + 1`."""
    ordered = sorted(terms, key=lambda term: term[1] < 0)
    if not all(fits(number, "i32") for number in (constant, *(coefficient for _, coefficient in ordered))):
        raise UnreadableError
    result: Expr | None = None
    if constant > 0 and ordered and ordered[0][1] < 0:
        result, constant = i32(constant), 0
    for atom, coefficient in ordered:
        magnitude = atom if abs(coefficient) == 1 else binary("*", atom, i32(abs(coefficient)))
        if result is None:
            result = magnitude if coefficient > 0 else negative(magnitude)
        else:
            result = binary("+" if coefficient > 0 else "-", result, magnitude)
    if result is None:
        return i32(constant)
    if constant == 0:
        return result
    return binary("+" if constant > 0 else "-", result, i32(abs(constant)))


def smallest(a: Expr, b: Expr) -> Expr:
    """min(a, b), or the one that both are."""
    return a if a == b else simplify(call("min", a, b))


def largest(a: Expr, b: Expr) -> Expr:
    """max(a, b), or the one that both are."""
    return a if a == b else simplify(call("max", a, b))


class Tile:
    """Ends of integer expressions while pos goes from pos_lo to pos_hi (and kv, where asked, over all keys).

    Divisors in `positive` (by their text) are taken to be above 0, besides those that declared ranges prove so.
    """

    def __init__(self, ranges: Ranges, positive: frozenset[str] = frozenset(), *, all_keys: bool = False) -> None:
        self._ranges, self._positive, self._all_keys = ranges, positive, all_keys

    def ends(self, value: Linear) -> Ends:
        """The smallest and the largest value of a sum."""
        ends = [(self._of_atom(atom), coefficient) for atom, coefficient in value.terms.values()]
        lows = Linear(value.constant)
        highs = Linear(value.constant)
        for (low, high), coefficient in ends:
            low, high = (low, high) if coefficient > 0 else (high, low)
            lows = lows.plus(linear(low), coefficient)
            highs = highs.plus(linear(high), coefficient)
        return to_expr(lows), to_expr(highs)

    def fixed(self, expr: Expr) -> Expr:
        """The one value of an integer expression that doesn't depend on the position."""
        low, high = self.ends(linear(expr))
        if low != high:
            raise UnreadableError
        return low

    def is_positive(self, expr: Expr) -> bool:
        """Whether an integer expression is known to be above 0."""
        return repr(expr) in self._positive or self._ranges.is_positive(expr)

    def condition(self, expr: Expr) -> Expr:
        """A bool that depends on neither the position nor the key."""
        match expr:
            case Const() | Scalar() if expr.type == BOOL:
                return expr
            case Unary(op="~"):
                return simplify(replace_operand(expr, self.condition(expr.operand)))
            case Binary(op="&" | "|") if expr.type == BOOL:
                return simplify(binary(expr.op, self.condition(expr.lhs), self.condition(expr.rhs)))
            case Binary(op="==" | "!=" | "<" | "<=" | ">" | ">=") if is_integer(expr.lhs.type):
                lhs, rhs = self.fixed(expr.lhs), self.fixed(expr.rhs)
                return simplify(binary(expr.op, lhs, rhs))
            case _:
                raise UnreadableError

    def _of_atom(self, atom: Expr) -> Ends:
        match atom:
            case Index(name="pos"):
                return Index("pos_lo", I32), Index("pos_hi", I32)
            case Index(name="kv") if self._all_keys:
                return i32(0), KV_LEN
            case Index(name="q_len" | "kv_len" | "pos_lo" | "pos_hi"):
                return atom, atom
            case Scalar() if is_integer(atom.type):
                value = cast(atom, "i32")
                return value, value
            case Cast(operand=Scalar()) if is_integer(atom.operand.type):
                return atom, atom
            case Binary():
                return self._of_binary(atom)
            case Call():
                return self._of_call(atom)
            case Select() if is_integer(atom.type):
                return self._of_select(atom)
            case _:
                raise UnreadableError

    def _of_binary(self, atom: Binary) -> Ends:
        low, high = self.ends(linear(atom.lhs))
        if atom.op not in ("*", "//", "%"):
            raise UnreadableError
        if atom.op == "*" and low == high:  # the fixed operand on the right
            low, high, by = *self.ends(linear(atom.rhs)), low
            known = self.is_positive(atom.lhs)
        else:
            by, known = self.fixed(atom.rhs), self.is_positive(atom.rhs)
        if atom.op == "%" and low != high:
            remainders = smallest(i32(0), _sum_of(by, 1)), largest(i32(0), _sum_of(by, -1))
            return (i32(0), _sum_of(by, -1)) if known else remainders
        first, last = (simplify(binary(atom.op, end, by)) for end in (low, high))
        return (first, last) if known or low == high else (smallest(first, last), largest(first, last))

    def _of_call(self, atom: Call) -> Ends:
        ends = [self.ends(linear(arg)) for arg in atom.args]
        match atom.function:
            case "min":
                return smallest(ends[0][0], ends[1][0]), smallest(ends[0][1], ends[1][1])
            case "max":
                return largest(ends[0][0], ends[1][0]), largest(ends[0][1], ends[1][1])
            case "clamp":
                low, high = (smallest(largest(ends[0][i], ends[1][i]), ends[2][i]) for i in (0, 1))
                return low, high
            case "abs":
                low, high = ends[0]
                if low == high:
                    return (simplify(call("abs", low)),) * 2
                return largest(i32(0), largest(low, minus(high))), largest(minus(low), high)
            case _:
                raise UnreadableError

    def _of_select(self, atom: Select) -> Ends:
        then, otherwise = self.ends(linear(atom.then)), self.ends(linear(atom.otherwise))
        try:
            condition = self.condition(atom.condition)
        except UnreadableError:
            return smallest(then[0], otherwise[0]), largest(then[1], otherwise[1])
        low, high = (simplify(select(condition, then[i], otherwise[i])) for i in (0, 1))
        return low, high


def difference(a: Expr, b: Expr) -> Expr:
    """a - b, with what is in both cancelled."""
    return to_expr(linear(a).plus(linear(b), -1))


def minus(expr: Expr) -> Expr:
    """-expr, with the sign multiplied out."""
    return to_expr(linear(expr).times(-1))


def _sum_of(expr: Expr, constant: int) -> Expr:
    return to_expr(linear(expr).plus(Linear(constant)))


def replace_operand(expr: Unary, operand: Expr) -> Unary:
    """The same operator over another operand."""
    return Unary(expr.op, operand, expr.type, span=expr.span)
