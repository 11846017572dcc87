"""Calls of `def`s and masks: binding of arguments, and one IR function for each way that they are used.

IR functions have value parameters only.  Tensor and mask arguments are part of which function it is; the values that
they carry (the indices of a row, the locals that a mask expression captured) become further value parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from attngen.dsl import ast
from attngen.dtypes import STORAGE
from attngen.errors import Span
from attngen.ir.build import shapes, statements
from attngen.ir.build.context import Context, Fault, Instance, Place, Session, listing
from attngen.ir.build.make import Bindings, is_atom, wrap
from attngen.ir.build.scope import Capture, Local, MaskArgument, Pack, Routine, Rows, Scope, Value
from attngen.ir.nodes import Apply, Const, Expr, Function, TensorParam, Type, Var
from attngen.ir.types import BOOL, I32, describe

NOT_REMAPPABLE: Final = ("q", "row", "slot", "q_len", "kv_len")  # pos and kv don't determine them
Parameter: TypeAlias = ast.Param | ast.Name  # a value or tensor, or a mask


@dataclass(frozen=True, slots=True)
class Argument:
    """What one parameter stands for in a call: a value, rows of a tensor, or a mask."""

    param: Parameter
    meaning: Local | Rows | MaskArgument

    @property
    def passed(self) -> tuple[Expr, ...]:
        """The values that the caller hands over."""
        match self.meaning:
            case Local(expr):
                return (expr,)
            case Rows(_, prefix):
                return prefix
            case MaskArgument(_, captured):
                return captured

    @property
    def key(self) -> tuple[object, ...]:
        """What tells two functions apart that differ in this argument."""
        types = tuple(expr.type for expr in self.passed)
        match self.meaning:
            case Local():
                return types
            case Rows(tensor):
                return (tensor.name, *types)
            case MaskArgument(function):
                return (function, *types)

    def received(self, exprs: Sequence[Expr]) -> Local | Rows | MaskArgument:
        """The same meaning over other values: those that the callee sees."""
        match self.meaning:
            case Local():
                return Local(exprs[0])
            case Rows(tensor):
                return Rows(tensor, tuple(exprs))
            case MaskArgument(function):
                return MaskArgument(function, tuple(exprs))

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.param.id if isinstance(self.param, ast.Name) else self.param.name


# Calls ------------------------------------------------------------------------------------------


def bare(ctx: Context, entry: Routine | MaskArgument, node: ast.Name) -> Value:
    """A function's name where a value is needed: a mask that needs no arguments is its value."""
    if isinstance(entry, MaskArgument):
        return _applied(ctx, entry.function, entry.captured, node.span, node.id)
    if isinstance(entry.node, ast.Def):
        ctx.fail("not-a-value", f"`{node.id}` is a def", node.span, f"call it: {_signature(entry)}")
    return apply(ctx, entry, node, (), (), ())


def apply(
    ctx: Context,
    routine: Routine,
    node: ast.Expr,
    masks: tuple[ast.Expr, ...],
    args: tuple[ast.Expr, ...],
    keywords: tuple[ast.Keyword, ...],
) -> Value:
    """A call of a def or mask."""
    decl = routine.node
    arguments = [*_mask_arguments(ctx, routine, masks, node.span), *_bind(ctx, routine, args, keywords, node.span)]
    instance = _instance(ctx, routine, arguments, node.span)
    ctx.require(instance.reads, node.span, decl.name)
    if instance.function is None:
        return _in_place(ctx, routine, arguments)
    passed = tuple(expr for argument in arguments for expr in argument.passed)
    return Apply(instance.function.name, passed, None, None, instance.function.body.type, span=node.span)


def remapped(ctx: Context, mask: MaskArgument, node: ast.Call, name: str) -> Expr:
    """`inner(p, k)`: a mask argument at other positions."""
    if len(node.args) != 2 or node.keywords:
        given = len(node.args) + len(node.keywords)
        ctx.fail("wrong-arguments", f"mask `{name}` takes 2 arguments, not {given}", node.span,
                 f"write `{name}(query_position, key_position)`, or `{name}` alone for the same positions")  # fmt: skip
    reads = ctx.session.reads[mask.function]
    stuck = [index for index in NOT_REMAPPABLE if index in reads]
    if stuck:
        span = ctx.session.blame.get(mask.function, node.span)
        ctx.fail("mask-not-remappable", f"this mask reads {listing(stuck)}, but it is taken at other positions", span,
                 "only `pos` and `kv` can be re-mapped")  # fmt: skip
    values = ctx.singles(node.args)
    pos, kv = (ctx.convert(value, I32, f"a position of mask `{name}`", value.span) for value in values)
    ctx.require(reads - {"pos", "kv"}, node.span, name)
    return Apply(mask.function, mask.captured, pos, kv, BOOL, span=node.span)


