"""What elaboration carries around: the session of one variant, and the place where an expression stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, get_args

from attngen.dsl import ast
from attngen.errors import CATALOGUE, Report, Span
from attngen.ir.build.make import Lane, implicit, share, splat
from attngen.ir.build.scope import Broken, Local, Pack, Rows, Scope, Value
from attngen.ir.nodes import Base, Const, Expr, Function, Index, IndexName, Type, Var
from attngen.ir.roots import SIZES
from attngen.ir.types import describe, is_number, promote
from attngen.ir.walk import Names

INDEX_TYPES: Final[dict[str, Type]] = {
    name: Type("i32", vec=name == "d") if name != "lse" else Type("f32")
    for name in get_args(IndexName)
    if not name.startswith("pos_")
}


_INDICES: Final[dict[str, IndexName]] = {name: name for name in get_args(IndexName)}


class Fault(Exception):
    """An expression is wrong and the report says so already."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A function of the variant with what its callers must provide; no function where the result is a tuple."""

    function: Function | None
    reads: frozenset[str]

    @property
    def type(self) -> Type | None:
        """The type of a call, or None for a tuple, which callers elaborate in place."""
        return self.function.body.type if self.function else None


@dataclass(slots=True)
class Session:
    """Everything that belongs to the variant under construction."""

    report: Report
    names: Names
    visit: Callable[[Context, ast.Expr], Value]
    seen: set[int]  # the ids of elaborated ast.Def and ast.MaskDef
    constants: dict[int, Const | None] = field(default_factory=dict)  # by id of the ast.Const; None until it is known
    evaluating: list[ast.Const] = field(default_factory=list)  # to catch circles
    instances: dict[tuple[object, ...], Instance | None] = field(default_factory=dict)  # None where it is wrong
    functions: dict[str, Function] = field(default_factory=dict)
    reads: dict[str, frozenset[str]] = field(default_factory=dict)  # the indices that a function reads
    steps: dict[str, int] = field(default_factory=dict)  # of loop variables, where they are constant
    blame: dict[str, Span] = field(default_factory=dict)  # where a function was last given as a mask argument
    active: list[ast.Def | ast.MaskDef] = field(default_factory=list)  # being elaborated, to catch recursion


