"""Interval arithmetic on the language's numbers.

A float interval says besides whether NaN is possible; its ends are 32-bit numbers or infinities, rounded outward.
Results of the approximate functions are widened by a little more than the error that kernels may have.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from attngen.ir.nodes import Base
from attngen.ir.numbers import FUNCTIONS, round_f32
from attngen.ir.types import LIMITS

Plain = bool | int | float


@dataclass(frozen=True, slots=True)
class Interval:
    """Every value is in [lo, hi], or is NaN where `nan`."""

    lo: Plain
    hi: Plain
    nan: bool = False

    def __contains__(self, value: Plain) -> bool:
        return self.nan if value != value else self.lo <= value <= self.hi

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return float(max(abs(self.lo), abs(self.hi)))

    @property
    def infinite(self) -> bool:
        """Whether an infinity is possible."""
        return math.isinf(self.lo) or math.isinf(self.hi)


_BIT: Final = Interval(0, 1)
_ANY_FLOAT: Final = Interval(-math.inf, math.inf, nan=True)


def anything(base: Base) -> Interval:
    """Every value of a base type."""
    match base:
        case "bool":
            return _BIT
        case "f32":
            return _ANY_FLOAT
        case _:
            return Interval(*LIMITS[base])


def outward(lo: Plain, hi: Plain, nan: bool = False) -> Interval:
    """The smallest interval of 32-bit ends around [lo, hi]; anything where an end is NaN."""
    if math.isnan(lo) or math.isnan(hi):
        return _ANY_FLOAT
    low, high = round_f32(lo), round_f32(hi)
    low = _next_f32(low, up=False) if low > lo else low
    high = _next_f32(high, up=True) if high < hi else high
    return Interval(low, high, nan)


def _next_f32(x: float, *, up: bool) -> float:
    """The neighbour of a 32-bit float: the bit patterns of one sign are in the order of their magnitudes."""
    if x == 0:
        return 2.0**-149 if up else -(2.0**-149)
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    bits += 1 if (x > 0) == up else -1
    return float(struct.unpack("<f", struct.pack("<i", bits))[0])


def hull(a: Interval, b: Interval) -> Interval:
    """Whatever is in either."""
    return Interval(min(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def negated(op: str, x: Interval, base: Base) -> Interval:
    """`-x` or `~x`."""
    if op == "-":
        return Interval(-x.hi, -x.lo, x.nan) if base == "f32" else _fitting(-x.hi, -x.lo, base)
    return Interval(1 - x.hi, 1 - x.lo) if base == "bool" else Interval(~int(x.hi), ~int(x.lo))


def _fitting(lo: Plain, hi: Plain, base: Base) -> Interval:
    """The interval, or anything where a value may have wrapped."""
    low, high = LIMITS[base]
    return Interval(lo, hi) if low <= lo and hi <= high else Interval(low, high)


# Binary operators -------------------------------------------------------------------------------


def binary_interval(op: str, a: Interval, b: Interval, base: Base) -> Interval:
    """`a op b` on operands of a base type."""
    if op in ("==", "!=", "<", "<=", ">", ">="):
        return _comparison(op, a, b)
    match base:
        case "bool":
            return _logic(op, a, b)
        case "f32":
            return _float(op, a, b)
        case _:
            return _integer(op, a, b, base)


def _comparison(op: str, a: Interval, b: Interval) -> Interval:
    nan = a.nan or b.nan
    match op:
        case ">" | ">=":
            return _comparison({">": "<", ">=": "<="}[op], b, a)
        case "<" | "<=":
            surely = a.hi < b.lo if op == "<" else a.hi <= b.lo
            never = a.lo >= b.hi if op == "<" else a.lo > b.hi
        case _:
            surely = a.lo == a.hi == b.lo == b.hi
            never = a.hi < b.lo or b.hi < a.lo
            if op == "!=":
                return Interval(int(never), int(not surely or nan))
    return Interval(int(surely and not nan), int(not never))


def _logic(op: str, a: Interval, b: Interval) -> Interval:
    match op:
        case "&":
            return Interval(min(a.lo, b.lo), min(a.hi, b.hi))
        case "|":
            return Interval(max(a.lo, b.lo), max(a.hi, b.hi))
        case _:
            known = a.lo == a.hi and b.lo == b.hi
            return Interval(int(a.lo != b.lo), int(a.lo != b.lo)) if known else _BIT


def _product(x: Plain, y: Plain) -> Plain:
    return 0.0 if x == 0 or y == 0 else x * y


def _ratio(x: float, y: float) -> float:
    return 0.0 if math.isinf(y) else x / y


def _float(op: str, a: Interval, b: Interval) -> Interval:
    nan = a.nan or b.nan
    match op:
        case "-":
            return _float("+", a, Interval(-b.hi, -b.lo, b.nan))
        case "+":
            opposite = (math.inf in (a.hi, b.hi)) and (-math.inf in (a.lo, b.lo))
            return outward(a.lo + b.lo, a.hi + b.hi, nan or opposite)
        case "*":
            ends = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            undefined = (a.infinite and b.lo <= 0 <= b.hi) or (b.infinite and a.lo <= 0 <= a.hi)
            return outward(min(ends), max(ends), nan or undefined)
        case "/" if not b.lo <= 0 <= b.hi:
            ends = [_ratio(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            return outward(min(ends), max(ends), nan or (a.infinite and b.infinite))
        case _:
            return _ANY_FLOAT


def _integer(op: str, x: Interval, y: Interval, base: Base) -> Interval:
    a, b, c, d = int(x.lo), int(x.hi), int(y.lo), int(y.hi)
    match op:
        case "+":
            return _fitting(a + c, b + d, base)
        case "-":
            return _fitting(a - d, b - c, base)
        case "*":
            return _spanning([p * q for p in (a, b) for q in (c, d)], base)
        case "//":
            if not c <= 0 <= d:
                return _spanning([p // q for p in (a, b) for q in (c, d)], base)
            return _spanning([a, b, -a, -b, 0], base)
        case "%":
            if a >= 0 and b < c:
                return x
            return Interval(min(c + 1, 0), max(d - 1, 0))
        case "<<" if c == d:
            return _fitting(a << (c & _mask(base)), b << (c & _mask(base)), base)
        case ">>" if c == d:
            return Interval(a >> (c & _mask(base)), b >> (c & _mask(base)))
        case ">>":
            return Interval(min(a, 0), max(b, 0))
        case "&" if a >= 0 or c >= 0:
            return Interval(0, min(end for start, end in ((a, b), (c, d)) if start >= 0))
        case "|" | "^" if a >= 0 and c >= 0:
            return Interval(max(a, c) if op == "|" else 0, (1 << max(b.bit_length(), d.bit_length())) - 1)
        case _:
            return anything(base)


def _spanning(ends: Sequence[int], base: Base) -> Interval:
    return _fitting(min(ends), max(ends), base)


def _mask(base: Base) -> int:
    return 31 if base == "i32" else 63


# Casts and functions ----------------------------------------------------------------------------


def cast_interval(x: Interval, source: Base, target: Base) -> Interval:
    """A conversion between base types."""
    if source == target:
        return x
    if target == "bool":
        zero = x.lo <= 0 <= x.hi
        return Interval(int(not zero), int(x.lo != 0 or x.hi != 0 or x.nan))
    if target == "f32":
        return outward(x.lo, x.hi)
    if source == "f32":
        low, high = LIMITS[target]
        ends = [low if end <= low else high if end >= high else int(end) for end in (x.lo, x.hi)]
        return Interval(min(ends[0], 0), max(ends[1], 0)) if x.nan else Interval(ends[0], ends[1])
    return _fitting(x.lo, x.hi, target)


def call_interval(function: str, args: Sequence[Interval], base: Base) -> Interval:
    """A built-in function."""
    match function:
        case "min" | "max":
            return _extreme(min if function == "min" else max, args[0], args[1])
        case "clamp":
            return _extreme(min, _extreme(max, args[0], args[1]), args[2])
        case "relu":
            return _extreme(max, args[0], Interval(0.0, 0.0))
        case "abs":
            low = 0 if args[0].lo <= 0 <= args[0].hi else min(abs(args[0].lo), abs(args[0].hi))
            high = max(abs(args[0].lo), abs(args[0].hi))
            return Interval(low, high, args[0].nan) if base == "f32" else _fitting(low, high, base)
        case "sign":
            signs = [(end > 0) - (end < 0) for end in (args[0].lo, args[0].hi)]
            return Interval(min(signs[0], 0), max(signs[1], 0)) if args[0].nan else Interval(signs[0], signs[1])
        case "pow":
            return _power(args[0], args[1])
        case _:
            return _monotone(function, args[0])


def _extreme(function: Callable[..., Plain], a: Interval, b: Interval) -> Interval:
    """min or max; a NaN operand gives the other one."""
    result = Interval(function(a.lo, b.lo), function(a.hi, b.hi), a.nan and b.nan)
    result = hull(result, Interval(b.lo, b.hi)) if a.nan else result
    return hull(result, Interval(a.lo, a.hi, result.nan)) if b.nan else result


_STEPS: Final = ("floor", "ceil", "round")
_DOMAIN: Final = {"log": 0.0, "log2": 0.0, "sqrt": 0.0, "log1p": -1.0}  # where a growing function starts
_GROWING: Final = ("exp", "exp2", "tanh", "sigmoid", "erf", "softplus", *_DOMAIN)
_DIPS: Final = {"silu": -0.2785, "gelu": -0.17}  # a little below the minimum of x · (something from 0 to 1)


def _monotone(function: str, x: Interval) -> Interval:
    ends = FUNCTIONS[function]
    if function in _STEPS:
        return Interval(ends(x.lo), ends(x.hi), x.nan)
    if function in _GROWING:
        start = _DOMAIN.get(function, -math.inf)
        if x.hi < start:
            return _ANY_FLOAT
        return _widened(ends(max(x.lo, start)), ends(x.hi), x.nan or x.lo < start)
    if function in _DIPS:
        dip = _DIPS[function] if x.lo < 0 else 0.0
        return _widened(dip, max(x.hi, 0.0), x.nan or x.lo == -math.inf)
    if function == "rsqrt" and x.lo > 0:
        return _widened(ends(x.hi), ends(x.lo), x.nan)
    if function in ("sin", "cos"):
        return _widened(-1.0, 1.0, x.nan or x.infinite)
    return _ANY_FLOAT


def _power(x: Interval, y: Interval) -> Interval:
    """Over a positive base the extremes are at the corners."""
    if x.lo <= 0 or x.infinite or y.infinite:
        return _ANY_FLOAT
    corners = [FUNCTIONS["pow"](p, q) for p in (x.lo, x.hi) for q in (y.lo, y.hi)]
    return _widened(min(corners), max(corners), x.nan or y.nan)


def _widened(lo: float, hi: float, nan: bool) -> Interval:
    """Outward by 8 units in the last place: kernels' functions are good to 4."""
    slack = 2.0**-20
    low = lo - abs(lo) * slack if math.isfinite(lo) else lo
    return outward(low, hi + abs(hi) * slack if math.isfinite(hi) else hi, nan)