def _applied(ctx: Context, function: str, args: tuple[Expr, ...], span: Span, name: str) -> Expr:
    ctx.require(ctx.session.reads[function], span, name)
    return Apply(function, args, None, None, ctx.session.functions[function].body.type, span=span)


# Arguments --------------------------------------------------------------------------------------


def _signature(routine: Routine) -> str:
    params = ", ".join(param.name for param in routine.node.params)
    masks = ""
    if isinstance(routine.node, ast.MaskDef) and routine.node.mask_params:
        masks = f"[{', '.join(param.id for param in routine.node.mask_params)}]"
    call = f"({params})" if params or isinstance(routine.node, ast.Def) else ""
    return f"{routine.node.name}{masks}{call}"


def _bind(
    ctx: Context, routine: Routine, args: tuple[ast.Expr, ...], keywords: tuple[ast.Keyword, ...], span: Span
) -> list[Argument]:
    params, name = routine.node.params, routine.node.name
    help = f"it is {_signature(routine)}"
    if len(args) > len(params):
        takes = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
        ctx.fail("wrong-arguments", f"`{name}` takes {takes}, not {len(args)}", span, help)
    given = {param.name: arg for param, arg in zip(params, args, strict=False)}
    for keyword in keywords:
        if keyword.name in given:
            ctx.fail("wrong-arguments", f"`{name}` gets `{keyword.name}` twice", keyword.span, help)
        if all(param.name != keyword.name for param in params):
            ctx.fail("wrong-arguments", f"`{name}` has no parameter `{keyword.name}`", keyword.span, help)
        given[keyword.name] = keyword.value
    missing = [param.name for param in params if param.name not in given and param.default is None]
    if missing:
        ctx.fail("wrong-arguments", f"`{name}` needs {listing(missing)}", span, help)
    arguments: list[Argument] = []
    wrong = False
    for param in params:
        try:
            arguments.append(_argument(ctx, routine, param, given.get(param.name)))
        except Fault:
            wrong = True
    if wrong:
        raise Fault
    return arguments


def _argument(ctx: Context, routine: Routine, param: ast.Param, node: ast.Expr | None) -> Argument:
    if node is None:
        assert param.default is not None, "missing arguments are reported before"
        ctx, node = ctx.within(routine.scope), param.default
    what = f"argument `{param.name}` of `{routine.node.name}`"
    if param.type.dims is not None:
        return Argument(param, _tensor_argument(ctx, routine, param, node, what))
    type = shapes.base_type(ctx, param.type)
    expr = ctx.single(node)
    lifted = Type(type.base, type.vec or expr.type.vec)  # scalar functions work elementwise on a vec
    return Argument(param, Local(ctx.convert(expr, lifted, what, node.span)))


def _tensor_argument(ctx: Context, routine: Routine, param: ast.Param, node: ast.Expr, what: str) -> Rows:
    entry: object = ctx.scope.lookup(node.id) if isinstance(node, ast.Name) else ctx.value(node)
    if not isinstance(entry, Rows):
        if isinstance(node, ast.Name):
            ctx.value(node)
        ctx.fail("wrong-type", f"{what} must be a tensor", node.span, "give the name of a tensor, without indices")
    inside = ctx.within(routine.scope)
    dtype, dims = shapes.storage(inside, param.type), shapes.shape(inside, param.type)
    tensor, actual = entry.tensor, entry.tensor.dims[len(entry.prefix) :]
    have, want = STORAGE[tensor.dtype].load, STORAGE[dtype].load
    shown = f"[{', '.join(map(str, actual))}]"
    if have != want:
        ctx.fail("shape-mismatch", f"{what} must hold {want}, but `{tensor.name}` holds {have}", node.span)
    if len(dims) != len(actual):
        ctx.fail("shape-mismatch", f"{what} must have {len(dims)} dimensions, but `{tensor.name}` has {shown}",
                 node.span)  # fmt: skip
    bound: dict[int | str, int | str] = {}
    for dim, size in zip(dims, actual, strict=True):
        exact = isinstance(dim, int) or dim in shapes.DIMENSIONS
        if size != (dim if exact else bound.setdefault(dim, size)):
            ctx.fail("shape-mismatch", f"{what} has dimension `{dim if exact else bound[dim]}` where "
                     f"`{tensor.name}` has `{size}`", node.span, f"`{tensor.name}` has dimensions {shown}")  # fmt: skip
    return entry


