"""What a syntax error means to its author: friendly names of terminals, and one rule a mistake.

`explain` tries RULES in order; the first that recognises the mistake names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from attngen.dsl.layout import Word
from attngen.errors import Span

STAGES: Final = ("query", "key", "value", "logits", "mask", "sink", "scale", "output", "softmax")
STAGES_WITH_PARAM: Final = {"query": "x", "key": "x", "value": "v", "logits": "s", "output": "o"}
TOP_LEVEL: Final = ("attention", "mask", "def", "const", "from")
ITEMS: Final = ("const", "scalar", "tensor", "def")
RESERVED: Final = frozenset(
    {"from", "import", "as", "const", "scalar", "tensor", "def", "attention", "in", "for", "if", "else", "inf"}
    | {"true", "True", "false", "False"}
)

_OPERATORS: Final = frozenset(
    {"COMPARE", "OR", "XOR", "AND", "SHIFT", "PLUS", "MINUS", "STAR", "DIVIDE", "POWER", "LPAR", "LSQB", "IF"}
)
_OPERANDS: Final = frozenset({"NAME", "NUMBER", "INF", "TRUE", "FALSE", "LPAR", "PLUS", "MINUS", "TILDE"})
FRIENDLY: Final[dict[str, str]] = {
    "NAME": "a name", "NUMBER": "a number", "STRING": "a string in double quotes", "STAGE": "a stage",
    "_NL": "the end of the line", "_INDENT": "an indented block", "_DEDENT": "the end of the block",
    "$END": "the end of the file", "INF": "`inf`", "TRUE": "`true`", "FALSE": "`false`",
    "FROM": "`from`", "IMPORT": "`import`", "AS": "`as`", "CONST": "`const`", "SCALAR": "`scalar`",
    "TENSOR": "`tensor`", "DEF": "`def`", "MASK": "`mask`", "ATTENTION": "`attention`", "IN": "`in`", "FOR": "`for`",
    "RANGE": "`range`", "IF": "`if`", "ELSE": "`else`", "COMPARE": "a comparison", "OR": "`|`", "XOR": "`^`",
    "AND": "`&`", "SHIFT": "a shift", "PLUS": "`+`", "MINUS": "`-`", "STAR": "`*`", "DIVIDE": "`/`", "TILDE": "`~`",
    "POWER": "`**`", "ASSIGN": "`=`", "COLON": "`:`", "COMMA": "`,`", "DOTS": "`..`", "ARROW": "`->`", "LPAR": "`(`",
    "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
}  # fmt: skip

# Words of Python that readers try.  id, headline, help.
FOREIGN: Final[dict[str, tuple[str, str, str]]] = {
    "and": ("boolean-word", "there is no `and`", "use `&`, with brackets round each comparison"),
    "or": ("boolean-word", "there is no `or`", "use `|`, with brackets round each comparison"),
    "not": ("boolean-word", "there is no `not`", "use `~`, with brackets round the comparison"),
    "return": ("no-return", "there is no `return`", "drop the word: the last expression of a body is its value"),
    "while": ("no-while", "there is no `while`", "use `for j in range(N)` with a constant N"),
    "lambda": ("no-lambda", "there is no `lambda`", "write a `def` and call it by name"),
    "elif": ("no-if-statement", "`if` is an expression here", "write `a if condition else b`"),
    "is": ("foreign-word", "there is no `is`", "compare with `==`"),
    **{
        word: ("foreign-word", f"there is no `{word}`", "a body is assignments, `for` loops and a last expression")
        for word in (
            "pass",
            "class",
            "is",
            "None",
            "break",
            "continue",
            "with",
            "try",
            "yield",
            "assert",
            "global",
            "del",
        )
    },
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Where the parser stopped: the terminal it met, the words before it, and what it would have taken."""

    kind: str
    word: Word | None  # None for line ends and the like
    before: Sequence[Word]  # of the logical line, or of the line before where the failing one has just begun
    expected: Collection[str]
    span: Span  # of the word, or of the place just after the last word

    @property
    def previous(self) -> Word | None:
        """The word before the failure."""
        return self.before[-1] if self.before else None

    @property
    def opener(self) -> str:
        """The first word of the line, which says what it declares."""
        return self.before[0].text if self.before else ""

    @property
    def found(self) -> str:
        """The offending token as its author knows it."""
        if self.word is None:
            return FRIENDLY.get(self.kind, self.kind)
        return f"`{self.word.text if len(self.word.text) <= 40 else self.word.text[:37] + '...'}`"


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnostic without its file: id, headline, place, cure."""

    id: str
    message: str
    span: Span
    help: str | None = None


Rule: TypeAlias = Callable[[Failure], "Finding | None"]


def explain(failure: Failure) -> Finding:
    """The most helpful diagnostic for a failure of the parser."""
    for rule in RULES:
        if (finding := rule(failure)) is not None:
            return finding
    help = f"expected {describe(failure.expected)}" if failure.expected else None
    return Finding("unexpected-token", f"unexpected {failure.found}", failure.span, help)


def describe(expected: Collection[str]) -> str:
    """Terminals in words, with an expression and an operator named as such."""
    rest = set(expected)
    names = []
    if rest.issuperset(_OPERANDS):
        rest -= _OPERANDS | {"_NL"}
        names.append("an expression")
    if len(rest & _OPERATORS) > 5:
        rest -= _OPERATORS
        names.append("an operator")
    names += sorted(FRIENDLY.get(terminal, terminal) for terminal in rest)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that the author most likely meant, if one is close."""
    matches = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _foreign(failure: Failure) -> Finding | None:
    for word in (failure.word, failure.previous):
        if word is not None and word.kind == "name" and (row := FOREIGN.get(word.text)) is not None:
            return Finding(row[0], row[1], word.span, row[2])
    if failure.opener in ("while", "lambda", "return") and len(failure.before) < 4:
        row = FOREIGN[failure.opener]
        return Finding(row[0], row[1], failure.before[0].span, row[2])
    return None


