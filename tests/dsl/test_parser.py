"""What the trees look like, where nodes are, and that every catalogued example shows its mistake."""

from __future__ import annotations

import math

import pytest

from attngen.dsl import ast, parse
from attngen.dsl.syntax import describe
from attngen.errors import SYNTAX, AttnError, Span


def mask(text: str) -> ast.Expr:
    declared = parse(f"mask f: {text}\n").declarations[0]
    assert isinstance(declared, ast.MaskDef)
    return declared.body.result


def attention(text: str) -> ast.Attention:
    declared = parse(text).declarations[-1]
    assert isinstance(declared, ast.Attention)
    return declared


def ids(text: str) -> list[str]:
    with pytest.raises(AttnError) as caught:
        parse(text)
    return [diagnostic.id for diagnostic in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "bracketed"),
    [
        ("causal & pos - kv < n", "(causal & (pos - kv)) < n"),
        ("a | b ^ c & d << e + f * g", "a | (b ^ (c & (d << (e + (f * g)))))"),
        ("a - b - c", "(a - b) - c"),
        ("a / b * c // d % e", "(((a / b) * c) // d) % e"),
        ("-a ** -b ** c", "-(a ** (-(b ** c)))"),
        ("~a & -b", "(~a) & (-b)"),
        ("a if b else c if d else e", "a if b else (c if d else e)"),
        ("a < b == c", "a < b == c"),
        ("-a[0](b)", "-(a[0](b))"),
        ("a & b == c", "(a & b) == c"),
        ("a << b < c >> d", "(a << b) < (c >> d)"),
    ],
)
def test_precedence_is_pythons(text: str, bracketed: str) -> None:
    assert mask(text) == mask(bracketed)


def test_comparison_chains_are_one_node() -> None:
    a, b, c = (ast.Name(name) for name in "abc")
    assert mask("a < b <= c") == ast.Compare((a, b, c), ("<", "<="))
    assert mask("(a < b) <= c") == ast.Compare((ast.Compare((a, b), ("<",)), c), ("<=",))


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("0", 0), ("1_000", 1000), ("0xff", 255), ("0b101", 5), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0),
     ("1e-6", 1e-6), ("2E3", 2000.0), ("inf", math.inf), ("9223372036854775807", 2**63 - 1), ("3.4e38", 3.4e38)],
)  # fmt: skip
def test_numbers(text: str, value: float) -> None:
    number = mask(text)
    assert number == ast.Number(value)
    assert isinstance(number, ast.Number) and type(number.value) is type(value)


def test_ranges_do_not_swallow_dots() -> None:
    tensor = attention("attention a:\n    tensor t: i32[B] in 0..Docs\n    scalar s: f32 in 1...5\n").items
    assert tensor[0] == ast.Tensor(
        "t", ast.TypeRef("i32", (ast.Name("B"),)), ast.Range(ast.Number(0), ast.Name("Docs"))
    )
    assert tensor[1] == ast.Scalar("s", ast.TypeRef("f32"), ast.Range(ast.Number(1), ast.Number(0.5)))


def test_clauses_of_a_scalar_come_in_either_order() -> None:
    one = attention("attention a:\n    scalar n: i32 in 1..9 = 4\n")
    other = attention("attention a:\n    scalar n: i32 = 4 in 1..9\n")
    assert one == other


def test_words_of_the_language_are_names_elsewhere() -> None:
    names = ("mask", "query", "key", "value", "logits", "sink", "scale", "output", "softmax", "range", "on", "off")
    for name in names:
        assert mask(f"{name} + 1") == ast.Binary("+", ast.Name(name), ast.Number(1))
        tree = attention(f"attention a:\n    tensor {name}: f32[Hq]\n    sink: {name}[h]\n")
        assert isinstance(tree.items[0], ast.Tensor) and tree.items[0].name == name
        assert parse(f"def f():\n    {name} = 1\n    {name}\n")


def test_one_line_and_block_bodies_agree() -> None:
    assert attention("attention a:\n    mask: causal\n") == attention("attention a:\n    mask:\n        causal\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "", "   \n", "\n\n\n    # a comment\n", "# a comment"])
def test_line_ends_and_comments_change_nothing(end: str) -> None:
    plain = "attention a:\n    mask: causal\n    softmax: on\n"
    assert parse(plain.replace("\n", end if end.endswith("\n") else "\n") + end) == parse(plain)


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse("\ufeffattention a:\n    mask: causal\n") == parse("attention a:\n    mask: causal\n")


def test_lines_go_on_inside_brackets() -> None:
    assert mask("(kv  # a comment\n  <=\n\npos)") == mask("kv <= pos")


def test_docstrings() -> None:
    tree = parse('"""File."""\n\nattention a:\n    """First.\n\n      Indented.\n    """\n    mask: causal\n')
    assert tree.doc == "File."
    declared = tree.declarations[0]
    assert isinstance(declared, ast.Attention) and declared.doc == "First.\n\nIndented."


def test_spans_cover_the_source() -> None:
    declared = attention("attention a:\n    mask: (kv + 1) * 2 <= pos[b, 0]\n")
    stage = declared.items[0]
    assert isinstance(stage, ast.Stage)
    assert stage.span == Span("<text>", 2, 5, 2, 9)
    compare = stage.body.result
    assert isinstance(compare, ast.Compare)
    product, subscript = compare.operands
    assert compare.span == Span("<text>", 2, 11, 2, 36)
    assert product.span == Span("<text>", 2, 11, 2, 23)
    assert subscript.span == Span("<text>", 2, 27, 2, 36)


@pytest.mark.parametrize(
    "id", [id for id, rule in SYNTAX.items() if rule.example[:1] not in "(#" and id != "import-not-found"]
)
def test_catalogued_examples_of_syntax_show_their_mistake(id: str) -> None:
    assert ids(SYNTAX[id].example) == [id]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mask f: kv <\nmask g: < pos\n", ["unexpected-end", "unexpected-token"]),
        ("attention a:\n    logits(s): s *\n    mask: kv <\n    sink: 0.0\n", ["unexpected-end", "unexpected-end"]),
        ("mask f: (kv\nattention a:\n    mask: and\n", ["unbalanced-bracket", "boolean-word"]),
        ("attention a b:\n    mask: causal\n    logits: s\n", ["missing-colon", "stage-parameter"]),
        ("attention a:\n    mask: causal $\n    logit(s): s\n", ["unknown-character", "unknown-stage"]),
    ],
)
def test_mistakes_are_reported_together(text: str, found: list[str]) -> None:
    assert ids(text) == found


def test_the_end_of_a_line_is_pointed_at_after_its_last_word() -> None:
    with pytest.raises(AttnError) as caught:
        parse("mask f: kv <   # less than what?\n")
    assert caught.value.diagnostics[0].span == Span("<text>", 1, 13, 1, 14)


def test_expected_terminals_are_named_in_words() -> None:
    assert describe({"COLON"}) == "`:`"
    assert describe({"COLON", "NAME"}) == "`:` or a name"
    operands = {"NAME", "NUMBER", "INF", "TRUE", "FALSE", "LPAR", "PLUS", "MINUS", "TILDE"}
    assert describe(operands | {"RPAR"}) == "an expression or `)`"
