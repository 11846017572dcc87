"""Lines, indentation, brackets and characters: what can be checked before the grammar is used.

`scan` finds every mistake of that kind and cuts the text into logical lines, so that the parser can take the sound
ones apart from the broken ones.  `Layout` then turns indentation into tokens; it relies on `scan` and finds no fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from lark import Token
from lark.lark import PostLex

from attngen.errors import Report, Span

MAX_DEPTH: Final = 100

_PAIRS: Final = {")": "(", "]": "["}
_DIGITS: Final = r"[0-9]+(?:_[0-9]+)*"
_WORD: Final = re.compile(
    rf'''
      (?P<space>[ \t]+)
    | (?P<comment>\#[^\n]*)
    | (?P<newline>\n)
    | (?P<string>"""[\s\S]*?""" | "(?!"")[^"\n]*")
    | (?P<open_docstring>"""[\s\S]*)
    | (?P<open_string>"[^\n]*)
    | (?P<single_quotes>'[^'\n]*'?)
    | (?P<number>0[xX][0-9a-fA-F]+ | 0[bB][01]+
        | (?:(?:{_DIGITS})?\.{_DIGITS} | {_DIGITS}\.(?!\.) | {_DIGITS})(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<open>[(\[])
    | (?P<close>[)\]])
    | (?P<boolean>&& | \|\| | !(?!=))
    | (?P<operator>-> | \*\* | // | << | >> | <= | >= | == | != | \.\. | [-+*/%&|^~<>=:,])
    | (?P<other>[\s\S])
    ''',
    re.VERBOSE,
)
_ALNUM: Final = re.compile(r"[A-Za-z0-9_]+")
_NEEDLESS_ZERO: Final = re.compile(r"0[0-9_]+$")
# No line inside brackets starts like this, so an open bracket above it was meant to be closed.
_FRESH_START: Final = re.compile(
    r'[ \t]*((attention|mask|def|const|scalar|tensor)[ \t]+[A-Za-z_]|from[ \t]+"'
    r"|(query|key|value|logits|output)\([A-Za-z_]\w*\)[ \t]*:)"
)
_STAGE_START: Final = re.compile(r"[ \t]*(mask|sink|scale|softmax)[ \t]*:")  # or a parameter of a def, one a line
_CHARACTER_HELP: Final = {
    "?": "write `a if condition else b`",
    ";": "put each statement on a line of its own",
    "{": "the language has no `{ }`; blocks are indented",
    "}": "the language has no `{ }`; blocks are indented",
    "\\": "a line continues inside `( )` without a mark",
    "@": "the language has no decorators and no matrices; `dot(x, y)` is the product of two vecs",
}


@dataclass(frozen=True, slots=True)
class Word:
    """A token of the text; `kind` is a group name of the scanner, such as name or number."""

    kind: str
    text: str
    span: Span


@dataclass(slots=True)
class Line:
    """A logical line: it runs on through open brackets and docstrings.  `broken` lines can't be parsed."""

    first: int
    last: int
    indent: int
    words: list[Word] = field(default_factory=list)
    broken: bool = False


def scan(text: str, file: str, report: Report) -> list[Line]:
    """Cut text into its logical lines, blank ones left out, and report every mistake that needs no grammar."""
    return _Scanner(text, file, report).run()


class _Scanner:
    def __init__(self, text: str, file: str, report: Report) -> None:
        self.text, self.file, self.report = text, file, report
        self.lines: list[Line] = []
        self.line: Line | None = None
        self.brackets: list[Word] = []
        self.indents = [0]
        self.number, self.start = 1, 0  # of the physical line
        self.seen: set[str] = set()  # mistakes that are reported once a file

    def run(self) -> list[Line]:
        position = 0
        while position < len(self.text):
            match = _WORD.match(self.text, position)
            assert match is not None and match.lastgroup is not None  # the last group takes any character
            kind, value = match.lastgroup, match.group()
            if kind == "number" and (tail := _ALNUM.match(self.text, match.end())):
                kind, value = "malformed", value + tail.group()
            position += len(value)
            if kind == "newline":
                self._end_physical_line(position)
            elif kind not in ("space", "comment"):
                self._add(kind, value, position - len(value))
        self._end_line()
        return self.lines

    def _add(self, kind: str, value: str, position: int) -> None:
        line, column = self.number, position - self.start + 1
        if (breaks := value.count("\n")) != 0:
            self.number += breaks
            self.start = position + value.rindex("\n") + 1
        span = Span(self.file, line, column, self.number, position + len(value) - self.start + 1)
        word = Word(kind, value, span)
        if self.line is None:
            self.line = Line(line, line, column - 1)
            self._check_indent(self.line, word)
        self.line.words.append(word)
        self.line.last = self.number
        if kind == "open":
            self._open(self.line, word)
        elif kind == "close":
            self._close(self.line, word)
        elif kind not in ("name", "operator", "string"):
            self._check_word(self.line, word)

    def _end_physical_line(self, position: int) -> None:
        self.number, self.start = self.number + 1, position
        if not self.brackets or self._starts_afresh(position):
            self._end_line()

    def _starts_afresh(self, position: int) -> bool:
        """Whether the physical line at `position` can't continue the brackets that are open."""
        if _FRESH_START.match(self.text, position):
            return True
        words = self.line.words[:2] if self.line is not None else []
        has_params = words[0].text == "def" or [word.kind for word in words] == ["name", "name"]
        return not has_params and _STAGE_START.match(self.text, position) is not None

    def _end_line(self) -> None:
        if self.brackets and self.line is not None:
            word = self.brackets[0]
            self._fault(self.line, "unbalanced-bracket", f"`{word.text}` is never closed", word.span)
        if self.line is not None:
            self.lines.append(self.line)
        self.line = None
        self.brackets.clear()

    def _fault(self, line: Line, id: str, message: str, span: Span, help: str | None = None) -> None:
        line.broken = True
        self.report.add(id, message, span, help)

    def _fault_once(self, line: Line, id: str, message: str, span: Span, help: str | None = None) -> None:
        line.broken = True
        if id not in self.seen:
            self.seen.add(id)
            self.report.add(id, message, span, help)

    def _check_indent(self, line: Line, word: Word) -> None:
        width = line.indent
        prefix = self.text[self.start : self.start + width] if self.number == line.first else ""
        if "\t" in prefix:
            span = Span(self.file, line.first, 1, line.first, width + 1)
            self._fault_once(
                line, "tab-indentation", "a tab in the indentation", span, "indent with spaces, four a level"
            )
            return
        if not self.lines and width > 0:
            self._fault(line, "unexpected-indent", "the first line is indented", word.span, "start it in column 1")
        if width > self.indents[-1]:
            self.indents.append(width)
            if len(self.indents) > MAX_DEPTH:
                self._fault_once(line, "nesting-too-deep", f"blocks nested more than {MAX_DEPTH} deep", word.span)
            return
        while width < self.indents[-1]:
            self.indents.pop()
        if width != self.indents[-1]:
            wanted = f"align it with column {self.indents[-1] + 1} or with the block that it belongs to"
            self._fault(line, "bad-dedent", "this indentation matches no outer block", word.span, wanted)
            self.indents.append(width)

    def _open(self, line: Line, word: Word) -> None:
        self.brackets.append(word)
        if len(self.brackets) > MAX_DEPTH:
            self._fault_once(line, "nesting-too-deep", f"brackets nested more than {MAX_DEPTH} deep", word.span)

    def _close(self, line: Line, word: Word) -> None:
        if not self.brackets:
            self._fault(line, "unbalanced-bracket", f"`{word.text}` closes nothing", word.span)
            return
        opener = self.brackets.pop()
        if opener.text != _PAIRS[word.text]:
            where = f"line {opener.span.line}, column {opener.span.column}"
            message = f"`{word.text}` can't close the `{opener.text}` of {where}"
            self._fault(line, "unbalanced-bracket", message, word.span)

    def _check_word(self, line: Line, word: Word) -> None:
        text, span = word.text, word.span
        match word.kind:
            case "malformed":
                self._fault(line, "malformed-number", f"`{_short(text)}` is not a number", span)
            case "number" if _NEEDLESS_ZERO.match(text) and text.strip("0_"):
                self._fault(line, "malformed-number", f"`{_short(text)}` starts with a needless 0", span)
            case "open_docstring":
                start = Span(self.file, span.line, span.column, span.line, span.column + 3)
                self._fault(
                    line, "unterminated-docstring", "this docstring is never closed", start, 'close it with `"""`'
                )
            case "open_string":
                self._fault(line, "unterminated-string", "this string is never closed", span, 'close it with `"`')
            case "single_quotes":
                self._fault(
                    line,
                    "single-quotes",
                    "strings are written in double quotes",
                    span,
                    f'write `"{_short(text.strip(chr(39)))}"`',
                )
            case "boolean":
                cure = {"&&": "&", "||": "|", "!": "~"}[text]
                help = f"use `{cure}`, with brackets round each comparison"
                self._fault(line, "boolean-word", f"there is no `{text}`", span, help)
            case "other":
                self._check_character(line, word)

    def _check_character(self, line: Line, word: Word) -> None:
        previous = line.words[-2] if len(line.words) > 1 else None
        if word.text == "." and previous is not None and previous.kind in ("name", "close"):
            help = "call functions by name, as in `abs(x)`"
            self._fault(line, "no-attribute", "nothing here has attributes", word.span, help)
        elif not line.broken:  # one a line: the rest of it is likely of the same kind
            shown = f"`{word.text}`" if word.text.isprintable() else f"U+{ord(word.text):04X}"
            cure = _CHARACTER_HELP.get(word.text)
            self._fault(line, "unknown-character", f"{shown} means nothing here", word.span, cure)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


class Layout(PostLex):
    """Turns the indentation after each _NL into _INDENT and _DEDENT, and drops _NL inside brackets."""

    always_accept: ClassVar[tuple[str, ...]] = ("_NL",)  # type: ignore[misc]

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The stream with the line structure made explicit."""
        indents, depth = [0], 0
        token = None
        for token in stream:
            if token.type != "_NL":
                depth += (token.type in ("LPAR", "LSQB")) - (token.type in ("RPAR", "RSQB"))
                yield token
            elif depth == 0:
                yield token
                width = len(token.rpartition("\n")[2])
                if width > indents[-1]:
                    indents.append(width)
                    yield Token.new_borrow_pos("_INDENT", "", token)
                while width < indents[-1]:
                    indents.pop()
                    yield Token.new_borrow_pos("_DEDENT", "", token)
        for _ in indents[1:]:
            yield Token("_DEDENT", "") if token is None else Token.new_borrow_pos("_DEDENT", "", token)
