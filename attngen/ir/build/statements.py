"""Elaboration of bodies: assignments become lets, loops carry the names that they assign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from attngen.dsl import ast
from attngen.ir.build import constants
from attngen.ir.build.context import Context, Fault, as_index
from attngen.ir.build.make import Bindings, is_atom, wrap
from attngen.ir.build.scope import Broken, Constant, Local, Pack, Rows, RunTimeScalar, Scope, Unassigned
from attngen.ir.nodes import Carry, Expr, Loop, Type, Var
from attngen.ir.types import describe, promote
from attngen.ir.walk import copy_expr, free_vars


def block(ctx: Context, body: ast.Block) -> tuple[Bindings, Expr | Pack]:
    """The lets of a body in order, and its value; mistakes of all its lines are reported."""
    inner = ctx.within(Scope(ctx.scope))
    bindings: Bindings = []
    wrong = _run(inner, body.statements, bindings)
    value = inner.value(body.result)
    if wrong:
        raise Fault
    if isinstance(value, Rows):
        return bindings, inner.single(body.result)
    if isinstance(value, Pack):
        return [*bindings, *value.bindings], Pack(value.items)
    return bindings, value


def single(ctx: Context, body: ast.Block) -> Expr:
    """The one value of a body, under its lets."""
    bindings, value = block(ctx, body)
    if isinstance(value, Pack):
        ctx.fail("not-a-value", f"a tuple of {len(value.items)} values stands where one is needed", body.result.span)
    return wrap(bindings, value)


def _run(ctx: Context, statements: Iterable[ast.Statement], bindings: Bindings) -> bool:
    """Elaborate statements in order; whether any of them is wrong."""
    wrong = False
    for statement in statements:
        try:
            if isinstance(statement, ast.For):
                _loop(ctx, statement, bindings)
            else:
                _assign(ctx, statement, bindings)
        except Fault:
            wrong = True
            ctx.poison(_assigned((statement,)))
    return wrong


# Assignments ------------------------------------------------------------------------------------


def _assign(ctx: Context, node: ast.Assign, bindings: Bindings) -> None:
    for target in node.targets:
        _check_target(ctx, target)
    value = ctx.value(node.value)
    names = [target.id for target in node.targets]
    if isinstance(value, Pack):
        bindings.extend(value.bindings)
    items = value.items if isinstance(value, Pack) else (value,)
    if len(items) != len(names):
        ctx.fail("wrong-tuple", f"{len(names)} name{'s' if len(names) > 1 else ''} for {len(items)} value"
                 f"{'s' if len(items) > 1 else ''}", node.span, "write one name for each value")  # fmt: skip
    for name, item in zip(names, items, strict=True):
        if isinstance(item, Rows):
            prefix = tuple(_bound(ctx, name, index, bindings) for index in item.prefix)
            ctx.scope.entries[name] = Rows(item.tensor, prefix)
        else:
            ctx.scope.entries[name] = Local(_bound(ctx, name, item, bindings))


def _bound(ctx: Context, name: str, value: Expr, bindings: Bindings) -> Expr:
    """An atom with that value: the value itself, or the variable of a new let."""
    if is_atom(value):
        return value
    bindings.append((ctx.fresh(name), value))
    return Var(bindings[-1][0], value.type, span=value.span)


def _check_target(ctx: Context, target: ast.Name) -> None:
    entry = ctx.scope.lookup(target.id)
    kind = None
    if entry is None and as_index(target.id) is not None:
        kind = "an index"
    elif isinstance(entry, Constant):
        kind = "a constant"
    elif isinstance(entry, RunTimeScalar):
        kind = "a run-time scalar"
    elif isinstance(entry, Rows) and not entry.prefix:
        kind = "a tensor"
    if kind is not None:
        ctx.fail("cannot-assign", f"`{target.id}` is {kind} and can't be assigned", target.span, "use a new name")


def _assigned(statements: Iterable[ast.Statement]) -> tuple[str, ...]:
    """The names that statements assign, in order of appearance."""
    names: dict[str, None] = {}
    for statement in statements:
        if isinstance(statement, ast.For):
            names.update(dict.fromkeys(_assigned(statement.body)))
        else:
            names.update((target.id, None) for target in statement.targets)
    return tuple(names)


# Loops ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Iteration:
    """One turn of a loop: the counter, the carried names as they come in, and what each is when it goes out."""

    counter: Var
    before: dict[str, Var]
    after: dict[str, Expr]


def _loop(ctx: Context, node: ast.For, bindings: Bindings) -> None:
    _check_target(ctx, node.variable)
    count = constants.count(ctx, node.count)
    assigned = _assigned(node.body)
    entries = {name: ctx.scope.lookup(name) for name in assigned}
    inits = {name: entry.expr for name, entry in entries.items() if isinstance(entry, Local)}
    iteration = _stable_iteration(ctx, node, count, inits)
    results = {name: _loop_value(ctx, node, iteration, count, inits, name) for name in inits}
    for name in assigned:
        if name in results:
            ctx.scope.entries[name] = Local(_bound(ctx, name, results[name], bindings))
        else:
            ctx.scope.entries[name] = Broken() if isinstance(entries[name], Broken) else Unassigned()


def _stable_iteration(ctx: Context, node: ast.For, count: Expr, inits: Mapping[str, Expr]) -> _Iteration:
    """A turn whose carried names are wide enough for what they start with and for what each turn makes of them."""
    types = {name: init.type for name, init in inits.items()}
    while True:
        iteration = _iteration(ctx, node, count, types)
        wider: dict[str, Type] = {}
        for name, type in types.items():
            made = iteration.after[name].type
            met = promote(type, made)
            if met is None:
                ctx.fail("wrong-type", f"`{name}` is {describe(type)} before the loop and {describe(made)} after it",
                         node.span, "give it one type")  # fmt: skip
            wider[name] = met
        if wider == types:  # types only widen, and there are few of them
            return iteration
        types = wider


def _iteration(ctx: Context, node: ast.For, count: Expr, types: Mapping[str, Type]) -> _Iteration:
    scope = Scope(ctx.scope)
    counter = ctx.counter(node.variable, count)
    before = {name: Var(ctx.fresh(name), type, span=node.span) for name, type in types.items()}
    scope.entries[node.variable.id] = Local(counter)
    scope.entries.update((name, Local(var)) for name, var in before.items())
    inner = ctx.within(scope)
    bindings: Bindings = []
    if _run(inner, node.body, bindings):
        raise Fault
    after: dict[str, Expr] = {}
    for name in types:
        entry = scope.entries[name]
        if not isinstance(entry, Local):
            inner.fail("not-a-value", f"`{name}` is a value before the loop and none after it", node.span)
        after[name] = wrap(bindings, entry.expr)
    return _Iteration(counter, before, after)


def _loop_value(
    ctx: Context, node: ast.For, iteration: _Iteration, count: Expr, inits: Mapping[str, Expr], result: str
) -> Expr:
    """The value of one carried name after the loop, carrying only what it depends on, under names of its own."""
    needed: set[str] = set()
    pending = [result]
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            used = free_vars(iteration.after[name])
            pending.extend(other for other, var in iteration.before.items() if var.name in used)
    counter = ctx.fresh(node.variable.id)
    own = {name: ctx.fresh(name) for name in inits if name in needed}
    variables: dict[str, Expr] = {iteration.counter.name: replace(iteration.counter, name=counter)}
    variables.update(
        (before.name, replace(before, name=own[name])) for name, before in iteration.before.items() if name in own
    )

    def carry(name: str) -> Carry:
        type = iteration.before[name].type
        after = copy_expr(iteration.after[name], ctx.session.names, variables)
        what = f"`{name}`"
        return Carry(own[name], ctx.convert(inits[name], type, what, node.span),
                     ctx.convert(after, type, what, node.span))  # fmt: skip

    carried = tuple(carry(name) for name in own)
    return Loop(counter, count, carried, own[result], iteration.before[result].type, span=node.span)
