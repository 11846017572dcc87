"""What names stand for, and the nested scopes in which they are found."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from attngen.dsl import ast
from attngen.ir.build.make import Bindings
from attngen.ir.nodes import Const, Expr, ScalarParam, TensorParam, Var


@dataclass(frozen=True, slots=True)
class Local:
    """A parameter, a stage's input, a loop variable or an assigned name: always an atom."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Broken:
    """A name whose declaration was wrong; uses of it say nothing more."""


@dataclass(frozen=True, slots=True)
class Unassigned:
    """A name that is assigned only inside a loop, after that loop."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A `const`, evaluated at its first use in the scope of its declaration."""

    node: ast.Const
    scope: Scope


@dataclass(frozen=True, slots=True)
class RunTimeScalar:
    """A `scalar` of the attention."""

    param: ScalarParam


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor with its leading indices given: `iv`, or `iv[img[kv]]`."""

    tensor: TensorParam
    prefix: tuple[Expr, ...] = ()

    @property
    def rank(self) -> int:
        """How many indices are still to come."""
        return len(self.tensor.dims) - len(self.prefix)


@dataclass(frozen=True, slots=True)
class Routine:
    """A `def` or a `mask`, elaborated where it is used."""

    node: ast.Def | ast.MaskDef
    scope: Scope

    @property
    def noun(self) -> str:
        """`def` or `mask`, for messages."""
        return "mask" if isinstance(self.node, ast.MaskDef) else "def"


@dataclass(frozen=True, slots=True)
class MaskArgument:
    """A mask given to a mask: a function of the variant and the values that it captured."""

    function: str
    captured: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """Several values at once, under the lets that they need; only assignments and returns take it."""

    items: tuple[Expr, ...]
    bindings: Bindings = field(default_factory=list)


Entry: TypeAlias = Local | Broken | Unassigned | Constant | RunTimeScalar | Rows | Routine | MaskArgument
Value: TypeAlias = Expr | Pack | Rows  # what an expression can be; Rows only while indices are missing


class Scope:
    """Names of one region, then those of the regions around it."""

    def __init__(self, parent: Scope | None = None, *, title: str = "") -> None:
        self.parent = parent
        self.title = title
        self.entries: dict[str, Entry] = {}
        self.hidden: dict[str, str] = {}  # names that look visible and aren't -> why

    def lookup(self, name: str) -> Entry | None:
        """The innermost meaning of a name."""
        entry = self.entries.get(name)
        if entry is None and self.parent is not None:
            return self.parent.lookup(name)
        return entry

    def why_hidden(self, name: str) -> str | None:
        """Why a name that is declared somewhere can't be seen from here."""
        if name in self.hidden:
            return self.hidden[name]
        return self.parent.why_hidden(name) if self.parent else None

    def names(self) -> Iterator[str]:
        """Every visible name, innermost first."""
        yield from self.entries
        if self.parent is not None:
            yield from self.parent.names()


class Capture(Scope):
    """The scope of a mask given as an argument: locals from outside become parameters of its function."""

    def __init__(self, parent: Scope, fresh: Callable[[str], str]) -> None:
        super().__init__(parent, title=parent.title)
        self._fresh = fresh
        self.captured: dict[Expr, Var] = {}

    def lookup(self, name: str) -> Entry | None:
        """The meaning of a name, with outside values replaced by parameters."""
        entry = super().lookup(name)
        match entry:
            case Local(expr):
                return Local(self._param(expr))
            case Rows(tensor, prefix):
                return Rows(tensor, tuple(map(self._param, prefix)))
            case MaskArgument(function, captured):
                return MaskArgument(function, tuple(map(self._param, captured)))
            case _:
                return entry

    def _param(self, expr: Expr) -> Expr:
        if isinstance(expr, Const):
            return expr
        if expr not in self.captured:
            base = expr.name if isinstance(expr, Var) else "t"
            self.captured[expr] = Var(self._fresh(base.split(".")[0]), expr.type, span=expr.span)
        return self.captured[expr]


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """A help text with the candidate that looks most like the name, if one does."""
    found = difflib.get_close_matches(name, list(dict.fromkeys(candidates)), n=1, cutoff=0.6)
    return f"did you mean `{found[0]}`?" if found else None
