"""Elaboration of bodies: assignments become lets, loops carry the names that they assign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from attngen.dsl import ast
from attngen.errors import Span
from attngen.ir.build import constants
from attngen.ir.build.context import Context, Fault, as_index
from attngen.ir.build.make import Bindings, is_atom, wrap
from attngen.ir.build.scope import Broken, Constant, Local, Pack, Rows, RunTimeScalar, Scope, Unassigned
from attngen.ir.nodes import Carry, Expr, Loop, Type, Var
from attngen.ir.types import I32, describe, promote
from attngen.ir.walk import free_vars

_WIDENINGS: Final = 4  # i32, i64, f32 and vec: a carried value can't widen more often


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
    """A loop's body, which is elaborated anew for each value it must give, so that names stay unique."""

    ctx: Context
    node: ast.For
    types: Mapping[str, Type]  # of the carried names

    def start(self) -> tuple[Var, dict[str, Var]]:
        """Fresh variables for the counter and for the carried names."""
        ctx, span = self.ctx, self.node.span
        counter = Var(ctx.fresh(self.node.variable.id), I32, span=self.node.variable.span)
        return counter, {name: Var(ctx.fresh(name), type, span=span) for name, type in self.types.items()}

    def next(self, counter: Var, carried: Mapping[str, Var], name: str) -> Expr:
        """The value of `name` after one iteration."""
        scope = Scope(self.ctx.scope)
        scope.entries[self.node.variable.id] = Local(counter)
        scope.entries.update((name, Local(var)) for name, var in carried.items())
        inner = self.ctx.within(scope)
        bindings: Bindings = []
        if _run(inner, self.node.body, bindings):
            raise Fault
        entry = scope.entries[name]
        if not isinstance(entry, Local):
            inner.fail("not-a-value", f"`{name}` is a value before the loop and none after it", self.node.span)
        return wrap(bindings, entry.expr)


def _loop(ctx: Context, node: ast.For, bindings: Bindings) -> None:
    _check_target(ctx, node.variable)
    count = constants.count(ctx, node.count)
    assigned = _assigned(node.body)
    before = {name: ctx.scope.lookup(name) for name in assigned}
    inits = {name: entry.expr for name, entry in before.items() if isinstance(entry, Local)}
    types = _stable_types(ctx, node, inits)
    results = {name: _loop_value(_Iteration(ctx, node, types), count, inits, name) for name in inits}
    for name in assigned:
        if name in results:
            ctx.scope.entries[name] = Local(_bound(ctx, name, results[name], bindings))
        else:
            ctx.scope.entries[name] = Broken() if isinstance(before[name], Broken) else Unassigned()


def _stable_types(ctx: Context, node: ast.For, inits: Mapping[str, Expr]) -> dict[str, Type]:
    """The types of carried values: wide enough for what they start with and for what each iteration makes of them."""
    types = {name: init.type for name, init in inits.items()}
    for _ in range(_WIDENINGS * max(1, len(types))):
        iteration = _Iteration(ctx, node, types)
        counter, carried = iteration.start()
        if not carried:
            _check_body(iteration, counter)
        wider = {}
        for name, type in types.items():
            made = iteration.next(counter, carried, name).type
            met = promote(type, made)
            if met is None:
                ctx.fail("wrong-type", f"`{name}` is {describe(type)} before the loop and {describe(made)} after it",
                         node.span, "give it one type")  # fmt: skip
            wider[name] = met
        if wider == types:
            break
        types = wider
    return types


def _check_body(iteration: _Iteration, counter: Var) -> None:
    """Report the mistakes of a loop that carries nothing."""
    scope = Scope(iteration.ctx.scope)
    scope.entries[iteration.node.variable.id] = Local(counter)
    if _run(iteration.ctx.within(scope), iteration.node.body, []):
        raise Fault


def _loop_value(iteration: _Iteration, count: Expr, inits: Mapping[str, Expr], result: str) -> Expr:
    """The value of one carried name after the loop, carrying only what it depends on."""
    ctx, span = iteration.ctx, iteration.node.span
    counter, variables = iteration.start()
    nexts: dict[str, Expr] = {}
    pending = [result]
    while pending:
        name = pending.pop()
        if name in nexts:
            continue
        nexts[name] = iteration.next(counter, variables, name)
        used = free_vars(nexts[name])
        pending.extend(other for other, var in variables.items() if var.name in used)

    def carry(name: str) -> Carry:
        type = iteration.types[name]
        init, after = (_as(ctx, expr, type, name, span) for expr in (inits[name], nexts[name]))
        return Carry(variables[name].name, init, after)

    carried = tuple(carry(name) for name in inits if name in nexts)
    return Loop(counter.name, count, carried, variables[result].name, iteration.types[result], span=span)


def _as(ctx: Context, expr: Expr, type: Type, name: str, span: Span) -> Expr:
    return ctx.convert(expr, type, f"`{name}`", span)
