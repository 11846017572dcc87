"""Elaboration of expressions: names, literals, operators, comparisons and conditionals."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NoReturn

from typing_extensions import assert_never

from attngen.dsl import ast
from attngen.errors import Span
from attngen.ir.build import calls, constants, routines, tensors
from attngen.ir.build.context import INDEX_TYPES, Context, as_index
from attngen.ir.build.make import arithmetic, comparison
from attngen.ir.build.scope import (
    Broken,
    Constant,
    Local,
    MaskArgument,
    Pack,
    Routine,
    Rows,
    RunTimeScalar,
    Unassigned,
    Value,
    nearest,
)
from attngen.ir.builtins import BUILTINS
from attngen.ir.nodes import Call, Const, Expr, Scalar, Select, Type, Unary
from attngen.ir.types import BOOL, F32, I32, I64, describe, fits, is_integer, is_number, promote


def visit(ctx: Context, node: ast.Expr) -> Value:
    """What an expression stands for."""
    match node:
        case ast.Name():
            return _name(ctx, node)
        case ast.Number():
            return _number(ctx, node.value, node.span)
        case ast.Bool():
            return Const(node.value, BOOL, span=node.span)
        case ast.Unary():
            return _unary(ctx, node)
        case ast.Binary():
            return _binary(ctx, node)
        case ast.Compare():
            return _compare(ctx, node)
        case ast.Conditional():
            return _conditional(ctx, node)
        case ast.Call():
            return calls.call(ctx, node)
        case ast.Subscript():
            return tensors.subscript(ctx, node)
        case ast.Comprehension():
            return calls.reduction(ctx, node)
        case ast.Tuple():
            return Pack(tuple(ctx.singles(node.items)))
        case _:
            assert_never(node)


# Leaves -----------------------------------------------------------------------------------------


def _name(ctx: Context, node: ast.Name) -> Value:
    entry = ctx.scope.lookup(node.id)
    match entry:
        case None:
            return _index_or_unknown(ctx, node)
        case Broken():
            ctx.give_up()
        case Unassigned():
            ctx.fail("unassigned-name", f"`{node.id}` is assigned only inside the loop", node.span,
                     f"give it a value before the loop: `{node.id} = ...`")  # fmt: skip
        case Local(expr):
            if not isinstance(expr, Const):
                ctx.at_run_time(f"`{node.id}`", node.span)
            return replace(expr, span=node.span)
        case Constant():
            return replace(constants.declared(ctx, entry), span=node.span)
        case RunTimeScalar(param):
            ctx.at_run_time(f"scalar `{node.id}`", node.span)
            return Scalar(param.name, Type(param.type), span=node.span)
        case Rows():
            return tensors.load(ctx, entry, (), node.span)
        case Routine() | MaskArgument():
            return routines.bare(ctx, entry, node)
        case _:
            assert_never(entry)


def _index_or_unknown(ctx: Context, node: ast.Name) -> Value:
    index = as_index(node.id)
    if index is not None:
        return ctx.index(index, node.span)
    if node.id in BUILTINS:
        ctx.fail("not-a-value", f"`{node.id}` is a function", node.span, f"call it: {BUILTINS[node.id].signature}")
    unknown(ctx, node)


def unknown(ctx: Context, node: ast.Name) -> NoReturn:
    """Report a name that nothing declares."""
    help = ctx.scope.why_hidden(node.id) or nearest(node.id, [*ctx.scope.names(), *INDEX_TYPES])
    help = help or "declare it, or pass it as a parameter"
    ctx.fail("unknown-name", f"unknown name `{node.id}`", node.span, help)


def _number(ctx: Context, value: int | float, span: Span) -> Const:
    if isinstance(value, float):
        return Const(value, F32, span=span)
    if fits(value, "i32"):
        return Const(value, I32, span=span)
    if not fits(value, "i64"):
        ctx.fail("number-too-large", f"`{value}` doesn't fit 64 bits", span, "use a smaller number, or a float")
    return Const(value, I64, span=span)


# Operators --------------------------------------------------------------------------------------


def _unary(ctx: Context, node: ast.Unary) -> Expr:
    if node.op == "-" and isinstance(node.operand, ast.Number):
        return _number(ctx, -node.operand.value, node.span)
    operand = ctx.single(node.operand)
    if node.op == "~":
        if operand.type.base == "f32":
            ctx.fail("wrong-type", f"`~` takes a bool or an integer, not {describe(operand.type)}", node.span)
        return Unary("~", operand, operand.type, span=node.span)
    if not is_number(operand.type):
        ctx.fail("wrong-type", f"`{node.op}` takes a number, not bool", node.span, "invert a bool with `~`")
    return operand if node.op == "+" else Unary("-", operand, operand.type, span=node.span)


def _binary(ctx: Context, node: ast.Binary) -> Expr:
    lhs, rhs = ctx.singles((node.lhs, node.rhs))
    match node.op:
        case "&" | "|" | "^":
            return _bitwise(ctx, node.op, lhs, rhs, node.span)
        case "<<" | ">>":
            lhs, rhs = _integers(ctx, node.op, lhs, rhs, node.span)
            return arithmetic(node.op, lhs, rhs, node.span)
        case "**":
            return _power(ctx, lhs, rhs, node.span)
        case "/" | "//" | "%":
            if constants.is_zero(ctx, rhs):
                ctx.fail("division-by-zero", f"`{node.op}` by the constant 0", node.rhs.span)
            lhs, rhs = ctx.common(node.op, [lhs, rhs], node.span, "f32" if node.op == "/" else None)
            return arithmetic(node.op, lhs, rhs, node.span)
        case "+" | "-" | "*":
            lhs, rhs = ctx.common(node.op, [lhs, rhs], node.span)
            return arithmetic(node.op, lhs, rhs, node.span)
        case _:
            assert_never(node.op)


def _bitwise(ctx: Context, op: Literal["&", "|", "^"], lhs: Expr, rhs: Expr, span: Span) -> Expr:
    if lhs.type.base == rhs.type.base == "bool":
        return arithmetic(op, lhs, rhs, span)
    if "bool" in (lhs.type.base, rhs.type.base):
        number = rhs if lhs.type.base == "bool" else lhs
        ctx.fail("wrong-type", f"`{op}` joins a bool and {describe(number.type)}", span,
                 f"`{op}` binds closer than comparisons: write `(a < b) {op} (c < d)`")  # fmt: skip
    lhs, rhs = _integers(ctx, op, lhs, rhs, span)
    return arithmetic(op, lhs, rhs, span)


def _integers(ctx: Context, op: str, lhs: Expr, rhs: Expr, span: Span) -> list[Expr]:
    for side in (lhs, rhs):
        if not is_integer(side.type):
            ctx.fail("wrong-type", f"`{op}` takes integers, not {describe(side.type)}", side.span,
                     "convert with `i32(...)`")  # fmt: skip
    return ctx.common(op, [lhs, rhs], span)


def _power(ctx: Context, base: Expr, exponent: Expr, span: Span) -> Expr:
    base, exponent = ctx.common("**", [base, exponent], span, "f32")
    if isinstance(exponent, Const) and exponent.value == 2.0:
        return ctx.share(base, "t", lambda t: arithmetic("*", t, t, span))
    return Call("pow", (base, exponent), Type("f32", base.type.vec or exponent.type.vec), span=span)


def _compare(ctx: Context, node: ast.Compare) -> Expr:
    for middle in node.operands[1:-1]:
        if isinstance(middle, ast.Binary) and middle.op in ("&", "|", "^"):
            op = middle.op
            ctx.fail("ambiguous-comparison", f"`{op}` binds closer than the comparisons on both sides of it",
                     middle.span, f"write `(a < b) {op} (c < d)`; give a bitwise value a name first")  # fmt: skip
    return _chain(ctx, node, ctx.singles(node.operands), 0)


def _chain(ctx: Context, node: ast.Compare, operands: list[Expr], first: int) -> Expr:
    """The comparisons from `first` on, each middle operand computed once."""
    op, span = node.ops[first], node.span
    lhs, rhs = operands[first], operands[first + 1]
    if first + 1 == len(node.ops):
        return _comparison(ctx, op, lhs, rhs, span)

    def rest(shared: Expr) -> Expr:
        following = [*operands[: first + 1], shared, *operands[first + 2 :]]
        return arithmetic("&", _comparison(ctx, op, lhs, shared, span), _chain(ctx, node, following, first + 1), span)

    return ctx.share(rhs, "t", rest)


def _comparison(ctx: Context, op: ast.CompareOp, lhs: Expr, rhs: Expr, span: Span) -> Expr:
    if lhs.type.base == rhs.type.base == "bool" and op in ("==", "!="):
        return comparison(op, lhs, rhs, span)
    lhs, rhs = ctx.common(op, [lhs, rhs], span)
    return comparison(op, lhs, rhs, span)


def _conditional(ctx: Context, node: ast.Conditional) -> Expr:
    condition, then, otherwise = ctx.singles((node.condition, node.then, node.otherwise))
    if condition.type.base != "bool":
        ctx.fail("wrong-type", f"a condition must be bool, not {describe(condition.type)}", node.condition.span,
                 "compare it, as in `x != 0`")  # fmt: skip
    met = promote(then.type, otherwise.type)
    if met is None:
        ctx.fail("wrong-type", f"the two sides of a conditional are {describe(then.type)} and "
                 f"{describe(otherwise.type)}", node.span, "give both sides one type")  # fmt: skip
    if met.base != "bool":
        then, otherwise = ctx.common("if", [then, otherwise], node.span)
    vec = condition.type.vec or met.vec
    return Select(condition, then, otherwise, Type(then.type.base, vec), span=node.span)
