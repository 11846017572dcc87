"""Every rule of the IR: what breaks it is refused with the rule's name, and what passes make is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from attngen import dsl
from attngen.ir import InvalidIR, Variant, build, specialise, validate
from attngen.ir.make import binary, call, cast, f32, i32, select
from attngen.ir.nodes import (
    Apply,
    Binary,
    Binding,
    Call,
    Carry,
    Cast,
    Const,
    Expr,
    Function,
    Index,
    KeyBounds,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Loop,
    Reduce,
    Scalar,
    ScalarParam,
    TensorParam,
    Type,
    Unary,
    Var,
)
from attngen.ir.passes.inline import inline
from attngen.ir.passes.unroll import unroll
from attngen.ir.types import BOOL, F32, I32, I64, VEC
from attngen.ir.validate import LEVELS, RULES

S = Var("s", F32)
X = Var("x", VEC)
KV, POS, D = Index("kv", I32), Index("pos", I32), Index("d", Type("i32", vec=True))
GROUP = Index("group", I32)
TABLE = TensorParam("table", "bf16", ("Hq", 4))


def variant(**parts: Any) -> Variant:
    return replace(Variant("v", None, (ScalarParam("n", "i32"),), (TABLE,)), **parts)


def logits(expr: Expr) -> Variant:
    return variant(logits=expr)


def test_what_is_right_passes() -> None:
    half = Function("half", (Var("a", F32),), binary("*", Var("a", F32), f32(0.5)))
    right = variant(
        functions=(half,),
        query=binary("*", X, binary("+", LaneSum(X, F32), Load("table", (GROUP, D), VEC))),
        logits=Let("t", S, Apply("half", (Var("t", F32),), None, None, F32), F32),
        mask=Reduce("any", "j", i32(3), binary("==", KV, Var("j", I32)), BOOL),
        sink=f32(0.0),
    )
    validate(right)


def test_hoisted_values_pass() -> None:
    bindings = (
        Binding("launch", "launch0", cast(GROUP, "f32")),
        Binding("lane", "lane0", binary("*", cast(D, "f32"), Var("launch0", F32))),
        Binding("row", "row0", binary("*", cast(POS, "f32"), Var("launch0", F32))),
        Binding("column", "column0", cast(KV, "f32")),
    )
    lane, row, column = Var("lane0", VEC), Var("row0", F32), Var("column0", F32)
    bounds = KeyBounds(i32(0), i32(0), i32(0), binary("+", Index("pos_hi", I32), i32(1)))
    right = variant(
        bindings=bindings,
        query=binary("*", X, binary("*", lane, row)),
        key=binary("*", X, binary("*", lane, column)),
        logits=binary("*", row, column),
        key_bounds=bounds,
        scale_log2=Var("launch0", F32),
        value_scale=column,
    )
    validate(right, "scope")


LOOP = Loop("j", i32(3), (Carry("a", S, Var("a", F32)),), "a", F32)
APPLY = Apply("f", (S,), None, None, F32)
F = Function("f", (Var("p", F32),), Var("p", F32))

WRONG: list[tuple[str, str, Callable[[], Variant]]] = [
    ("parameters_are_declared_once", "build", lambda: variant(tensors=(TABLE, TABLE))),
    ("parameters_are_declared_once", "build", lambda: variant(scalars=(ScalarParam("a", "i32", range=(4, 4)),))),
    ("parameters_are_declared_once", "build", lambda: variant(tensors=(TensorParam("a", "f64", ()),))),
    ("parameters_are_declared_once", "build", lambda: variant(tensors=(TensorParam("a", "f32", (0,)),))),
    ("nodes_have_their_types", "build", lambda: logits(Const(1, F32))),
    ("nodes_have_their_types", "build", lambda: variant(mask=binary("==", KV, Const(True, I32)))),
    ("nodes_have_their_types", "build", lambda: variant(mask=binary("==", KV, Const(2**31, I32)))),
    ("nodes_have_their_types", "build", lambda: logits(cast(Index("kv", I64), "f32"))),
    ("nodes_have_their_types", "build", lambda: logits(Scalar("n", F32))),
    ("nodes_have_their_types", "build", lambda: logits(Load("nothing", (KV,), F32))),
    ("nodes_have_their_types", "build", lambda: logits(Load("table", (KV,), F32))),
    ("nodes_have_their_types", "build", lambda: logits(Load("table", (KV, S), F32))),
    ("nodes_have_their_types", "build", lambda: logits(Load("table", (KV, KV), I32))),
    ("nodes_have_their_types", "build", lambda: logits(Unary("~", S, F32))),
    ("nodes_have_their_types", "build", lambda: logits(Unary("-", KV, F32))),
    ("nodes_have_their_types", "build", lambda: logits(Binary("+", S, KV, F32))),
    ("nodes_have_their_types", "build", lambda: logits(cast(binary("/", KV, POS), "f32"))),
    ("nodes_have_their_types", "build", lambda: logits(binary("&", S, S))),
    ("nodes_have_their_types", "build", lambda: variant(mask=binary("<<", Const(True, BOOL), Const(True, BOOL)))),
    ("nodes_have_their_types", "build", lambda: variant(mask=Binary("<", KV, POS, I32))),
    ("nodes_have_their_types", "build", lambda: logits(select(KV, S, S))),
    ("nodes_have_their_types", "build", lambda: logits(select(binary("<", KV, POS), S, KV))),
    ("nodes_have_their_types", "build", lambda: logits(Cast(KV, VEC))),
    ("nodes_have_their_types", "build", lambda: logits(call("rotate_half", S))),
    ("nodes_have_their_types", "build", lambda: logits(call("exp", S, S))),
    ("nodes_have_their_types", "build", lambda: logits(cast(call("exp", KV), "f32"))),
    ("nodes_have_their_types", "build", lambda: logits(Call("min", (S, KV), F32))),
    ("nodes_have_their_types", "build", lambda: variant(query=LaneSum(D, F32))),
    ("nodes_have_their_types", "build", lambda: variant(query=LaneAt(X, "half", D, VEC))),
    ("nodes_have_their_types", "build", lambda: variant(query=LaneAt(X, "index", None, VEC))),
    ("nodes_have_their_types", "build", lambda: variant(query=LaneAt(X, "index", X, VEC))),
    ("nodes_have_their_types", "build", lambda: variant(query=Binary("*", X, X, F32))),
    ("nodes_have_their_types", "build", lambda: logits(Let("t", S, KV, F32))),
    ("nodes_have_their_types", "build", lambda: logits(APPLY)),
    ("nodes_have_their_types", "build", lambda: variant(functions=(F,), logits=replace(APPLY, args=(KV,)))),
    ("nodes_have_their_types", "build", lambda: variant(functions=(F,), logits=replace(APPLY, pos=POS))),
    ("nodes_have_their_types", "build", lambda: variant(functions=(F,), logits=replace(APPLY, pos=S, kv=KV))),
    ("nodes_have_their_types", "build", lambda: logits(Reduce("any", "j", i32(2), S, F32))),
    ("nodes_have_their_types", "build", lambda: logits(Reduce("sum", "j", S, S, F32))),
    ("nodes_have_their_types", "build", lambda: logits(replace(LOOP, result="c"))),
    ("nodes_have_their_types", "build", lambda: logits(replace(LOOP, carried=(Carry("a", S, KV),)))),
    ("names_are_unique", "build", lambda: logits(Let("t", S, Let("t", S, S, F32), F32))),
    ("names_are_unique", "build", lambda: variant(functions=(F, replace(F, name="g")))),
    ("variables_are_bound", "build", lambda: logits(Var("t", F32))),
    ("variables_are_bound", "build", lambda: logits(binary("+", Let("t", S, S, F32), Var("t", F32)))),
    ("variables_are_bound", "build", lambda: logits(Let("t", KV, Var("t", F32), F32))),
    ("variables_are_bound", "build", lambda: variant(sink=S)),
    ("variables_are_bound", "build", lambda: logits(binary("+", LOOP, Var("j", F32)))),
    (
        "variables_are_bound",
        "scope",
        lambda: variant(sink=Var("c", F32), bindings=(Binding("column", "c", cast(KV, "f32")),)),
    ),
    (
        "variables_are_bound",
        "scope",
        lambda: variant(bindings=(Binding("row", "r", Var("l", F32)), Binding("launch", "l", f32(1.0)))),
    ),
    (
        "calls_have_targets",
        "build",
        lambda: variant(functions=(Function("g", (), Apply("f", (f32(1.0),), None, None, F32)), F)),
    ),
    ("calls_have_targets", "build", lambda: variant(functions=(F, Function("f", (), f32(1.0))))),
    ("passes_keep_their_promise", "specialise", lambda: logits(cast(Index("D", I32), "f32"))),
    ("passes_keep_their_promise", "inline", lambda: variant(functions=(F,))),
    ("passes_keep_their_promise", "unroll", lambda: logits(LOOP)),
    ("passes_keep_their_promise", "fold", lambda: variant(scale_log2=f32(1.0))),
    ("passes_keep_their_promise", "build", lambda: variant(bindings=(Binding("launch", "l", f32(1.0)),))),
    ("indices_are_visible", "build", lambda: variant(key=binary("*", X, cast(POS, "f32")))),
    ("indices_are_visible", "build", lambda: logits(Index("lse", F32))),
    (
        "indices_are_visible",
        "build",
        lambda: variant(functions=(Function("f", (), cast(KV, "f32")),), sink=Apply("f", (), None, None, F32)),
    ),
    ("indices_are_visible", "scope", lambda: variant(bindings=(Binding("launch", "l", cast(KV, "f32")),))),
    ("indices_are_visible", "scope", lambda: variant(bindings=(Binding("row", "r", cast(KV, "f32")),))),
    ("indices_are_visible", "bounds", lambda: variant(key_bounds=KeyBounds(i32(0), i32(0), i32(0), POS))),
    ("lanes_stay_in_vector_stages", "build", lambda: logits(LaneSum(S, F32))),
    ("lanes_stay_in_vector_stages", "build", lambda: variant(scale=LaneAt(f32(1.0), "index", i32(0), F32))),
    ("results_have_their_types", "build", lambda: variant(mask=KV)),
    ("results_have_their_types", "build", lambda: logits(KV)),
    ("results_have_their_types", "bounds", lambda: variant(key_bounds=KeyBounds(f32(0.0), i32(0), i32(0), i32(0)))),
    ("softmax_rules_hold", "build", lambda: variant(softmax=False, sink=f32(0.0))),
    (
        "softmax_rules_hold",
        "build",
        lambda: variant(softmax=False, output=binary("*", Var("o", VEC), Index("lse", F32))),
    ),
    ("softmax_rules_hold", "log2", lambda: variant(softmax=False, scale_log2=f32(1.0))),
    ("softmax_rules_hold", "logit_bound", lambda: variant(logit_bound=-1.0)),
]


@pytest.mark.parametrize(("rule", "stage", "make"), WRONG, ids=[f"{i}-{rule}" for i, (rule, _, _) in enumerate(WRONG)])
def test_what_is_wrong_is_refused(rule: str, stage: str, make: Callable[[], Variant]) -> None:
    with pytest.raises(InvalidIR, match=f"after {stage} breaks `{rule}`"):
        validate(make(), stage)


def test_every_rule_is_tested() -> None:
    assert {rule for rule, _, _ in WRONG} == {rule.__name__ for rule in RULES}


def test_the_message_prints_the_node_and_its_line() -> None:
    built = build(dsl.parse_module("attention a:\n    logits(s): s * 2.0\n    softmax: off\n", "a.attn"))
    with pytest.raises(InvalidIR, match=r"(?s)stage `sink`, `s` is not bound.*from a.attn:2:16"):
        validate(replace(built, sink=built.logits))


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="stage must be one of build"):
        validate(variant(), "codegen")


def test_passes_name_their_level() -> None:
    text = "mask near(n: i32): any(pos - kv == j for j in range(D // 2))\nattention a:\n    mask: near(3)\n"
    made = specialise(build(dsl.parse_module(text)), 8, 8)
    validate(made, "specialise")
    made = inline(made)
    validate(made, "inline")
    validate(unroll(made), "unroll")
    assert LEVELS[:4] == ("build", "specialise", "inline", "unroll")


def test_remapped_calls_hide_positions() -> None:
    inner = Function("inner", (), binary("<=", KV, POS))
    moved = Apply("inner", (), i32(1), i32(0), BOOL)
    validate(variant(functions=(inner,), key=select(moved, X, X)))
    with pytest.raises(InvalidIR, match="pos can't be seen"):
        validate(variant(functions=(inner,), key=select(replace(moved, pos=None, kv=None), X, X)))
