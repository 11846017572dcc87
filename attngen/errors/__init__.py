"""What can be wrong with a variant, as data: spans, diagnostics, and the exceptions that carry them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from attngen.errors.rule import Rule
from attngen.errors.semantics import SEMANTICS
from attngen.errors.syntax import SYNTAX

__all__ = [
    "CATALOGUE",
    "NOWHERE",
    "SEMANTICS",
    "SYNTAX",
    "AttnError",
    "Diagnostic",
    "EnvironmentFault",
    "Report",
    "Rule",
    "Span",
    "render",
]

CATALOGUE: Final[dict[str, Rule]] = {**SYNTAX, **SEMANTICS}


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open stretch of source text; lines and columns count from 1."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, end: Span) -> Span:
        """The stretch from the start of this span to the end of another."""
        return Span(self.file, self.line, self.column, end.end_line, end.end_column)


NOWHERE: Final = Span("<attngen>", 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: a stable kebab-case id, a one-line headline, where it is, and the cure."""

    id: str
    message: str
    span: Span
    help: str | None = None


class AttnError(ValueError):
    """A variant is wrong.  Carries every mistake found, in source order; `str()` renders them with carets."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...], sources: dict[str, str] | None = None) -> None:
        super().__init__(diagnostics)
        self.diagnostics = diagnostics
        self.sources = sources or {}

    def __str__(self) -> str:
        return "\n\n".join(render(diagnostic, self.sources) for diagnostic in self.diagnostics)


class EnvironmentFault(RuntimeError):
    """The machine lacks something (a compiler, space, a writable folder); the message says what and the cure."""


@dataclass(slots=True)
class Report:
    """Collects diagnostics so that several mistakes are shown in one go."""

    sources: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, id: str, message: str, span: Span, help: str | None = None) -> None:
        """Record one mistake; `id` must be a row of the catalogue."""
        if id not in CATALOGUE:
            raise KeyError(f"diagnostic `{id}` has no row in errors.CATALOGUE")
        diagnostic = Diagnostic(id, message, span, help)
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def raise_if_any(self) -> None:
        """Raise `AttnError` with everything recorded so far, in source order."""
        if self.diagnostics:
            ordered = sorted(self.diagnostics, key=lambda d: (d.span.file, d.span.line, d.span.column))
            raise AttnError(tuple(ordered), self.sources)


def render(diagnostic: Diagnostic, sources: dict[str, str]) -> str:
    """The diagnostic as a terminal shows it: headline, source line, caret line, help."""
    span = diagnostic.span
    parts = [f"error[{diagnostic.id}]: {diagnostic.message}", f"  --> {span.file}:{span.line}:{span.column}"]
    lines = sources.get(span.file, "").split("\n")
    if 1 <= span.line <= len(lines):
        text = "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in lines[span.line - 1])
        end = span.end_column if span.end_line == span.line else len(text) + 1
        gutter = len(str(span.line))
        parts.append(f" {span.line} | {text}")
        parts.append(f" {' ' * gutter} | {' ' * (span.column - 1)}{'^' * max(1, end - span.column)}")
    if diagnostic.help:
        parts.append(f"  help: {diagnostic.help}")
    return "\n".join(parts)
