"""Which values an expression can take, from the declared ranges of its parameters.

`Ranges(variant).of(expr)` contains every value that `evaluate` can give over non-empty tensors, in 64-bit and in 32-bit
floats alike: float ends are rounded outward to 32 bits, and integer results that may leave their width are any integer.
A bool is an interval of 0 and 1.  Doesn't see what operands have in common: x - x is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attngen.dtypes import STORAGE
from attngen.ir.interval import (
    Interval,
    anything,
    binary_interval,
    call_interval,
    cast_interval,
    hull,
    negated,
    outward,
)
from attngen.ir.nodes import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Scalar,
    ScalarParam,
    Select,
    TensorParam,
    Unary,
    Var,
    Variant,
)
from attngen.ir.types import LIMITS
from attngen.ir.walk import let_spine

_LARGEST: Final = 2**31 - 1
_SIGNED: Final = ("pos", "pos_lo", "pos_hi")  # negative for the first queries where q_len > kv_len
_AT_LEAST_ONE: Final = ("group", "D", "Dv", "Hq", "Hk", "q_len")
_STORED: Final[dict[str, tuple[float, float]]] = {
    "i16": (-(2**15), 2**15 - 1),
    "i8": (-128, 127),
    "u8": (0, 255),
    "bool": (0, 1),
    "e4m3": (-448.0, 448.0),
}


class Ranges:
    """Intervals of the expressions of one variant; `variables` gives those of stage inputs and other free names."""

    def __init__(self, variant: Variant, variables: Mapping[str, Interval] | None = None) -> None:
        self._scalars = {scalar.name: scalar for scalar in variant.scalars}
        self._tensors = {tensor.name: tensor for tensor in variant.tensors}
        self._variables: dict[str, Interval] = dict(variables or {})
        for binding in variant.bindings:
            self._variables[binding.name] = self.of(binding.value)

    def of(self, expr: Expr) -> Interval:
        """The interval of an expression."""
        return self._visit(expr, {})

    def is_positive(self, expr: Expr) -> bool:
        """Whether the value is certainly above 0 (and not NaN)."""
        found = self.of(expr)
        return found.lo > 0 and not found.nan

    def _visit(self, expr: Expr, memo: dict[int, Interval]) -> Interval:
        if id(expr) not in memo:
            lets, body = let_spine(expr)
            for let in lets:
                self._variables[let.name] = self._visit(let.value, memo)
            memo[id(expr)] = self._node(body, memo)
        return memo[id(expr)]

    def _node(self, expr: Expr, memo: dict[int, Interval]) -> Interval:
        def of(operand: Expr) -> Interval:
            return self._visit(operand, memo)

        match expr:
            case Const():
                return outward(expr.value, expr.value) if expr.type.base == "f32" else Interval(expr.value, expr.value)
            case Index():
                return index_interval(expr.name)
            case Scalar():
                return declared(self._scalars.get(expr.name), expr)
            case Load():
                return declared(self._tensors.get(expr.tensor), expr)
            case Var():
                return self._variables.get(expr.name, anything(expr.type.base))
            case Unary():
                return negated(expr.op, of(expr.operand), expr.type.base)
            case Binary():
                return binary_interval(expr.op, of(expr.lhs), of(expr.rhs), expr.lhs.type.base)
            case Select():
                condition = of(expr.condition)
                if condition.lo == condition.hi:
                    return of(expr.then if condition.lo else expr.otherwise)
                return hull(of(expr.then), of(expr.otherwise))
            case Cast():
                return cast_interval(of(expr.operand), expr.operand.type.base, expr.type.base)
            case Call():
                return call_interval(expr.function, [of(arg) for arg in expr.args], expr.type.base)
            case LaneSum():
                lanes = of(expr.operand)
                return Interval(0.0, float("inf"), lanes.nan) if lanes.lo >= 0 else anything("f32")
            case LaneAt():
                return of(expr.operand)
            case Let():
                return of(expr)
            case _:  # calls and loops: gone after inline and unroll
                return anything(expr.type.base)


def index_interval(name: str) -> Interval:
    """What an index can be."""
    if name == "lse":
        return anything("f32")
    if name in _SIGNED:
        return Interval(-_LARGEST, _LARGEST)
    return Interval(1 if name in _AT_LEAST_ONE else 0, _LARGEST)


def declared(parameter: ScalarParam | TensorParam | None, expr: Scalar | Load) -> Interval:
    """What a parameter's values can be: its declared range, else what its type can hold."""
    base = expr.type.base
    if parameter is None:
        return anything(base)
    if parameter.range is not None:
        return _half_open(parameter.range, base == "f32")
    if isinstance(parameter, TensorParam) and parameter.dtype in _STORED:
        low, high = _STORED[parameter.dtype]
        return Interval(low, high, nan=STORAGE[parameter.dtype].load == "f32")
    return anything(base)


def _half_open(ends: Sequence[int | float | str], is_float: bool) -> Interval:
    """`lo..hi`; an end that names a dimension is any size."""
    low = 0 if isinstance(ends[0], str) else ends[0]
    high = _LARGEST if isinstance(ends[1], str) else ends[1]
    if is_float:
        return outward(float(low), float(high))
    return Interval(max(int(low), LIMITS["i64"][0]), int(high) - 1)
