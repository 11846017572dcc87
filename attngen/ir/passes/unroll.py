"""Expand reductions and loops over constant ranges.

Reductions become balanced trees in the order that `evaluate` defines, loops become chains of Lets, one for each carried
value and iteration.  Doesn't fold anything, and refuses more than LIMIT iterations in a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from attngen.errors import AttnError, Diagnostic, Span
from attngen.ir.evaluate import Environment, empty_reduction, evaluate, pairwise
from attngen.ir.make import BinaryOp, binary, call, i32
from attngen.ir.nodes import Const, Expr, Index, Let, Load, Loop, Reduce, Scalar, Var, Variant
from attngen.ir.numbers import NUMBERS_F32
from attngen.ir.walk import Names, copy_expr, expressions, fold_expr, map_expr, map_variant, nodes

LIMIT: Final = 4096
_JOIN: Final[dict[str, BinaryOp]] = {"any": "|", "all": "&", "sum": "+"}


def unroll(variant: Variant) -> Variant:
    """The variant without `Reduce` and `Loop` nodes; AttnError where their iterations are too many."""
    if not any(_is_loop(node) for expr in expressions(variant) for node in nodes(expr)):
        return variant
    return map_variant(variant, _Unroller(Names.of(variant)).expand)


def _is_loop(node: Expr) -> bool:
    return isinstance(node, Reduce | Loop)


def _count(expr: Reduce | Loop) -> int:
    if any(isinstance(node, Index | Scalar | Var | Load) for node in nodes(expr.count)):
        _refuse("unbounded-loop", "the length of this range is known only at run time", expr.span)
    count = evaluate(expr.count, Environment(), NUMBERS_F32)
    return max(0, NUMBERS_F32.count(count))


def _steps(node: Expr, of_operands: Sequence[int]) -> int:
    """How many iterations a node unrolls to, given those of its operands."""
    match node:
        case Reduce():
            steps = _count(node) * (1 + of_operands[1])
        case Loop():
            inits, nexts = of_operands[1 : 1 + len(node.carried)], of_operands[1 + len(node.carried) :]
            steps = sum(inits) + _count(node) * (1 + sum(nexts))
        case _:
            return sum(of_operands)
    if steps > LIMIT:
        _refuse("loop-too-long", f"this takes {steps} steps, and at most {LIMIT} are unrolled", node.span)
    return steps


class _Unroller:
    def __init__(self, names: Names) -> None:
        self._names = names

    def expand(self, expr: Expr) -> Expr:
        """Bottom-up: the body of an outer loop is expanded once and then copied."""
        if not any(_is_loop(node) for node in nodes(expr)):
            return expr
        fold_expr(expr, _steps)
        return map_expr(expr, self._one)

    def _one(self, node: Expr) -> Expr:
        match node:
            case Reduce():
                return self._reduce(node)
            case Loop():
                return self._loop(node)
            case _:
                return node

    def _reduce(self, expr: Reduce) -> Expr:
        count = _count(expr)
        if count == 0:
            return Const(empty_reduction(expr.op, expr.type.base), expr.type, span=expr.span)

        def join(lhs: Expr, rhs: Expr) -> Expr:
            return binary(_JOIN[expr.op], lhs, rhs) if expr.op in _JOIN else call(expr.op, lhs, rhs)

        def item(j: int) -> Expr:
            return copy_expr(expr.body, self._names, {expr.variable: i32(j)})

        return pairwise(0, count, item, join)

    def _loop(self, expr: Loop) -> Expr:
        count = _count(expr)
        lets: list[tuple[str, Expr]] = []
        state: dict[str, Expr] = {}
        for carry in expr.carried:
            state[carry.name] = self._bind(carry.name, carry.init, lets)
        for j in range(count):
            before = {**state, expr.variable: i32(j)}
            for carry in expr.carried:
                step = copy_expr(carry.next, self._names, before)
                state[carry.name] = self._bind(carry.name, step, lets)
        result = state[expr.result]
        for name, value in reversed(lets):
            result = Let(name, value, result, result.type, span=expr.span)
        return result

    def _bind(self, wish: str, value: Expr, lets: list[tuple[str, Expr]]) -> Expr:
        name = self._names.fresh(wish)
        lets.append((name, value))
        return Var(name, value.type, span=value.span)


def _refuse(id: str, message: str, span: Span) -> NoReturn:
    raise AttnError((Diagnostic(id, message, span, "shorten the range, or hold the result in a tensor"),))