def _mask_arguments(ctx: Context, routine: Routine, nodes: tuple[ast.Expr, ...], span: Span) -> list[Argument]:
    decl = routine.node
    params = decl.mask_params if isinstance(decl, ast.MaskDef) else ()
    if len(nodes) != len(params):
        if not params:
            ctx.fail("not-a-function", f"`{decl.name}` takes no masks in `[ ]`", span, f"it is {_signature(routine)}")
        ctx.fail("wrong-arguments", f"mask `{decl.name}` takes {len(params)} mask{'s' if len(params) > 1 else ''} in "
                 f"`[ ]`, not {len(nodes)}", span, f"it is {_signature(routine)}")  # fmt: skip
    return [Argument(param, _mask_argument(ctx, node)) for param, node in zip(params, nodes, strict=True)]


def _mask_argument(ctx: Context, node: ast.Expr) -> MaskArgument:
    session = ctx.session
    entry = ctx.scope.lookup(node.id) if isinstance(node, ast.Name) else None
    if isinstance(entry, MaskArgument):
        return entry
    scope = Capture(ctx.scope, session.names.fresh)
    place = Place("a mask", None)
    body = Context(session, scope, place).single(node)
    if body.type != BOOL:
        ctx.fail("non-bool-mask", f"a mask must give bool, not {describe(body.type)}", node.span,
                 "compare: a mask is true where a key is allowed")  # fmt: skip
    if isinstance(body, Apply) and not scope.captured and body.pos is None and not body.args:
        function = body.function  # a named mask is its own function
    else:
        function = session.names.fresh("inner")
        session.functions[function] = Function(function, tuple(scope.captured.values()), body, span=node.span)
        session.reads[function] = frozenset(place.reads)
    session.blame[function] = node.span
    return MaskArgument(function, tuple(scope.captured))


# Functions --------------------------------------------------------------------------------------


def _instance(ctx: Context, routine: Routine, arguments: list[Argument], span: Span) -> Instance:
    """The function for these arguments, elaborated once; shared by all stages if it has no lanes."""
    session, decl = ctx.session, routine.node
    key = (id(decl), id(routine.scope), *(argument.key for argument in arguments))
    for variant in ((*key, "any"), (*key, ctx.place.lane)):
        if variant in session.instances:
            known = session.instances[variant]
            if known is None:
                ctx.give_up()
            return known
    if any(active is decl for active in session.active):
        ctx.fail("recursion", f"{routine.noun} `{decl.name}` calls itself", span,
                 "write a bounded `for` loop: every variant terminates")  # fmt: skip
    session.active.append(decl)
    try:
        instance = _elaborate(ctx, routine, arguments)
    except Fault:
        session.instances[(*key, "any")] = None
        raise
    finally:
        session.active.pop()
    lane = ctx.place.lane if "d" in instance.reads else "any"
    session.instances[(*key, lane)] = instance
    return instance


def _elaborate(ctx: Context, routine: Routine, arguments: list[Argument]) -> Instance:
    session, scope = ctx.session, Scope(routine.scope)
    session.seen.add(id(routine.node))
    params: list[Var] = []
    for argument in arguments:
        received = [Var(ctx.fresh(argument.name), expr.type) for expr in argument.passed]
        params.extend(received)
        scope.entries[argument.name] = argument.received(received)
    name = ctx.fresh(routine.node.name)
    bindings, value, reads = _body(ctx, routine, scope, arguments)
    if isinstance(value, Pack):
        return Instance(None, reads)
    function = Function(name, tuple(params), wrap(bindings, value), span=routine.node.span)
    session.functions[name], session.reads[name] = function, reads
    return Instance(function, reads)