@dataclass(slots=True)
class Place:
    """A stage, a function or a constant: what it may read, and what it did read."""

    title: str  # for messages: "stage `key`"
    visible: frozenset[str] | None  # None in a function: its callers check what it reads
    lane: Lane | None = None  # the size of a vec, None in scalar stages
    rule: str | None = None  # in a constant: the id of the complaint about run-time values
    reads: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Context:
    """Where an expression is elaborated: scope for names, place for rules."""

    session: Session
    scope: Scope
    place: Place

    def fail(self, id: str, message: str, span: Span, help: str | None = None) -> NoReturn:
        """Report a mistake and give the expression up."""
        cure = CATALOGUE[id].cure
        self.session.report.add(id, message, span, help or f"{cure[0].lower()}{cure[1:].rstrip('.')}")
        raise Fault

    def within(self, scope: Scope) -> Context:
        """The same place with other names."""
        return replace(self, scope=scope)

    def fresh(self, base: str) -> str:
        """A name that the variant doesn't use yet."""
        return self.session.names.fresh(base.replace(".", "_"))

    def share(self, expr: Expr, base: str, body: Callable[[Expr], Expr]) -> Expr:
        """`body` of an expression that is computed once."""
        return share(self.session.names, expr, base, body)

    def local(self, name: str, type: Type, span: Span) -> Var:
        """Declare a variable in this scope, under a unique name."""
        var = Var(self.fresh(name), type, span=span)
        self.scope.entries[name] = Local(var)
        return var

    def poison(self, names: Iterable[str]) -> None:
        """Declare names whose value is wrong, so that their uses stay silent."""
        for name in names:
            self.scope.entries[name] = Broken()

    def counter(self, name: ast.Name, count: Expr) -> Var:
        """A fresh loop variable, which runs from 0 to one below the count."""
        var = Var(self.fresh(name.id), Type("i32"), span=name.span)
        if isinstance(count, Const):
            self.session.steps[var.name] = int(count.value)
        return var

    # Elaboration of children -----------------------------------------------------------------

    def value(self, node: ast.Expr) -> Value:
        """What an expression stands for, which need not be a single value."""
        return self.session.visit(self, node)

    # Types -----------------------------------------------------------------------------------

    def lane(self, span: Span) -> Lane:
        """The size of a vec here; a mistake where there are no lanes."""
        self.read("d", span)
        return self.place.lane or "D"

    def read(self, name: str, span: Span) -> None:
        """Note that an index is read, and complain if the place can't see it."""
        self.place.reads.add(name)
        self.require(frozenset({name}), span, None)

    def require(self, reads: frozenset[str], span: Span, reader: str | None) -> None:
        """Complain about indices that this place doesn't see; `reader` is the function that reads them."""
        place = self.place
        place.reads |= reads
        missing = [name for name in INDEX_TYPES if name in reads - place.visible] if place.visible is not None else []
        if not missing:
            return
        listed = listing(missing)
        if place.rule:
            what = f"`{reader}` reads {listed}, which" if reader else listed
            self.at_run_time(what, span, plural=len(missing) > 1)
        if "d" in missing:
            what = f"`{reader}` works on vectors, but {place.title}" if reader else place.title
            self.fail("vector-in-scalar-stage", f"{what} works on single numbers and has no lanes", span,
                      "use lanes in `query`, `key`, `value` or `output`")  # fmt: skip
        head = f"`{reader}` reads {listed}, which {place.title} can't see" if reader else None
        help = "`lse` exists in `output` alone, with softmax on" if missing == ["lse"] else sees(place)
        self.fail("not-visible", head or f"{place.title} can't see {listed}", span, help)

    def at_run_time(self, what: str, span: Span, *, plural: bool = False) -> None:
        """Complain about a value of the run where a constant is needed."""
        if self.place.rule is None:
            return
        help = "declare it as a `const`, or write a literal"
        if self.place.visible:
            help = f"constants, literals, {listing(sorted(self.place.visible))} are known then"
        message = f"{what} {'are' if plural else 'is'} known only at run time, but {self.place.title} is needed"
        self.fail(self.place.rule, f"{message} when the kernel is built", span, help)

    def give_up(self) -> NoReturn:
        """Stop where an earlier mistake was reported already."""
        raise Fault

    def single(self, node: ast.Expr) -> Expr:
        """The one value of an expression."""
        value = self.value(node)
        match value:
            case Rows(tensor, prefix):
                self.fail("wrong-rank", f"`{tensor.name}` has {counted(tensor.dims, 'dimension')}, but "
                          f"{counted(prefix, 'index is', 'indices are')} given", node.span,
                          f"give an index for each of [{', '.join(map(str, tensor.dims))}]")  # fmt: skip
            case Pack(items):
                self.fail("not-a-value", f"a tuple of {len(items)} values can't be computed with", node.span,
                          "assign it to names first: `a, b = f(x)`")  # fmt: skip
            case _:
                return value

    def singles(self, nodes: Iterable[ast.Expr]) -> list[Expr]:
        """The values of several expressions, with the mistakes of all of them."""
        results: list[Expr] = []
        wrong = False
        for node in nodes:
            try:
                results.append(self.single(node))
            except Fault:
                wrong = True
        if wrong:
            raise Fault
        return results

    def common(self, op: str, exprs: list[Expr], span: Span, base: Base | None = None) -> list[Expr]:
        """Numbers in one base type: the widest of theirs, or `base`."""
        for expr in exprs:
            if not is_number(expr.type):
                self.fail("wrong-type", f"`{op}` takes numbers, not bool", expr.span,
                          "convert with `i32(...)` or `f32(...)`; bools join with `&` and `|`")  # fmt: skip
        target = base or _widest(exprs)
        return [self.convert(expr, Type(target, expr.type.vec), f"the operand of `{op}`", span) for expr in exprs]

    def convert(self, expr: Expr, to: Type, what: str, span: Span, id: str = "wrong-type") -> Expr:
        """The expression in the type that `what` must have."""
        result = implicit(expr, to.base)
        if result is None:
            self.fail(id, f"{what} must be {describe(to)}, not {describe(expr.type)}", span,
                      conversion_help(expr.type, to))  # fmt: skip
        if to.vec and not result.type.vec:
            return splat(result, self.lane(span))
        if result.type.vec and not to.vec:
            self.fail(id, f"{what} must be {describe(to)}, not {describe(expr.type)}", span,
                      "take one lane with `x[0]`, or reduce with `sum(x)`")  # fmt: skip
        return result

    def index(self, name: IndexName, span: Span) -> Index:
        """An index or size by name."""
        self.read(name, span)
        return Index(name, INDEX_TYPES[name], span=span)


def as_index(name: str) -> IndexName | None:
    """The index or size that a name means where nothing shadows it."""
    return _INDICES[name] if name in INDEX_TYPES else None


def conversion_help(have: Type, want: Type) -> str:
    """How to get from one type to another by hand."""
    if want.base == "bool":
        return "compare it, as in `x != 0`; numbers are no bools"
    if have.base == "bool":
        return f"write `a if condition else b`, or `{want.base}(...)` for 0 and 1"
    return f"convert with `{want.base}(...)`"


def sees(place: Place) -> str:
    """A help text that lists what a stage sees."""
    visible = (place.visible or frozenset()) - SIZES
    names = [name for name in INDEX_TYPES if name in visible]
    sizes = listing([name for name in INDEX_TYPES if name in SIZES])
    return f"it sees {listing(names)} and the sizes {sizes}" if names else f"it sees the sizes {sizes}"


def counted(items: Sequence[object], singular: str, plural: str | None = None) -> str:
    """How many there are, in words that agree: `1 name`, `2 names`."""
    return f"{len(items) or 'no'} {singular if len(items) == 1 else plural or singular + 's'}"


def listing(names: Sequence[str]) -> str:
    """Names in back-quotes, as a sentence lists them."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _widest(exprs: list[Expr]) -> Base:
    """The type that operands meet in; integer literals take the type of the others."""
    firm = [expr.type for expr in exprs if not (isinstance(expr, Const) and expr.type.base == "i32")]
    met = promote(*(firm or [expr.type for expr in exprs]))
    assert met is not None, "bools are reported before"
    return met.base
