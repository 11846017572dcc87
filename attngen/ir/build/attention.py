"""One `attention` as a Variant: its parameters, its stages, and the functions that they use."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from attngen.dsl import ast
from attngen.errors import Report
from attngen.ir.build import expressions, routines, shapes, stages
from attngen.ir.build.constants import constant, evaluate
from attngen.ir.build.context import INDEX_TYPES, Context, Fault, Place, Session
from attngen.ir.build.modules import declare
from attngen.ir.build.scope import Broken, Constant, Routine, Rows, RunTimeScalar, Scope
from attngen.ir.nodes import Apply, Expr, Function, ScalarParam, TensorParam, Type, Variant
from attngen.ir.types import BASES
from attngen.ir.walk import Names, nodes

_ONCE: Final = Place("a declaration", frozenset(), rule="not-constant")


def elaborate(report: Report, file_scope: Scope, node: ast.Attention, seen: set[int]) -> Variant | None:
    """The variant, or None where the report tells why there is none; `seen` collects the functions it used."""
    before = len(report.diagnostics)
    parameters = [item.name for item in node.items if isinstance(item, ast.Scalar | ast.Tensor)]
    names = Names(frozenset({*parameters, *stages.INPUTS, *INDEX_TYPES}))
    session = Session(report, names, expressions.visit, seen)
    scope = Scope(file_scope)
    scalars, tensors = _declarations(session, scope, node)
    given: dict[str, Expr] = {}
    all_stages = [item for item in node.items if isinstance(item, ast.Stage)]
    softmax = all(stages.is_on(stage) for stage in all_stages if stage.name == "softmax")
    for stage in all_stages:
        if stage.name != "softmax":
            with suppress(Fault):
                given[stage.name] = stages.elaborate(session, scope, stage, softmax)
    _check_sink(report, node, softmax)
    check_rest(session, scope)
    if len(report.diagnostics) > before:
        return None
    functions = _reachable(session.functions, list(given.values()))
    return Variant(node.name, node.doc, scalars, tensors, functions, softmax=softmax, span=node.span, **given)  # type: ignore[arg-type]


def _check_sink(report: Report, node: ast.Attention, softmax: bool) -> None:
    for item in node.items:
        if isinstance(item, ast.Stage) and item.name == "sink" and not softmax:
            report.add("sink-without-softmax", f"`{node.name}` has a sink although softmax is off", item.span,
                       "remove the sink: there is no denominator for it to join")  # fmt: skip


# Declarations -----------------------------------------------------------------------------------


def _declarations(
    session: Session, scope: Scope, node: ast.Attention
) -> tuple[tuple[ScalarParam, ...], tuple[TensorParam, ...]]:
    """Declare everything before anything is elaborated, so that the order of lines doesn't matter."""
    ctx = Context(session, scope, _ONCE)
    items = [item for item in node.items if not isinstance(item, ast.Stage)]
    items = [item for item in items if declare(session.report, scope, item.name, Broken(), item)]
    for item in items:
        if isinstance(item, ast.Const):
            scope.entries[item.name] = Constant(item, scope)
        elif isinstance(item, ast.Def):
            scope.entries[item.name] = Routine(item, scope)
    dimensions = shapes.DIMENSIONS | {
        dim.id for item in items if isinstance(item, ast.Tensor) for dim in item.type.dims or ()
        if isinstance(dim, ast.Name)
    }  # fmt: skip
    for name in dimensions:
        scope.hidden[name] = f"`{name}` is the size of a dimension and has no value here; pass it as a `scalar`"
    scalars: list[ScalarParam] = []
    tensors: list[TensorParam] = []
    for item in items:
        try:
            if isinstance(item, ast.Scalar):
                scalars.append(_scalar(ctx, item))
                scope.entries[item.name] = RunTimeScalar(scalars[-1])
            elif isinstance(item, ast.Tensor):
                tensors.append(shapes.declare(ctx, item, dimensions))
                scope.entries[item.name] = Rows(tensors[-1])
        except Fault:
            continue
    return tuple(scalars), tuple(tensors)


def _scalar(ctx: Context, node: ast.Scalar) -> ScalarParam:
    base = node.type.base
    if node.type.dims is not None or base not in BASES:
        ctx.fail("unknown-type", f"a scalar can't have the type `{base}`", node.type.span,
                 "write bool, i32, i64 or f32; use `tensor` for several values")  # fmt: skip
    type = Type(BASES[base])
    default, bounds = None, None
    if node.default is not None:
        what = f"the default of `{node.name}`"
        value = ctx.convert(constant(ctx, node.default, what), type, what, node.default.span)
        default = evaluate(value, {})
    if node.range is not None:
        if base == "bool":
            ctx.fail("wrong-range", "a bool has no range", node.range.span, "remove `in ...`")
        low, high = shapes.number(ctx, node.range.lo), shapes.number(ctx, node.range.hi)
        shapes.check_range(ctx, low, high, BASES[base], node.range.span)
        bounds = (low, high)
        if default is not None and node.default is not None and not low <= default < high:
            ctx.fail("wrong-range", f"the default {default} of `{node.name}` is outside {low}..{high}",
                     node.default.span, "the upper end is outside")  # fmt: skip
    return ScalarParam(node.name, BASES[base], default, bounds, span=node.span)


# Checks of what no stage uses -------------------------------------------------------------------


def check_file(report: Report, scope: Scope, seen: set[int]) -> None:
    """Report the mistakes of a file's declarations that no attention used."""
    check_rest(Session(report, Names(frozenset({*stages.INPUTS, *INDEX_TYPES})), expressions.visit, seen), scope)


def check_rest(session: Session, scope: Scope) -> None:
    """Report the mistakes of declarations of a scope that nothing used."""
    ctx = Context(session, scope, _ONCE)
    for name, entry in scope.entries.items():
        try:
            if isinstance(entry, Constant):
                ctx.value(ast.Name(name, span=entry.node.span))
            elif isinstance(entry, Routine) and id(entry.node) not in session.seen:
                routines.check(session, entry)
        except Fault:
            continue


def _reachable(functions: dict[str, Function], roots: list[Expr]) -> tuple[Function, ...]:
    """The functions that the roots need, callees first."""
    order: dict[str, Function] = {}

    def visit(expr: Expr) -> None:
        for node in nodes(expr):
            if isinstance(node, Apply) and node.function not in order:
                visit(functions[node.function].body)
                order[node.function] = functions[node.function]

    for root in roots:
        visit(root)
    return tuple(order.values())
