"""The meaning of every IR node.

`evaluate` walks the tree; an `Ops` object does the arithmetic, on Python numbers (`numbers.NUMBERS`) or on tensors
(`attngen.torch_ops.TorchOps`).  What every `Ops` keeps:

- i32 and i64 wrap; `//` and `%` floor and give 0 for a zero divisor; shift counts are taken modulo the width, `>>` is
  arithmetic; abs, - and // of the smallest integer wrap.
- f32 is IEEE: nothing traps, x / 0 is inf or NaN, log of a negative is NaN.  `//` is floor(x / y) and `%` is
  x - y * (x // y); both give 0 where y is 0, as on integers.
- min and max give the other operand where one is NaN (C's fmin and fmax), so clamp(NaN, lo, hi) is lo and relu(NaN)
  is 0.  sign(NaN) is 0.  Comparisons with NaN are false but for !=.  round ties to even.
- f32 to integer truncates and saturates, NaN gives 0; i64 to i32 wraps; a number to bool is x != 0 (NaN is true).
- Where f32 is computed in more than 32 bits, constants, the operands of comparisons and of casts, and the arguments of
  the step functions floor, ceil, round, sign, // and % are rounded to 32 bits first, as a kernel has them.
- A load clamps every index into its dimension; a tensor with an empty dimension loads 0.
- `sum`, `max` and `min` over a range combine pairwise, (first half) op (second half), so that their depth and rounding
  grow with the logarithm of the count; over an empty range they are 0 and the type's smallest and largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import assert_never

from attngen.ir.nodes import (
    Apply,
    Base,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Function,
    Index,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Loop,
    Reduce,
    Scalar,
    Select,
    Type,
    Unary,
    Var,
)
from attngen.ir.types import LIMITS
from attngen.ir.walk import let_spine

V = TypeVar("V")


class Ops(Protocol[V]):
    """Arithmetic on values of some kind; `base` is the base type of the operands.

    A vec value has the lanes as its last axis, and the operands of one call are all vecs or all scalars.
    """

    def constant(self, value: bool | int | float, base: Base) -> V:
        """A scalar of that type."""

    def widen(self, value: V) -> V:
        """A scalar as a vec that has the same value in every lane (its last axis may have length 1)."""

    def unary(self, op: str, operand: V, base: Base) -> V:
        """`-` or `~`."""

    def binary(self, op: str, lhs: V, rhs: V, base: Base) -> V:
        """An arithmetic, bitwise or comparison operator."""

    def select(self, condition: V, then: V, otherwise: V) -> V:
        """`then` where the condition holds."""

    def cast(self, operand: V, source: Base, target: Base) -> V:
        """Conversion between base types."""

    def call(self, function: str, args: Sequence[V], base: Base) -> V:
        """A function of builtins.IN_IR."""

    def load(self, tensor: Any, indices: Sequence[V], base: Base) -> V:
        """One element, each index clamped; `base` is the load type of the tensor."""

    def lane_sum(self, operand: V, lanes: int) -> V:
        """The sum over the lanes."""

    def lane_partner(self, operand: V, partner: str, lanes: int) -> V:
        """Lane (d + n/2) % n ("half") or d ^ 1 ("pair") in every lane d; 0 where there is no such lane."""

    def lane_at(self, operand: V, index: V, lanes: int, *, vec: bool) -> V:
        """The lane with the given number, clamped; a vec of numbers gives a vec."""

    def count(self, value: V) -> int:
        """An integer that is the same everywhere, as a Python int."""


@dataclass(frozen=True)
class Environment(Generic[V]):
    """What the leaves of an expression stand for; `lanes` is the length of vecs, and indices["d"] counts them."""

    indices: Mapping[str, V] = field(default_factory=dict)
    scalars: Mapping[str, V] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, V] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    lanes: int = 0

    def bind(self, **values: V) -> Environment[V]:
        """The same environment with more variables."""
        return replace(self, variables={**self.variables, **values})


def evaluate(expr: Expr, env: Environment[V], ops: Ops[V]) -> V:
    """The value of an expression."""
    return _Evaluator(env, ops).value(expr)


class _Evaluator(Generic[V]):
    def __init__(self, env: Environment[V], ops: Ops[V]) -> None:
        self.env, self.ops = env, ops
        self.variables = dict(env.variables)
        self.memo: dict[int, V] = {}  # shared sub-expressions; cleared where a variable is re-bound

    def value(self, expr: Expr) -> V:
        if id(expr) in self.memo:
            return self.memo[id(expr)]
        lets, body = let_spine(expr)
        for let in lets:
            self.variables[let.name] = self.value(let.value)
        result = self.memo[id(expr)] = self.node(body)
        return result

    def operand(self, expr: Expr, vec: bool) -> V:
        """A value, widened where the operation is on vecs and this operand is not."""
        value = self.value(expr)
        return self.ops.widen(value) if vec and not expr.type.vec else value

    def node(self, expr: Expr) -> V:
        ops, env = self.ops, self.env
        match expr:
            case Const():
                return self.wide(ops.constant(expr.value, expr.type.base), expr.type)
            case Index():
                return env.indices[expr.name]
            case Scalar():
                return env.scalars[expr.name]
            case Var():
                return self.variables[expr.name]
            case Load():
                indices = [self.operand(index, expr.type.vec) for index in expr.indices]
                return ops.load(env.tensors[expr.tensor], indices, expr.type.base)
            case Unary():
                return ops.unary(expr.op, self.operand(expr.operand, expr.type.vec), expr.type.base)
            case Binary():
                lhs, rhs = self.operand(expr.lhs, expr.type.vec), self.operand(expr.rhs, expr.type.vec)
                return ops.binary(expr.op, lhs, rhs, expr.lhs.type.base)
            case Select():
                parts = (expr.condition, expr.then, expr.otherwise)
                return ops.select(*(self.operand(part, expr.type.vec) for part in parts))
            case Cast():
                operand = self.operand(expr.operand, expr.type.vec)
                return ops.cast(operand, expr.operand.type.base, expr.type.base)
            case Call():
                args = [self.operand(arg, expr.type.vec) for arg in expr.args]
                return ops.call(expr.function, args, expr.args[0].type.base)
            case LaneSum():
                return ops.lane_sum(self.operand(expr.operand, True), env.lanes)
            case LaneAt():
                return self.lane_at(expr)
            case Let():
                return self.value(expr)
            case Apply():
                return self.apply(expr)
            case Reduce():
                return self.reduce(expr)
            case Loop():
                return self.loop(expr)
            case _:
                assert_never(expr)

    def wide(self, value: V, type: Type) -> V:
        return self.ops.widen(value) if type.vec else value

    def lane_at(self, expr: LaneAt) -> V:
        operand = self.operand(expr.operand, True)
        if expr.index is None:
            return self.ops.lane_partner(operand, expr.partner, self.env.lanes)
        return self.ops.lane_at(operand, self.value(expr.index), self.env.lanes, vec=expr.index.type.vec)

    def apply(self, expr: Apply) -> V:
        function = self.env.functions[expr.function]
        rebound = {"pos": expr.pos, "kv": expr.kv}
        indices = {name: self.value(index) for name, index in rebound.items() if index is not None}
        variables = {
            param.name: self.operand(arg, param.type.vec) for param, arg in zip(function.params, expr.args, strict=True)
        }
        env = replace(self.env, indices={**self.env.indices, **indices}, variables=variables)
        return self.wide_as(evaluate(function.body, env, self.ops), function.body.type, expr.type)

    def wide_as(self, value: V, type: Type, wanted: Type) -> V:
        return self.ops.widen(value) if wanted.vec and not type.vec else value

    def rebind(self, values: Mapping[str, V]) -> None:
        self.variables.update(values)
        self.memo.clear()

    def reduce(self, expr: Reduce) -> V:
        count = self.ops.count(self.value(expr.count))

        def item(j: int) -> V:
            self.rebind({expr.variable: self.ops.constant(j, "i32")})
            return self.value(expr.body)

        if count <= 0:
            identity = self.ops.constant(empty_reduction(expr.op, expr.type.base), expr.type.base)
            return self.wide(identity, expr.type)
        return pairwise(0, count, item, lambda a, b: self.combine(expr.op, a, b, expr.body.type.base))

    def combine(self, op: str, lhs: V, rhs: V, base: Base) -> V:
        match op:
            case "any":
                return self.ops.binary("|", lhs, rhs, base)
            case "all":
                return self.ops.binary("&", lhs, rhs, base)
            case "sum":
                return self.ops.binary("+", lhs, rhs, base)
            case _:
                return self.ops.call(op, [lhs, rhs], base)

    def loop(self, expr: Loop) -> V:
        count = self.ops.count(self.value(expr.count))
        state = {c.name: self.value(c.init) for c in expr.carried}
        for j in range(count):
            self.rebind({**state, expr.variable: self.ops.constant(j, "i32")})
            state = {c.name: self.value(c.next) for c in expr.carried}
        return state[expr.result]


def empty_reduction(op: str, base: Base) -> bool | int | float:
    """What a reduction over nothing gives."""
    match op:
        case "any" | "all":
            return op == "all"
        case "sum":
            return 0.0 if base == "f32" else 0
        case _:
            if base == "f32":
                return float("-inf") if op == "max" else float("inf")
            return LIMITS[base][0 if op == "max" else 1]


def pairwise(begin: int, end: int, item: Callable[[int], V], combine: Callable[[V, V], V]) -> V:
    """Combine item(begin) … item(end - 1), at least one, as a balanced tree that splits in the middle."""
    if end - begin == 1:
        return item(begin)
    middle = (begin + end) // 2
    return combine(pairwise(begin, middle, item, combine), pairwise(middle, end, item, combine))
