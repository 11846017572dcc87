"""Elaboration: what the pieces of the language become, shown as IR text and as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from attngen import dsl
from attngen.errors import NOWHERE, SEMANTICS, AttnError
from attngen.ir import Variant, build, build_all, validate
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.nodes import Apply, Expr, Let, Loop, Reduce, Select
from attngen.ir.numbers import NUMBERS_F32, Value
from attngen.ir.printer import print_expr
from attngen.ir.walk import expressions, nodes

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))


def variant(text: str) -> Variant:
    """The one attention of a text, validated."""
    built = build(dsl.parse_module(text.strip("\n") + "\n"))
    validate(built)
    return built


def stage(name: str, body: str, before: str = "", inside: str = "") -> Expr:
    """One stage of an attention with the given declarations."""
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    items = "".join(f"    {line}\n" for line in inside.splitlines())
    built = variant(f"{before}\nattention a:\n{items}    {name}:\n{indented}")
    expr: Expr = getattr(built, name.split("(")[0])
    return expr


def value(
    name: str, body: str, before: str = "", inside: str = "", tensors: dict[str, object] | None = None, **names: Value
) -> Value:
    """The value of a stage, given its indices, its input and its scalars by name."""
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    items = "".join(f"    {line}\n" for line in inside.splitlines())
    built = variant(f"{before}\nattention a:\n{items}    {name}:\n{indented}")
    lanes = 8
    env = Environment(
        indices={"d": tuple(range(lanes)), "D": lanes, "Dv": lanes, **names},
        scalars=names,
        tensors=tensors or {},
        variables=names,
        functions={function.name: function for function in built.functions},
        lanes=lanes,
    )
    return evaluate(getattr(built, name.split("(")[0]), env, NUMBERS_F32)


# Numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("s * 2", "s * 2.0"),
        ("s + pos", "s + f32(pos)"),
        ("pos / kv", "f32(pos) / f32(kv)"),
        ("1 / 4", "1.0 / 4.0"),
        ("s if kv < 4 else 0", "s if kv < 4 else 0.0"),
        ("+s", "s"),
        ("-s", "-s"),
        ("clamp(s, -1, 1)", "clamp(s, -1.0, 1.0)"),
        ("min(s, 1, pos)", "min(min(s, 1.0), f32(pos))"),
        ("exp(kv)", "exp(f32(kv))"),
        ("f32(3)", "3.0"),
        ("f32(kv <= pos)", "f32(kv <= pos)"),
        ("s ** 2", "s * s"),
        ("s ** 3", "pow(s, 3.0)"),
        ("abs(pos - kv)", "f32(abs(pos - kv))"),
    ],
)
def test_conversions_are_inserted(body: str, text: str) -> None:
    assert print_expr(stage("logits(s)", body)) == text


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("i64(kv) + 1 == 4", True),
        ("kv + 3000000000 > 0", True),  # an i64 literal widens its neighbour
        ("2147483647 + kv < 0", True),  # i32 wraps
        ("-7 // 2 == -4", True),
        ("-7 % 4 == 1", True),
        ("kv // (kv - kv) == 0", True),
        ("i32(2.9) == 2", True),
        ("i32(-2.9) == -2", True),
        ("i32(1e20) == 2147483647", True),
        ("bool(kv)", True),
        ("bool(kv - kv)", False),
        ("(kv < 4) == (pos < 4)", False),
        ("(kv < 4) != (pos < 4)", True),
        ("0 <= kv < pos <= 7", True),
        ("0 < kv < 3 < pos", False),
        ("kv & 1 << 1 == 2", True),
        ("~kv == -4", True),
        ("~(kv < 2) ^ false", True),
        ("-2147483648 < 0", True),
        ("1.5 ** 2 == 2.25", True),
        ("true if kv > 2 else false", True),
        ("sign(kv - pos) == -1", True),
        ("max(kv, pos, 6) == 7", True),
    ],
)
def test_values(body: str, result: bool) -> None:
    assert value("mask", body, kv=3, pos=7) is result


def test_a_comparison_chain_computes_its_middle_once() -> None:
    expr = stage("mask", "0 <= pos - kv < 4")
    assert isinstance(expr, Let)
    assert print_expr(expr) == "{t = pos - kv; (0 <= t) & (t < 4)}"


# Bodies -----------------------------------------------------------------------------------------


def test_assignments_become_lets_and_unused_ones_vanish() -> None:
    expr = stage("logits(s)", "t = s * 2.0\nunused = exp(s)\nt = t + 1.0\nt * t")
    assert print_expr(expr) == "{t = s * 2.0; t_1 = t + 1.0; t_1 * t_1}"


def test_tuples_are_assigned_and_returned() -> None:
    before = "def turn(x: f32, y: f32) -> (f32, f32): (x + y, x - y)\n"
    body = "a, c = turn(s * 2.0, 1.0)\na, c = c, a\na * 10.0 + c"
    assert value("logits(s)", body, before, s=3.0) == (6 - 1) * 10 + (6 + 1)


def test_tuples_pass_through_defs() -> None:
    before = "def two(x: f32): (x, 2.0 * x)\ndef swapped(x: f32):\n    a, c = two(x + 1.0)\n    c, a\n"
    assert value("logits(s)", "a, c = swapped(s)\na - c", before, s=3.0) == 4.0


def test_loops_carry_values() -> None:
    body = "a = 0\nc = 1\nfor j in range(10):\n    t = a + c\n    a = c\n    c = t\na + 0 * s"
    assert value("logits(s)", body, s=1.0) == 55.0


def test_loops_carry_only_what_the_result_needs() -> None:
    body = "a = s\nc = s\nfor j in range(3):\n    a = a * 2.0\n    c = c + a\na"
    loops = [node for node in nodes(stage("logits(s)", body)) if isinstance(node, Loop)]
    assert [len(loop.carried) for loop in loops] == [1]


def test_carried_values_widen() -> None:
    assert value("logits(s)", "a = 0\nfor j in range(4):\n    a = a + s * j\na", s=0.5) == 3.0
    expr = stage("query(x)", "a = 0\nfor j in range(4):\n    a = a + x\na")
    assert expr.type.vec


def test_nested_loops() -> None:
    body = "n = 0\nfor i in range(3):\n    m = i\n    for j in range(4):\n        m = m + j\n    n = n + m\nn + s"
    assert value("logits(s)", body, s=0.0) == 21.0


def test_reductions() -> None:
    assert value("mask", "any(kv == 3 * j for j in range(4))", kv=9) is True
    assert value("mask", "all(kv > j for j in range(4))", kv=3) is False
    assert value("logits(s)", "sum(s * j for j in range(4)) + max(j for j in range(3))", s=2.0) == 14.0
    assert value("logits(s)", "sum(sum(1.0 for i in range(2)) * j for j in range(3)) + s", s=0.0) == 6.0


def test_counts_may_read_the_head_dimension() -> None:
    expr = stage("mask", "any(kv == j for j in range(D // 2))")
    assert isinstance(expr, Reduce) and print_expr(expr.count) == "D // 2"


# Names ------------------------------------------------------------------------------------------


def test_parameters_shadow_indices_and_stages_name_their_input() -> None:
    assert value("logits(score)", "twice(score)", "def twice(pos: f32) -> f32: pos * 2.0\n", s=3.0) == 6.0


def test_user_names_shadow_the_prelude_and_builtins() -> None:
    before = "mask causal: kv < pos\ndef tanh(x: f32) -> f32: x + 1.0\n"
    assert value("mask", "causal & (tanh(1.0) == 2.0)", before, kv=3, pos=3) is False


def test_constants_are_put_in_place() -> None:
    before = "const half: f32 = 1.0 / 2\nconst n: i32 = 2 ** 2 if half < 1.0 else 8\n".replace("2 ** 2", "2 * 2")
    assert print_expr(stage("mask", "kv < n", before)) == "kv < 4"
    assert print_expr(stage("logits(s)", "s * half", before)) == "s * 0.5"


def test_declarations_may_come_in_any_order() -> None:
    text = "attention a:\n    mask: near(kv)\n    def near(r: i32) -> bool: pos - r < n * m\n    scalar n: i32\n"
    assert variant(text + "    const m: i32 = k + 1\nconst k: i32 = 3\n").scalars[0].name == "n"


def test_imports_take_aliases(tmp_path: Path) -> None:
    (tmp_path / "lib.attn").write_text("const n: i32 = 4\nmask wide: pos - kv < n\n")
    main = tmp_path / "main.attn"
    main.write_text('from "lib.attn" import wide as near, n as width\nattention a:\n    mask: near & (kv < width)\n')
    built = build(dsl.parse_module(main))
    assert [print_expr(function.body) for function in built.functions] == ["pos - kv < 4"]
    assert built.mask is not None and print_expr(built.mask) == "wide() & (kv < 4)"


def test_keywords_and_defaults() -> None:
    before = "const one: f32 = 1.0\ndef line(x: f32, a: f32 = 2.0 * one, c: f32 = 0.0) -> f32: a * x + c\n"
    assert value("logits(s)", "line(s) + line(s, c=1) + line(c=1.0, x=s, a=3.0)", before, s=2.0) == 4 + 5 + 7


# Masks ------------------------------------------------------------------------------------------

IN_DOC = """
mask in_doc[inner](doc: i32[B, KV], off: i32[Docs]):
    (doc[b, pos] == doc[b, kv]) & inner(pos - off[doc[b, pos]], kv - off[doc[b, kv]])