def check(session: Session, routine: Routine) -> None:
    """Report the mistakes of a function that nothing calls, with arguments as it declares them."""
    decl = routine.node
    ctx = Context(session, routine.scope, Place(f"{routine.noun} `{decl.name}`", None, lane="D"))
    arguments: list[Argument] = []
    for name in decl.mask_params if isinstance(decl, ast.MaskDef) else ():
        function = Function(session.names.fresh(name.id), (), Const(True, BOOL))
        session.functions[function.name], session.reads[function.name] = function, frozenset()
        arguments.append(Argument(name, MaskArgument(function.name, ())))
    for param in decl.params:
        if param.type.dims is not None:
            dtype, dims = shapes.storage(ctx, param.type), shapes.shape(ctx, param.type)
            arguments.append(Argument(param, Rows(TensorParam(param.name, dtype, dims))))
        elif param.default is not None:
            arguments.append(_argument(ctx, routine, param, None))
        else:
            arguments.append(Argument(param, Local(Var(param.name, shapes.base_type(ctx, param.type)))))
    _instance(ctx, routine, arguments, decl.span)


def _in_place(ctx: Context, routine: Routine, arguments: list[Argument]) -> Pack:
    """The values of a def that returns a tuple, under the lets that they need."""
    scope = Scope(routine.scope)
    bindings: Bindings = []
    for argument in arguments:
        received = [_bound(ctx, argument.name, expr, bindings) for expr in argument.passed]
        scope.entries[argument.name] = argument.received(received)
    inner, value, _ = _body(ctx, routine, scope, arguments)
    assert isinstance(value, Pack), "the same arguments gave a tuple before"
    return Pack(value.items, [*bindings, *inner])


def _bound(ctx: Context, name: str, expr: Expr, bindings: Bindings) -> Expr:
    if is_atom(expr):
        return expr
    bindings.append((ctx.fresh(name), expr))
    return Var(bindings[-1][0], expr.type, span=expr.span)


def _body(
    ctx: Context, routine: Routine, scope: Scope, arguments: list[Argument]
) -> tuple[Bindings, Expr | Pack, frozenset[str]]:
    decl = routine.node
    place = Place(f"{routine.noun} `{decl.name}`", None, lane=ctx.place.lane)
    inner = Context(ctx.session, scope, place)
    bindings, value = statements.block(inner, decl.body)
    if isinstance(decl, ast.MaskDef):
        _check_mask(inner, decl, value)
    else:
        value = _returned(inner, decl, value, _is_lifted(arguments))
    return bindings, value, frozenset(place.reads)


def _is_lifted(arguments: list[Argument]) -> bool:
    """Whether a scalar parameter got a vec, so that the function works elementwise."""
    return any(
        isinstance(argument.meaning, Local)
        and isinstance(argument.param, ast.Param)
        and argument.param.type.base != "vec"
        and argument.meaning.expr.type.vec
        for argument in arguments
    )


def _check_mask(ctx: Context, decl: ast.MaskDef, value: Expr | Pack) -> None:
    if isinstance(value, Pack) or value.type.base != "bool":
        given = "a tuple" if isinstance(value, Pack) else describe(value.type)
        ctx.fail("non-bool-mask", f"mask `{decl.name}` must give bool, not {given}", decl.body.result.span,
                 "compare: a mask is true where a key is allowed")  # fmt: skip


def _returned(ctx: Context, decl: ast.Def, value: Expr | Pack, lifted: bool) -> Expr | Pack:
    if not decl.returns:
        return value
    items = value.items if isinstance(value, Pack) else (value,)
    span = decl.body.result.span
    if len(items) != len(decl.returns):
        ctx.fail("wrong-tuple", f"`{decl.name}` declares {len(decl.returns)} result"
                 f"{'s' if len(decl.returns) > 1 else ''}, but gives {len(items)}", span)  # fmt: skip
    results = []
    for item, type in zip(items, (shapes.base_type(ctx, ref) for ref in decl.returns), strict=True):
        want = Type(type.base, type.vec or (lifted and item.type.vec))
        results.append(ctx.convert(item, want, f"the result of `{decl.name}`", span, "wrong-result"))
    return Pack(tuple(results)) if isinstance(value, Pack) else results[0]
