"""Whatever the input, the front end gives a tree or diagnostics, and never another exception."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attngen.dsl import parse, parse_module, unparse
from attngen.errors import CATALOGUE, AttnError
from tests.dsl.corpus import WELL_FORMED, text_of

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
CORPUS = [text_of(path) for path in WELL_FORMED]
SOUP = (
    *(
        "attention",
        "mask",
        "def",
        "const",
        "scalar",
        "tensor",
        "from",
        "import",
        "as",
        "for",
        "in",
        "range",
        "if",
        "else",
    ),
    *(
        "query",
        "key",
        "value",
        "logits",
        "sink",
        "scale",
        "output",
        "softmax",
        "on",
        "off",
        "and",
        "or",
        "not",
        "return",
    ),
    *(
        "while",
        "lambda",
        "elif",
        "pass",
        "true",
        "inf",
        "x",
        "kv",
        "0",
        "1.5",
        "9" * 30,
        "1e999",
        "0x",
        '"a.attn"',
        '"',
        '"""',
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        ":",
        ",",
        "=",
        "==",
        "<",
        "->",
        "..",
        "+",
        "-",
        "*",
        "**",
        "//",
        "&",
        "|",
        "~",
        "<<",
        "!",
        "?",
    ),
    *("\n", "\n", "\n    ", "\n        ", "\n\t", "\r\n", "\r", "\x00", "\ufeff", "#", "é", "\u2028", " ", "    "),
)


def check(text: str) -> None:
    """Parse text; a tree must survive unparse, and a diagnostic must be catalogued, placed and printable."""
    try:
        tree = parse(text, "fuzz.attn")
    except AttnError as fault:
        assert fault.diagnostics
        lines = fault.sources["fuzz.attn"].split("\n")
        for diagnostic in fault.diagnostics:
            span = diagnostic.span
            assert diagnostic.id in CATALOGUE
            assert 1 <= span.line <= span.end_line <= len(lines)
            assert 1 <= span.column <= len(lines[span.line - 1]) + 2
            assert (span.line, span.column) < (span.end_line, span.end_column)
        str(fault).encode("utf-8")
    else:
        assert parse(unparse(tree)) == tree


@QUICK
@given(st.text())
def test_any_text(text: str) -> None:
    check(text)


@QUICK
@given(st.lists(st.sampled_from(SOUP), max_size=60))
def test_token_soup(words: list[str]) -> None:
    check(" ".join(words))
    check("".join(words))


@QUICK
@given(st.data())
def test_mutated_characters(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(CORPUS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 3)))
        new = data.draw(st.one_of(st.sampled_from(SOUP), st.just(""), st.just(text[at:end] * 2)))
        text = text[:at] + new + text[end:]
    check(text)


@QUICK
@given(st.data())
def test_mutated_lines(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(CORPUS)).split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        i, j = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["delete", "double", "swap", "indent", "dedent"])):
            case "delete" if len(lines) > 1:
                del lines[i]
            case "double":
                lines.insert(j, lines[i])
            case "swap":
                lines[i], lines[j] = lines[j], lines[i]
            case "indent":
                lines[i] = " " * data.draw(st.integers(1, 8)) + lines[i]
            case "dedent":
                lines[i] = lines[i][data.draw(st.integers(1, 8)) :]
    check("\n".join(lines))


@QUICK
@given(st.binary())
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz.attn"
    path.write_bytes(data)
    try:
        parse_module(path)
    except AttnError as fault:
        str(fault).encode("utf-8")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5000 + "1" + ")" * 5000,
        "(" * 5000,
        "-" * 5000 + "1",
        "~" * 5000 + "1",
        "1 ** " * 5000 + "1",
        "1 + " * 5000 + "1",
        "1 if 1 else " * 5000 + "1",
        "f(" * 5000 + ")" * 5000,
        "t" + "[0]" * 5000,
        "1 < " * 5000 + "1",
        "f(" + "1, " * 5000 + "1)",
        "9" * 5000,
        "0x" + "f" * 5000,
        "1e" + "9" * 5000,
    ],
    ids=lambda text: text[:12],
)
def test_huge_expressions(expression: str) -> None:
    check(f"mask f: {expression}\n")
    check(f"attention a:\n    mask: {expression}\n")


def test_deep_blocks() -> None:
    loops = "".join(f"{'    ' * (i + 1)}for i in range(1):\n" for i in range(500))
    check(f"def f():\n{loops}{'    ' * 501}x = 1\n    x\n")


def test_many_mistakes_stay_readable() -> None:
    with pytest.raises(AttnError) as caught:
        parse("mask f: kv <\n" * 1000)
    assert len(caught.value.diagnostics) == 30
