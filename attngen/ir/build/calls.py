"""Calls by name: built-in functions, casts, sums over lanes, and reductions over a range."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from attngen.dsl import ast
from attngen.errors import Span
from attngen.ir.build import constants, routines
from attngen.ir.build.context import Context, as_index, listing
from attngen.ir.build.make import arithmetic, lane_size, pairwise, rotate, to_bool
from attngen.ir.build.scope import Broken, Local, MaskArgument, Routine, Scope, Value, nearest
from attngen.ir.builtins import BUILTINS, REDUCTIONS, Builtin
from attngen.ir.nodes import Base, Call, Cast, Const, Expr, LaneSum, Reduce, Type
from attngen.ir.types import F32, describe, is_number

ReduceOp: TypeAlias = Literal["any", "all", "sum", "max", "min"]


def call(ctx: Context, node: ast.Call) -> Value:
    """`callee(args)`."""
    match node.callee:
        case ast.Name(name):
            return _by_name(ctx, node, name)
        case ast.Subscript(ast.Name(name), masks):
            entry = ctx.scope.lookup(name)
            if isinstance(entry, Routine):
                return routines.apply(ctx, entry, node, masks, node.args, node.keywords)
        case _:
            pass
    ctx.value(node.callee)
    ctx.fail("not-a-function", "the result of an expression can't be called", node.callee.span,
             "call a def, a mask or a built-in by name; index a tensor with `[ ]`")  # fmt: skip


def _by_name(ctx: Context, node: ast.Call, name: str) -> Value:
    entry = ctx.scope.lookup(name)
    match entry:
        case Routine():
            return routines.apply(ctx, entry, node, (), node.args, node.keywords)
        case MaskArgument():
            return routines.remapped(ctx, entry, node, name)
        case Broken():
            ctx.give_up()
        case None if name in BUILTINS:
            return _builtin(ctx, BUILTINS[name], node)
        case None if name in REDUCTIONS:
            ctx.fail("wrong-arguments", f"`{name}` goes over a range", node.span,
                     f"write `{name}(e for j in range(n))`")  # fmt: skip
        case None if as_index(name) is None:
            help = ctx.scope.why_hidden(name) or nearest(name, [*ctx.scope.names(), *BUILTINS])
            help = help or "declare it with `def`, or import it"
            ctx.fail("unknown-name", f"unknown function `{name}`", node.callee.span, help)
        case _:
            ctx.fail("not-a-function", f"`{name}` is no function", node.callee.span,
                     "index a tensor with `[ ]`; multiply with `*`")  # fmt: skip


# Built-in functions -----------------------------------------------------------------------------


def _builtin(ctx: Context, row: Builtin, node: ast.Call) -> Expr:
    args = ctx.singles(_arguments(ctx, row, node))
    for arg in args:
        if row.domain != "cast" and not is_number(arg.type):
            ctx.fail("wrong-type", f"`{row.name}` takes numbers, not bool", arg.span,
                     "convert with `i32(...)` or `f32(...)`")  # fmt: skip
    match row.domain:
        case "numeric":
            args = ctx.common(row.name, args, node.span)
            type = Type(args[0].type.base, any(arg.type.vec for arg in args))
            return pairwise(row.name, args, type, node.span) if row.variadic else _ir(row, args, type, node.span)
        case "f32":
            args = ctx.common(row.name, args, node.span, "f32")
            return _ir(row, args, Type("f32", any(arg.type.vec for arg in args)), node.span)
        case "cast":
            return _cast(ctx, args[0], row.name, node.span)
        case "lanes" | "vec":
            return _over_lanes(ctx, row, args, node.span)


def _ir(row: Builtin, args: list[Expr], type: Type, span: Span) -> Expr:
    return Call(row.name, tuple(args), type, span=span)


def _arguments(ctx: Context, row: Builtin, node: ast.Call) -> list[ast.Expr]:
    help = f"it is {row.signature}"
    given: dict[str, ast.Expr] = dict(zip(row.params, node.args, strict=False))
    surplus = node.args[len(row.params) :]
    if surplus and not row.variadic:
        ctx.fail("wrong-arguments", f"`{row.name}` takes {len(row.params)} argument"
                 f"{'s' if len(row.params) > 1 else ''}, not {len(node.args)}", node.span, help)  # fmt: skip
    for keyword in node.keywords:
        if keyword.name not in row.params or keyword.name in given:
            problem = "gets `{}` twice" if keyword.name in given else "has no parameter `{}`"
            ctx.fail("wrong-arguments", f"`{row.name}` {problem.format(keyword.name)}", keyword.span, help)
        given[keyword.name] = keyword.value
    missing = [param for param in row.params if param not in given]
    if missing:
        ctx.fail("wrong-arguments", f"`{row.name}` needs {listing(missing)}", node.span, help)
    return [*(given[param] for param in row.params), *surplus]


def _cast(ctx: Context, arg: Expr, name: str, span: Span) -> Expr:
    base = cast("Base", name)
    if arg.type.base == base:
        return arg
    if base == "bool":
        return to_bool(arg, span)
    return constants.folded(ctx, Cast(arg, Type(base, arg.type.vec), span=span))


def _over_lanes(ctx: Context, row: Builtin, args: list[Expr], span: Span) -> Expr:
    args = ctx.common(row.name, args, span, "f32")
    if not any(arg.type.vec for arg in args):
        help = f"for a range write `{row.name}(e for j in range(n))`" if row.name in REDUCTIONS else None
        help = help or "pass a stage's input, or something that `d` is in"
        ctx.fail("wrong-type", f"`{row.name}` takes a vec, not {describe(args[0].type)}", span, help)
    if row.domain == "vec":
        lane = ctx.lane(span)
        partner: Literal["half", "pair"] = "half" if row.name == "rotate_half" else "pair"
        return rotate(ctx.session.names, args[0], partner, lane, span)
    operand = args[0] if len(args) == 1 else arithmetic("*", args[0], args[1], span)
    total = LaneSum(operand, F32, span=span)
    if row.name != "mean":
        return total
    lanes = Cast(lane_size(ctx.lane(span), span), F32, span=span)
    return arithmetic("/", total, lanes, span)


# Reductions -------------------------------------------------------------------------------------


def reduction(ctx: Context, node: ast.Comprehension) -> Expr:
    """`any(element for variable in range(count))`."""
    name = node.function.id
    if name not in REDUCTIONS:
        ctx.fail("not-a-function", f"`{name}` doesn't reduce", node.function.span,
                 f"reductions are {listing(REDUCTIONS)}")  # fmt: skip
    op = cast("ReduceOp", name)
    if as_index(node.variable.id) is not None:
        ctx.fail("cannot-assign", f"`{node.variable.id}` is an index and can't count", node.variable.span,
                 "use a new name")  # fmt: skip
    count = constants.count(ctx, node.count)
    if op in ("max", "min") and isinstance(count, Const) and count.value < 1:
        ctx.fail("empty-reduction", f"`{op}` over no value at all", node.span, "give the range at least one step")
    scope = Scope(ctx.scope)
    variable = ctx.counter(node.variable, count)
    scope.entries[node.variable.id] = Local(variable)
    body = ctx.within(scope).single(node.element)
    wants_bool = op in ("any", "all")
    if wants_bool == is_number(body.type):
        want = "bool" if wants_bool else "numbers"
        ctx.fail("wrong-type", f"`{op}` goes over {want}, not {describe(body.type)}", node.element.span,
                 "compare, as in `x != 0`" if wants_bool else "use `any` or `all`")  # fmt: skip
    return Reduce(op, variable.name, count, body, body.type, span=node.span)
