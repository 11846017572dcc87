"""Every name of the prelude builds where it is used, and means what its comment says."""

from __future__ import annotations

import pytest

from attngen import dsl, ir
from attngen.dsl import ast

USES = {
    "causal": "mask: causal",
    "window": "mask: window(4)",
    "local": "mask: local(4)",
    "prefix_lm": "mask: prefix_lm(4)",
    "dilated": "mask: dilated(8, 2)",
    "block_causal": "mask: block_causal(4)",
    "chunked": "mask: chunked(4)",
    "streaming": "mask: streaming(2, 4)",
    "same_document": "tensor doc: i32[B, KV] in 0..4\n    mask: same_document(doc)",
    "in_document": (
        "tensor doc: i32[B, KV] in 0..Docs\n    tensor off: i32[Docs]\n"
        "    mask: in_document[window(4) & causal](doc, off)"
    ),
    "soft_cap": "logits(s): soft_cap(s, 30.0)",
    "alibi": "logits(s): alibi(s, alibi_slope())",
    "alibi_slope": "logits(s): s * alibi_slope()",
    "t5_bucket": "tensor t: f32[Hq, 32]\n    logits(s): s + t[h, t5_bucket(kv - pos)]",
    "t5_bucket_two_sided": "tensor t: f32[Hq, 64]\n    logits(s): s + t[h, t5_bucket_two_sided(kv - pos, 64, 256)]",
    "rope_frequency": "query(x): x * rope_frequency()",
    "rope": "query(x): rope(x, pos)\n    key(x): rope(x, kv)",
    "rope_pairs": "query(x): rope_pairs(x, pos, 500000.0)",
    "rmsnorm": "query(x): rmsnorm(x)",
    "layer_norm": "output(o): layer_norm(o, eps=1e-6)",
}


def test_every_name_is_used() -> None:
    assert set(USES) == dsl.prelude_names()


@pytest.mark.parametrize("name", USES)
def test_builds(name: str) -> None:
    module = dsl.parse_module(f"attention a:\n    {USES[name]}\n")
    ir.validate(ir.build(module, "a"))


def test_a_file_may_declare_a_name_of_the_prelude_again() -> None:
    module = dsl.parse_module("mask causal: kv < pos\n\nattention a:\n    mask: causal & window(3)\n")
    variant = ir.build(module, "a")
    ir.validate(variant)
    causal = next(function for function in variant.functions if function.name.startswith("causal"))
    assert getattr(causal.body, "op", None) == "<"


def test_the_prelude_holds_functions_only() -> None:
    for key, file in dsl.parse_module("attention a:\n    mask: causal\n").files.items():
        if key.startswith("<prelude>/"):
            assert file.doc and not file.imports
            assert all(isinstance(item, ast.Def | ast.MaskDef) for item in file.declarations)