def _indent(failure: Failure) -> Finding | None:
    if failure.kind == "_INDENT":
        help = "align it with the line above; only a line that ends in `:` opens a block"
        return Finding("unexpected-indent", "this line is indented for no reason", failure.span, help)
    if set(failure.expected) == {"_INDENT"}:
        return Finding("empty-body", "a body is missing after `:`", failure.span, "indent it under this line")
    return None


def _if_statement(failure: Failure) -> Finding | None:
    if failure.opener in ("if", "else", "elif"):
        help = "write `a if condition else b`"
        return Finding("no-if-statement", "`if` is an expression here", failure.before[0].span, help)
    return None


def _unknown_stage(failure: Failure) -> Finding | None:
    if "STAGE" not in failure.expected or failure.word is None:
        return None
    text = failure.word.text
    if text in ("attention", "from"):
        help = f"move `{text}` to the top level: no indentation"
        return Finding("misplaced-declaration", f"`{text}` can't stand inside an attention", failure.span, help)
    if failure.word.kind != "name":
        return None
    guess = nearest(text, (*STAGES, *ITEMS))
    help = f"did you mean `{guess}`?" if guess else f"the stages are {', '.join(STAGES)}"
    return Finding("unknown-stage", f"`{text}` is no stage and declares nothing", failure.span, help)


def _unknown_declaration(failure: Failure) -> Finding | None:
    if "ATTENTION" not in failure.expected or failure.word is None:
        return None
    text = failure.word.text
    if text in STAGES or text in ("scalar", "tensor"):
        help = "indent it under an `attention NAME:`"
        return Finding("misplaced-declaration", f"`{text}` belongs inside an attention", failure.span, help)
    if text == "import":
        help = 'write `from "masks.attn" import name`'
        return Finding("import-path", "an import starts with `from`", failure.span, help)
    guess = nearest(text, TOP_LEVEL)
    help = f"did you mean `{guess}`?" if guess else "start the line with attention, mask, def, const or from"
    return Finding("unknown-declaration", f"{failure.found} declares nothing", failure.span, help)


def _import(failure: Failure) -> Finding | None:
    if failure.opener == "from" and set(failure.expected) == {"STRING"}:
        return Finding(
            "import-path", "the file of an import is a string", failure.span, 'write `from "masks.attn" import name`'
        )
    return None


def _named_mask_inside(failure: Failure) -> Finding | None:
    if failure.opener == "mask" and failure.kind == "NAME" and "COLON" in failure.expected and len(failure.before) == 1:
        help = "write `mask:` for the stage, or move the named mask to the top level"
        return Finding("misplaced-declaration", "a named mask can't stand inside an attention", failure.span, help)
    return None


