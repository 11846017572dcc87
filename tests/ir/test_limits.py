"""Numbers at the ends of their types, and nesting beyond what the compiler can follow."""

from __future__ import annotations

from typing import Any

import pytest

from attngen import compiler, dsl, ir
from attngen.codegen.source import KernelConfig
from attngen.errors import AttnError
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.numbers import NUMBERS

CONFIG = KernelConfig("cpu-avx2", 64, 64, "f32", "f32")


def mask_value(condition: str) -> object:
    variant = ir.build(dsl.parse_module(f"attention a:\n    mask: {condition}\n"))
    assert variant.mask is not None
    env: Environment[Any] = Environment(indices={"kv": 0})
    return evaluate(variant.mask, env, NUMBERS)


def test_the_smallest_integers_can_be_written() -> None:
    assert mask_value("-9223372036854775808 < kv - 9223372036854775807") is True
    assert mask_value("kv - 2147483647 - 1 == -2147483648") is True
    with pytest.raises(AttnError) as caught:
        mask_value("kv < 9223372036854775808")
    assert [d.id for d in caught.value.diagnostics] == ["number-too-large"]


def nested(count: int, before: str = "tanh(", after: str = ")") -> str:
    """A def that calls a def that calls a def."""
    calls = "".join(f"def f_{i + 1}(x: f32) -> f32: {before}f_{i}(x){after} + 1.0\n" for i in range(count))
    return f"def f_0(x: f32) -> f32: x\n{calls}attention a:\n    logits(s): f_{count}(s)\n"


def test_calls_may_be_nested() -> None:
    for text in (nested(40), nested(1, "tanh(" * 90, ")" * 90), nested(5, "tanh(" * 20, ")" * 20)):
        compiler.lower(dsl.parse_module(text), "a", CONFIG)


def test_calls_nested_too_deep_are_a_mistake() -> None:
    for text in (nested(400), nested(12, "tanh(" * 90, ")" * 90)):
        with pytest.raises(AttnError) as caught:
            compiler.check_module(dsl.parse_module(text))
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.id == "nesting-too-deep" and diagnostic.span.line == text.count("\n") - 1


def test_the_ir_is_checked_after_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under tests `lower` validates, and says which pass broke the IR."""

    def fold(variant: ir.Variant) -> ir.Variant:
        return ir.PASSES[-1](variant)

    monkeypatch.setattr(ir, "PASSES", (*ir.PASSES[:2], fold, ir.PASSES[-1]))
    with pytest.raises(ir.InvalidIR, match="a after fold breaks `passes_keep_their_promise`: in bindings"):
        compiler.lower(dsl.parse_module("attention a:\n    mask: kv % 3 == pos % 3\n"), "a", CONFIG)
