"""Values that are known at compile time: `const`s, loop counts, dimensions, ranges, divisors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from attngen.dsl import ast
from attngen.ir.build.context import Context, Fault, Place
from attngen.ir.build.scope import Constant
from attngen.ir.evaluate import Environment
from attngen.ir.evaluate import evaluate as run
from attngen.ir.nodes import Apply, Const, Expr, Function, Index, LaneSum, Load, Scalar, Type
from attngen.ir.numbers import NUMBERS_F32
from attngen.ir.types import BASES, I32
from attngen.ir.walk import free_vars, nodes

Plain: TypeAlias = bool | int | float
MAX_STEPS: Final = 1024  # of one loop or reduction: they are unrolled


def evaluate(expr: Expr, functions: Mapping[str, Function]) -> Plain | None:
    """The value of a scalar expression that reads nothing of the run, or None."""
    if isinstance(expr, Const):
        return expr.value
    if expr.type.vec or not _closed(expr, functions) or free_vars(expr):
        return None
    value = run(expr, Environment(functions=functions), NUMBERS_F32)
    return None if isinstance(value, tuple) else value


def _closed(expr: Expr, functions: Mapping[str, Function], sizes: frozenset[str] = frozenset()) -> bool:
    """Whether an expression reads nothing of the run but those sizes."""
    for node in nodes(expr):
        match node:
            case Index(name):
                if name not in sizes:
                    return False
            case Scalar() | Load() | LaneSum():
                return False
            case Apply(function):
                if function not in functions or not _closed(functions[function].body, functions, sizes):
                    return False
            case _:
                pass
    return True


def folded(ctx: Context, expr: Expr) -> Expr:
    """The constant that an expression amounts to, or the expression."""
    value = evaluate(expr, ctx.session.functions)
    return expr if value is None or isinstance(expr, Const) else Const(value, expr.type, span=expr.span)


def constant(ctx: Context, node: ast.Expr, what: str) -> Const:
    """The value of an expression of constants and literals."""
    expr = _compile_time(ctx, node, Place(what, frozenset(), rule="not-constant"))
    if not isinstance(expr, Const):
        ctx.fail("not-constant", f"{what} must be known at compile time", node.span, "use constants and literals")
    return expr


def count(ctx: Context, node: ast.Expr) -> Expr:
    """The number of steps of a loop: an i32 of constants, D and Dv."""
    what = "the count of a range"
    expr = _compile_time(ctx, node, Place(what, frozenset({"D", "Dv"}), rule="unbounded-loop"))
    expr = ctx.convert(expr, I32, what, node.span)
    if isinstance(expr, Const) and expr.value > MAX_STEPS:
        ctx.fail("loop-too-long", f"{expr.value} steps are too many to unroll", node.span,
                 f"at most {MAX_STEPS} are; put the values into a tensor, or find a formula")  # fmt: skip
    return expr


def _compile_time(ctx: Context, node: ast.Expr, place: Place) -> Expr:
    inner = replace(ctx, place=place)
    expr = folded(ctx, inner.single(node))
    if not isinstance(expr, Const) and not _closed(expr, ctx.session.functions, place.visible or frozenset()):
        inner.at_run_time("its value", node.span)
    return expr


def declared(ctx: Context, entry: Constant) -> Const:
    """The value of a `const`, in its declared type; a circle of constants is reported once."""
    node, session = entry.node, ctx.session
    known = session.constants.get(id(node))
    if known is not None:
        return known
    if id(node) in session.constants:
        if node in session.evaluating:
            ctx.fail("recursion", f"constant `{node.name}` needs itself", node.span, "break the circle with a literal")
        raise Fault
    session.constants[id(node)] = None
    session.evaluating.append(node)
    try:
        value = _declared(ctx.within(entry.scope), node)
    finally:
        session.evaluating.pop()
    session.constants[id(node)] = value
    return value


def _declared(ctx: Context, node: ast.Const) -> Const:
    base = node.type.base
    if base not in BASES or node.type.dims is not None:
        ctx.fail("unknown-type", f"a const can't have the type `{base}`", node.type.span,
                 "write bool, i32, i64 or f32")  # fmt: skip
    what = f"constant `{node.name}`"
    value = constant(ctx, node.value, what)
    result = folded(ctx, ctx.convert(value, Type(BASES[base]), what, node.value.span, "wrong-result"))
    assert isinstance(result, Const)
    return result


def is_zero(ctx: Context, expr: Expr) -> bool:
    """Whether an expression is the constant 0."""
    return expr.type.base != "bool" and evaluate(expr, ctx.session.functions) == 0
