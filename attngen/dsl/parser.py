"""Text to syntax tree.  A sound file is parsed in one go, a broken one piece by piece, for all its mistakes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from lark import Lark, UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from attngen.dsl import ast
from attngen.dsl.convert import check_duplicates, convert
from attngen.dsl.layout import Layout, Line, Word, scan
from attngen.dsl.syntax import Failure, explain
from attngen.errors import Report, Span

MOST_REPORTED: Final = 30  # mistakes in one file; more are noise
_STARTS: Final = ["file", "attention_header", "attention_item", "attention_doc"]


def parse(text: str, filename: str = "<text>") -> ast.File:
    """The syntax tree of one file; raises `AttnError` with every mistake that can be told apart."""
    text = normalise(text)
    report = Report(sources={filename: text})
    lines = scan(text, filename, report)
    body = text.rstrip(" \t\n") + "\n"
    tree: ast.File | None = None
    broken = bool(report.diagnostics)
    if not broken:
        tree = _Piece("file", body, filename, lines).parse(report, quiet=True)
    if broken or (tree is None and not report.diagnostics):
        _parse_pieces(lines, body, filename, report)
        if not report.diagnostics:
            _Piece("file", body, filename, lines).parse(report)
    del report.diagnostics[MOST_REPORTED:]
    report.raise_if_any()
    assert tree is not None  # a parse that fails reports why
    return tree


def normalise(text: str) -> str:
    """Text with Unix line ends and no byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


@cache
def _lark() -> Lark:
    here = Path(__file__).parent
    shipped = here / "attn.lark"
    path = shipped if shipped.is_file() else here.parents[1] / "grammar" / "attn.lark"
    grammar = path.read_text(encoding="utf-8")
    return Lark(
        grammar, parser="lalr", lexer="contextual", start=_STARTS, postlex=Layout(), propagate_positions=True,
        maybe_placeholders=True,
    )  # fmt: skip


class _Piece:
    """A stretch of a file that one rule of the grammar describes, at its own place in the file."""

    def __init__(self, rule: str, text: str, file: str, lines: Sequence[Line]) -> None:
        self.rule, self.text, self.file, self.lines = rule, text, file, lines

    def parse(self, report: Report, quiet: bool = False) -> Any:
        """The piece's syntax tree, or None; `quiet` leaves grammatical mistakes to a later, finer parse."""
        try:
            tree = _lark().parse(self.text, start=self.rule)
        except UnexpectedInput as fault:
            if not quiet:
                finding = explain(self._failure(fault))
                report.add(finding.id, finding.message, finding.span, finding.help)
            return None
        return convert(tree, self.file, report)

    def _failure(self, fault: UnexpectedInput) -> Failure:
        words = [word for line in self.lines for word in line.words]
        if isinstance(fault, UnexpectedToken):
            token, expected = fault.token, set(fault.accepts or fault.expected)
            kind, place = token.type, (token.line or 0, token.column or 0)
        else:
            assert isinstance(fault, UnexpectedCharacters)
            expected, kind, place = set(fault.allowed or ()), "character", (fault.line, fault.column)
        index = bisect_left(words, place, key=_start)
        if kind in ("_NL", "_DEDENT", "$END"):
            return self._failure_between(kind, words[: bisect_left(words, place, key=_start)], expected)
        if kind == "_INDENT":
            return Failure(kind, words[index] if index < len(words) else None, (), expected, self._span(words, index))
        word = words[index] if index < len(words) else None
        before = words[:index]
        if set(expected) == {"_INDENT"}:
            return self._failure_between(kind, before, expected)
        return Failure(kind, word, self._same_line(before, place), expected, self._span(words, index))

    def _failure_between(self, kind: str, before: list[Word], expected: set[str]) -> Failure:
        """A failure at a line's end: its place is just after the last word."""
        if not before:
            return Failure(kind, None, (), expected, Span(self.file, 1, 1, 1, 2))
        end = before[-1].span
        span = Span(self.file, end.end_line, end.end_column, end.end_line, end.end_column + 1)
        return Failure(kind, None, self._same_line(before, (end.line, end.column)), expected, span)

    def _same_line(self, before: list[Word], place: tuple[int, int]) -> list[Word]:
        starts = [line.first for line in self.lines]
        index = max(0, bisect_left(starts, place[0] + 1) - 1)
        first = self.lines[index].first if self.lines else 0
        return [word for word in before if word.span.line >= first]

    def _span(self, words: list[Word], index: int) -> Span:
        if index < len(words):
            return words[index].span
        end = words[-1].span if words else Span(self.file, 1, 1, 1, 1)
        return Span(self.file, end.end_line, end.end_column, end.end_line, end.end_column + 1)


def _start(word: Word) -> tuple[int, int]:
    return word.span.line, word.span.column


def _parse_pieces(lines: list[Line], text: str, file: str, report: Report) -> None:
    """Report the mistakes of each declaration, and within an attention those of each item."""
    physical = text.split("\n")
    for group in _groups(lines, 0):
        sound = not any(line.broken for line in group)
        piece = _Piece("file", _at(physical, group), file, group)
        if sound and piece.parse(report, quiet=True) is not None:
            continue
        if group[0].words[0].text == "attention" and len(group) > 1:
            _parse_items(group, physical, file, report)
        elif sound:
            piece.parse(report)


def _parse_items(group: list[Line], physical: list[str], file: str, report: Report) -> None:
    header, *rest = group
    if not header.broken:
        _Piece("attention_header", _at(physical, [header]), file, [header]).parse(report)
    items = []
    for number, item in enumerate(_groups(rest, rest[0].indent)):
        if not any(line.broken for line in item):
            rule = "attention_doc" if number == 0 and item[0].words[0].kind == "string" else "attention_item"
            items.append(_Piece(rule, _at(physical, item), file, item).parse(report))
    check_duplicates(items, report)


def _groups(lines: Sequence[Line], indent: int) -> Iterator[list[Line]]:
    """Runs of lines that start with one of at most the given indentation."""
    group: list[Line] = []
    for line in lines:
        if group and line.indent <= indent:
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _at(physical: list[str], group: Sequence[Line]) -> str:
    """The group's text below as many empty lines as keep its line numbers."""
    first, last = group[0].first, group[-1].last
    return "\n" * (first - 1) + "\n".join(physical[first - 1 : last]) + "\n"