def _reserved(failure: Failure) -> Finding | None:
    word = failure.word
    if word is not None and word.kind == "name" and word.text in RESERVED and "NAME" in failure.expected:
        if word.text in ("if", "else", "for", "in") and "NUMBER" in failure.expected:
            return None  # an operand is missing before it
        return Finding("reserved-word", f"`{word.text}` is a word of the language", failure.span, "choose another name")
    return None


def _missing_else(failure: Failure) -> Finding | None:
    if "ELSE" in failure.expected and failure.kind in ("_NL", "RPAR", "COMMA", "RSQB"):
        help = "write `a if condition else b`"
        return Finding("missing-else", "this conditional has no `else`", failure.span, help)
    return None


def _range(failure: Failure) -> Finding | None:
    if set(failure.expected) == {"RANGE"}:
        return Finding("range-expected", "a loop runs over `range(N)`", failure.span, "write `for j in range(N)`")
    texts = [word.text for word in failure.before]
    if failure.kind == "COMMA" and "range" in texts:
        inside = texts[len(texts) - 1 - texts[::-1].index("range") :]
        if inside[:2] == ["range", "("] and inside.count("(") == inside.count(")") + 1:
            help = "count from 0 and add the start: `for j in range(N)`"
            return Finding("range-expected", "`range` takes one count", failure.span, help)
    return None


def _equals(failure: Failure) -> Finding | None:
    if failure.kind != "ASSIGN":
        return None
    previous = failure.previous
    if previous is not None and previous.kind == "operator" and previous.text not in (",", ":", "=", ".."):
        name = failure.before[0].text if len(failure.before) == 2 else "x"
        span = previous.span.to(failure.span)
        help = f"write `{name} = {name} {previous.text} ...`"
        return Finding("augmented-assignment", f"there is no `{previous.text}=`", span, help)
    if failure.opener == "tensor":
        return Finding("tensor-default", "a tensor has no default", failure.span, "pass it to `run`")
    return Finding("equals-sign", "`=` can't stand inside an expression", failure.span, "compare with `==`")


def _missing_type(failure: Failure) -> Finding | None:
    previous = failure.previous
    if set(failure.expected) != {"COLON"} or previous is None or previous.kind != "name":
        return None
    declared = failure.opener in ("const", "scalar", "tensor") and len(failure.before) == 2
    parameter = failure.opener in ("def", "mask") and failure.kind in ("COMMA", "RPAR", "ASSIGN")
    if not declared and not parameter:
        return None
    example = "f32[Hq]" if failure.opener == "tensor" else "i32"
    help = f"write `{previous.text}: {example}`, or another type"
    return Finding("missing-type", f"`{previous.text}` has no type", previous.span, help)


def _missing_colon(failure: Failure) -> Finding | None:
    openers = (*STAGES, "attention", "mask", "def", "for")
    if "COLON" in failure.expected and failure.opener in openers:
        return Finding(
            "missing-colon", f"expected `:` before {failure.found}", failure.span, "put a `:` before the body"
        )
    return None


def _missing_value(failure: Failure) -> Finding | None:
    if failure.opener == "const" and failure.kind == "_NL" and "ASSIGN" in failure.expected:
        return Finding("missing-value", "a const needs a value", failure.span, "write `const name: f32 = value`")
    return None


def _slice(failure: Failure) -> Finding | None:
    if failure.kind == "COLON" and "RSQB" in failure.expected:
        return Finding(
            "no-slice", "there are no slices", failure.span, "index with single numbers, as in `table[h, 0]`"
        )
    return None


def _unexpected_end(failure: Failure) -> Finding | None:
    if failure.kind in ("_NL", "_DEDENT", "$END"):
        help = f"expected {describe(failure.expected)}"
        return Finding("unexpected-end", f"{failure.found} comes too early", failure.span, help)
    return None


RULES: Final[tuple[Rule, ...]] = (
    _indent, _if_statement, _foreign, _unknown_stage, _unknown_declaration, _import, _named_mask_inside, _reserved,
    _missing_else, _range, _missing_type, _equals, _slice, _missing_value, _missing_colon, _unexpected_end,
)  # fmt: skip
