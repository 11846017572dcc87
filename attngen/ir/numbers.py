"""`evaluate` on Python numbers: `NUMBERS` computes f32 in 64 bits, `NUMBERS_F32` rounds every result to 32.

A vec is a tuple with a value a lane, or a tuple of one value that stands for all lanes; a tensor is a number or nested
sequences.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from attngen.ir.nodes import Base
from attngen.ir.types import LIMITS, wrap

Plain: TypeAlias = bool | int | float
Value: TypeAlias = Plain | tuple[Plain, ...]

_WIDTH: Final = {"i32": 32, "i64": 64}
_SQRT_HALF: Final = math.sqrt(0.5)


def round_f32(value: float) -> float:
    """The nearest 32-bit float, ties to even.

    >>> round_f32(0.1) == 0.1, round_f32(1e39)
    (False, inf)
    """
    return ctypes.c_float(value).value


class NumberOps:
    """Ops on Python numbers; with `single`, the result of every f32 operation is rounded to 32 bits."""

    def __init__(self, *, single: bool) -> None:
        self._single = single

    def constant(self, value: Plain, base: Base) -> Value:
        """A scalar of that type."""
        return round_f32(value) if base == "f32" else value

    def widen(self, value: Value) -> Value:
        """A tuple of one value."""
        return value if isinstance(value, tuple) else (value,)

    def unary(self, op: str, operand: Value, base: Base) -> Value:
        """`-` or `~`."""
        return _each(_UNARY[base][op], operand)

    def binary(self, op: str, lhs: Value, rhs: Value, base: Base) -> Value:
        """An arithmetic, bitwise or comparison operator."""
        if op in _COMPARE:
            compare = _COMPARE[op]
            if base == "f32":
                return _each(lambda x, y: compare(round_f32(x), round_f32(y)), lhs, rhs)
            return _each(compare, lhs, rhs)
        if base == "f32":
            return self._rounded(_each(_FLOAT[op], lhs, rhs))
        if base == "bool":
            return _each(_BOOL[op], lhs, rhs)
        function, bits = _INTEGER[op], _WIDTH[base]
        return _each(lambda x, y: wrap(function(x, y, bits), base), lhs, rhs)

    def select(self, condition: Value, then: Value, otherwise: Value) -> Value:
        """`then` where the condition holds."""
        return _each(lambda c, x, y: x if c else y, condition, then, otherwise)

    def cast(self, operand: Value, source: Base, target: Base) -> Value:
        """Conversion between base types."""
        return _each(lambda x: cast_number(x, source, target), operand)

    def call(self, function: str, args: Sequence[Value], base: Base) -> Value:
        """A function of builtins.IN_IR."""
        if base == "f32":
            return self._rounded(_each(FUNCTIONS[function], *args))
        return _each(lambda *xs: wrap(INTEGER_FUNCTIONS[function](*xs), base), *args)

    def load(self, tensor: Any, indices: Sequence[Value], base: Base) -> Value:
        """One element, each index clamped."""
        convert: Callable[[Any], Plain] = {"bool": bool, "f32": float}.get(base, int)
        if not indices:
            return convert(tensor)

        def element(*index: int) -> Plain:
            here = tensor
            for i in index:
                if len(here) == 0:
                    return convert(0)
                here = here[min(max(i, 0), len(here) - 1)]
            return convert(here)

        return _each(element, *indices)

    def lane_sum(self, operand: Value, lanes: int) -> Value:
        """The sum over the lanes, in order."""
        total = 0.0
        for x in _lanes(operand, lanes):
            total = round_f32(total + x) if self._single else total + x
        return total

    def lane_partner(self, operand: Value, partner: str, lanes: int) -> Value:
        """The lane's partner in every lane."""
        xs = _lanes(operand, lanes)
        if partner == "half":
            return tuple(xs[(d + lanes // 2) % lanes] for d in range(lanes))
        return tuple(xs[d ^ 1] if d ^ 1 < lanes else type(xs[d])(0) for d in range(lanes))

    def lane_at(self, operand: Value, index: Value, lanes: int, *, vec: bool) -> Value:
        """The lane with the given number, clamped."""
        xs = _lanes(operand, lanes)
        return _each(lambda i: xs[min(max(i, 0), lanes - 1)], index)

    def count(self, value: Value) -> int:
        """The number itself."""
        assert not isinstance(value, tuple)
        return int(value)

    def _rounded(self, value: Value) -> Value:
        return _each(round_f32, value) if self._single else value


def _each(function: Callable[..., Plain], *args: Value) -> Value:
    if not any(isinstance(arg, tuple) for arg in args):
        return function(*args)
    tuples = [arg if isinstance(arg, tuple) else (arg,) for arg in args]
    lanes = max(len(t) for t in tuples)
    return tuple(function(*(t[d if len(t) > 1 else 0] for t in tuples)) for d in range(lanes))


def _lanes(value: Value, lanes: int) -> tuple[Plain, ...]:
    value = value if isinstance(value, tuple) else (value,)
    return value * lanes if len(value) == 1 else value


def cast_number(value: Plain, source: Base, target: Base) -> Plain:
    """One conversion of a Python number."""
    if source == target:
        return value
    if target == "f32":
        return round_f32(value)
    if source == "f32":
        value = round_f32(value)
        if target == "bool":
            return value != 0
        if math.isnan(value):
            return 0
        low, high = LIMITS[target]
        return low if value <= low else high if value >= high else int(value)
    return value != 0 if target == "bool" else wrap(int(value), target)


# Operators --------------------------------------------------------------------------------------


def _divide(x: float, y: float) -> float:
    if y != 0 or math.isnan(x) or x == 0:
        return x / y if y != 0 else math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def _float_floordiv(x: float, y: float) -> float:
    x, y = round_f32(x), round_f32(y)
    return 0.0 if y == 0 else _floor(round_f32(_divide(x, y)))


def _float_mod(x: float, y: float) -> float:
    x, y = round_f32(x), round_f32(y)
    return 0.0 if y == 0 else round_f32(x - round_f32(y * _float_floordiv(x, y)))


def _floor(x: float) -> float:
    return math.copysign(float(math.floor(x)), x) if math.isfinite(x) else x


def _ceil(x: float) -> float:
    return math.copysign(float(math.ceil(x)), x) if math.isfinite(x) else x


def _round(x: float) -> float:
    return math.copysign(float(round(x)), x) if math.isfinite(x) else x


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
}
_UNARY: Final[dict[Base, dict[str, Callable[[Any], Plain]]]] = {
    "bool": {"~": lambda x: not x},
    "i32": {"-": lambda x: wrap(-x, "i32"), "~": lambda x: ~x},
    "i64": {"-": lambda x: wrap(-x, "i64"), "~": lambda x: ~x},
    "f32": {"-": lambda x: -x},
}
_BOOL: Final[dict[str, Callable[[bool, bool], bool]]] = {
    "&": lambda x, y: x and y,
    "|": lambda x, y: x or y,
    "^": lambda x, y: x != y,
}
_INTEGER: Final[dict[str, Callable[[int, int, int], int]]] = {
    "+": lambda x, y, bits: x + y,
    "-": lambda x, y, bits: x - y,
    "*": lambda x, y, bits: x * y,
    "//": lambda x, y, bits: x // y if y else 0,
    "%": lambda x, y, bits: x % y if y else 0,
    "&": lambda x, y, bits: x & y,
    "|": lambda x, y, bits: x | y,
    "^": lambda x, y, bits: x ^ y,
    "<<": lambda x, y, bits: x << (y & (bits - 1)),
    ">>": lambda x, y, bits: x >> (y & (bits - 1)),
}
_FLOAT: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": _divide,
    "//": _float_floordiv,
    "%": _float_mod,
}

# Functions --------------------------------------------------------------------------------------


def _fmin(x: float, y: float) -> float:
    return y if math.isnan(x) or y < x else x


def _fmax(x: float, y: float) -> float:
    return y if math.isnan(x) or y > x else x


def _sign(x: float) -> float:
    return float(x > 0) - float(x < 0)


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _exp2(x: float) -> float:
    return math.inf if x >= 1024.0 else math.pow(2.0, x)


def _log_with(log: Callable[[float], float]) -> Callable[[float], float]:
    def total(x: float) -> float:
        if x > 0:
            return log(x)
        return -math.inf if x == 0 else math.nan

    return total


def _log1p(x: float) -> float:
    if x > -1:
        return math.log1p(x)
    return -math.inf if x == -1 else math.nan


def _sqrt(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + _exp(-x))


def _softplus(x: float) -> float:
    return x if math.isnan(x) else max(x, 0.0) + math.log1p(_exp(-abs(x)))


def _pow(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:  # a negative base with a fractional exponent, or 0 to a negative one
        if x != 0:
            return math.nan
        return math.copysign(math.inf, x) if y % 2 == 1 else math.inf


FUNCTIONS: Final[dict[str, Callable[..., float]]] = {
    "min": _fmin,
    "max": _fmax,
    "abs": abs,
    "clamp": lambda x, lo, hi: _fmin(_fmax(x, lo), hi),
    "sign": lambda x: _sign(round_f32(x)),
    "floor": lambda x: _floor(round_f32(x)),
    "ceil": lambda x: _ceil(round_f32(x)),
    "round": lambda x: _round(round_f32(x)),
    "exp": _exp,
    "exp2": _exp2,
    "log": _log_with(math.log),
    "log2": _log_with(math.log2),
    "log1p": _log1p,
    "sqrt": _sqrt,
    "rsqrt": lambda x: _divide(1.0, _sqrt(x)),
    "sin": lambda x: math.sin(x) if math.isfinite(x) else math.nan,
    "cos": lambda x: math.cos(x) if math.isfinite(x) else math.nan,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "erf": math.erf,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1.0 + math.erf(x * _SQRT_HALF)),
    "relu": lambda x: _fmax(x, 0.0),
    "softplus": _softplus,
    "pow": _pow,
}
INTEGER_FUNCTIONS: Final[dict[str, Callable[..., int]]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "clamp": lambda x, lo, hi: min(max(x, lo), hi),
    "sign": lambda x: (x > 0) - (x < 0),
}

NUMBERS: Final = NumberOps(single=False)
NUMBERS_F32: Final = NumberOps(single=True)