"""
DOCS = {"doc": [[0, 0, 0, 1, 1, 1, 1]], "off": [0, 3]}


def in_doc(mask: str, **names: Value) -> Value:
    inside = "tensor doc: i32[B, KV]\ntensor off: i32[Docs]\nscalar n: i32"
    return value("mask", f"in_doc[{mask}](doc, off)", IN_DOC, inside, DOCS, b=0, **names)


def test_masks_are_remapped() -> None:
    inner = "kv == 1"
    assert in_doc(inner, pos=6, kv=4, n=0) is True
    assert in_doc(inner, pos=6, kv=1, n=0) is False
    assert in_doc("causal", pos=4, kv=5, n=0) is False
    assert in_doc("causal & window(n)", pos=6, kv=5, n=2) is True
    assert in_doc("causal & window(n)", pos=6, kv=5, n=1) is False


def test_masks_capture_locals() -> None:
    before = IN_DOC + (
        "mask near(w: i32, doc: i32[B, KV], off: i32[Docs]):\n    m = w * 2\n    in_doc[pos - kv < m](doc, off)\n"
    )
    inside = "tensor doc: i32[B, KV]\ntensor off: i32[Docs]"
    assert value("mask", "near(1, doc, off)", before, inside, DOCS, b=0, pos=6, kv=5) is True
    assert value("mask", "near(1, doc, off)", before, inside, DOCS, b=0, pos=6, kv=4) is False


def test_masks_nest() -> None:
    before = "mask shifted[inner](n: i32): inner(pos - n, kv + n)\nmask both[x, y]: x & y\n"
    assert value("mask", "shifted[shifted[kv == pos](1)](2)", before, pos=9, kv=3) is True
    assert value("mask", "both[causal, shifted[causal](3)]", before, pos=9, kv=3) is True
    assert value("mask", "both[causal, shifted[causal](3)]", before, pos=8, kv=3) is False


def test_each_use_of_a_mask_is_one_function() -> None:
    built = variant("attention a:\n    mask: causal & causal | window(4) | window(5)\n")
    assert [function.name for function in built.functions] == ["causal", "window"]


def test_rows_of_tensors() -> None:
    inside = "tensor img: i32[KV]\ntensor iv: i32[Images, 2]"
    tensors = {"img": [1, 0], "iv": [[0, 3], [3, 5]]}
    body = "row_of = iv[img[kv]]\n(row_of[0] <= q) & (q < iv[img[kv]][1])"
    assert value("mask", body, "", inside, tensors, kv=0, q=4) is True
    assert value("mask", body, "", inside, tensors, kv=1, q=4) is False
    before = "mask between(t: i32[2]): (t[0] <= q) & (q < t[1])\n"
    assert value("mask", "between(iv[img[kv]])", before, inside, tensors, kv=0, q=4) is True


def test_tensors_without_dimensions() -> None:
    assert value("logits(s)", "s * t", "", "tensor t: f32[]", {"t": 3.0}, s=2.0) == 6.0


# Vectors ----------------------------------------------------------------------------------------

X = tuple(float(i * i % 7) for i in range(8))


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("x * 2", tuple(2 * x for x in X)),
        ("x * 0 + d", tuple(float(d) for d in range(8))),
        ("x * 0 + sum(x)", (sum(X),) * 8),
        ("x * 0 + mean(x)", (sum(X) / 8,) * 8),
        ("x * 0 + dot(x, x)", (sum(x * x for x in X),) * 8),
        ("rotate_half(x)", tuple(-x for x in X[4:]) + X[:4]),
        ("rotate_pairs(x)", (-X[1], X[0], -X[3], X[2], -X[5], X[4], -X[7], X[6])),
        ("x[(d + D // 2) % D]", X[4:] + X[:4]),
        ("x[d ^ 1]", (X[1], X[0], X[3], X[2], X[5], X[4], X[7], X[6])),
        ("x[D - 1 - d]", X[::-1]),
        ("x * 0 + x[3]", (X[3],) * 8),
        ("2.0", (2.0,) * 8),
        ("half(x) + half(d)", tuple(x / 2 + d / 2 for d, x in enumerate(X))),
    ],
)
def test_vectors(body: str, result: tuple[float, ...]) -> None:
    got = value("query(x)", body, "def half(r: f32) -> f32: r / 2\n", x=X)
    assert got == pytest.approx(result)


def test_lane_partners_are_recognised() -> None:
    assert print_expr(stage("query(x)", "x[(D // 2 + d) % D]")) == "x[half]"
    assert print_expr(stage("query(x)", "x[1 ^ d]")) == "x[pair]"
    assert print_expr(stage("value(v)", "v[(d + Dv // 2) % Dv]")) == "v[half]"
    assert print_expr(stage("value(v)", "v[(d + D // 2) % D]")) != "v[half]"


def test_defs_with_lanes_know_the_size_of_their_stage() -> None:
    built = variant("attention a:\n    query(x): rmsnorm(x)\n    value(v): rmsnorm(v)\n    output(o): rmsnorm(o)\n")
    assert sorted("Dv" in print_expr(function.body) for function in built.functions) == [False, True]


# Variants ---------------------------------------------------------------------------------------


def test_functions_are_called_not_copied() -> None:
    built = variant("attention a:\n    logits(s): soft_cap(s * 2.0, 30.0)\n")
    assert isinstance(built.logits, Apply) and print_expr(built.logits) == "soft_cap(s * 2.0, 30.0)"


def test_parameters() -> None:
    built = variant(
        "const k: i32 = 4\nattention a:\n    scalar n: i32 in 1..k = 3\n    scalar t: f32 = 1\n"
        "    tensor x: bf16[B, k, Foo] in -1..1\n    tensor y: i32[Foo] in 0..Foo\n"
        "    logits(s): s * t * x[b, 0, y[0]] + n\n"
    )
    assert [(p.type, p.default, p.range) for p in built.scalars] == [("i32", 3, (1, 4)), ("f32", 1.0, None)]
    assert [(p.dtype, p.dims, p.range) for p in built.tensors] == [
        ("bf16", ("B", 4, "Foo"), (-1, 1)),
        ("i32", ("Foo",), (0, "Foo")),
    ]


def test_softmax_off() -> None:
    assert not variant("attention a:\n    softmax: off\n").softmax
    assert variant("attention a:\n    softmax: on\n").softmax


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_build(path: Path) -> None:
    built = build_all(dsl.parse_module(path))
    assert built
    for each in built:
        validate(each)
        adapter = TypeAdapter(Variant)
        assert adapter.validate_json(adapter.dump_json(each)) == each


def test_every_node_has_its_place() -> None:
    for path in EXAMPLES:
        for each in build_all(dsl.parse_module(path)):
            for expr in expressions(each):
                for node in nodes(expr):
                    assert node.span != NOWHERE, (path.name, node)


def test_conditionals_stay_selects() -> None:
    assert isinstance(stage("logits(s)", "s if causal else -inf"), Select)


# Which attention --------------------------------------------------------------------------------

TWO = "attention one:\n    mask: causal\nattention two:\n    softmax: off\n"


def test_an_attention_is_chosen_by_name() -> None:
    module = dsl.parse_module(TWO)
    assert build(module, "two").name == "two"
    assert [each.name for each in build_all(module)] == ["one", "two"]


@pytest.mark.parametrize(("text", "name", "id"), [
    (TWO, None, "which-attention"),
    (TWO, "tow", "which-attention"),
    ("mask wide: pos - kv < 8\n", None, "no-attention"),
])  # fmt: skip
def test_a_choice_must_be_possible(text: str, name: str | None, id: str) -> None:
    with pytest.raises(AttnError) as caught:
        build(dsl.parse_module(text), name)
    assert [diagnostic.id for diagnostic in caught.value.diagnostics] == [id]


def test_a_library_has_no_attention_and_is_checked() -> None:
    assert build_all(dsl.parse_module("mask wide: pos - kv < 8\n")) == ()
    with pytest.raises(AttnError, match="missing"):
        build_all(dsl.parse_module("mask wide[inner](t: i32[N]): inner(missing, t[0]) & inner\n"))


@pytest.mark.parametrize("id", SEMANTICS)
def test_catalogue_examples_show_their_mistake(id: str) -> None:
    with pytest.raises(AttnError) as caught:
        build(dsl.parse_module(SEMANTICS[id].example + "\n"))
    assert [diagnostic.id for diagnostic in caught.value.diagnostics] == [id]
    assert all(diagnostic.help for diagnostic in caught.value.diagnostics)
