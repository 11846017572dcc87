"""What each pass makes of small variants, as pairs of printed IR in tests/golden/passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen import dsl, ir
from attngen.ir.nodes import Variant
from attngen.ir.printer import print_variant
from tests.conftest import Golden

ROOT = Path(__file__).parents[2]
PAIRS = ROOT / "tests" / "golden" / "passes"

CASES = {
    "inline-helpers": """
def square(r: f32) -> f32: r * r
def poly(r: f32) -> f32:
    t = square(r) + 1.0
    t * square(t)
attention a:
    logits(s): poly(s) + poly(s * 2.0)
""",
    "inline-shifted_mask": """
mask near(n: i32): pos - kv < n
mask later[inner]: inner(pos - 8, kv + 1) & inner(pos, kv)
attention a:
    mask: later[causal] & near(4)
""",
    "unroll-any": """
attention a:
    tensor block: i32[Rows, 3]
    mask: any(block[row, j] == kv // 16 for j in range(3))
""",
    "unroll-loop": """
attention a:
    logits(s):
        x = s
        y = 1.0
        for j in range(3):
            x = x * y
            y = y + f32(j)
        x
""",
    "fold-identities": """
attention a:
    const r: i32 = 1
    logits(s): (s * 1.0 + (0.0 if r == 1 else 1.0)) / 4.0
    mask: ~~(kv * r + 0 <= pos) & (r < 2)
""",
    "fold-lets": """
attention a:
    logits(s):
        unused = exp(s)
        once = s * 2.0
        twice = tanh(once)
        twice * twice + 3.0
""",
    "bounds-window": """
attention a:
    scalar n: i32
    mask: causal & (pos - kv < n)
""",
    "bounds-blocks": """
attention a:
    scalar c: i32
    mask: kv // c <= pos // c
""",
    "bounds-union": """
attention a:
    scalar n: i32 in 0..4096
    mask: causal & ((kv < 4) | (pos - kv < n))
""",
    "bounds-unknown": """
attention a:
    tensor doc: i32[B, KV]
    mask: causal & (doc[b, pos] == doc[b, kv])
""",
    "bounds-watched": """
attention a:
    scalar off: i32
    mask: kv + off <= pos
""",
    "value_scale-token": """
attention a:
    tensor vs: f32[Slots, Hk]
    tensor g: f32[Dv]
    value(v): v * vs[slot, hk] * g[d]
""",
    "log2-plain": """
attention a:
    mask: causal
""",
    "log2-soft_cap": """
attention a:
    scalar cap: f32 in 1.0..100.0
    logits(s): cap * tanh(s / cap)
""",
    "log2-alibi": """
attention a:
    tensor slope: f32[Hq]
    logits(s): s + slope[h] * f32(kv - pos)
""",
    "log2-unknown_sign": """
attention a:
    scalar t: f32
    scale: t
    logits(s): tanh(s)
""",
    "log2-softmax_off": """
attention a:
    tensor bias: f32[Hq]
    logits(s): sigmoid(s + bias[h])
    softmax: off
""",
    "logit_bound-soft_cap": """
attention a:
    logits(s): 30.0 * tanh(s / 30.0)
""",
    "scope-rope": """
attention a:
    scalar theta: f32 = 10000.0
    query(x): x * cos(pos * exp2(-2.0 * d / D * log2(theta)))
    key(x): x * cos(kv * exp2(-2.0 * d / D * log2(theta)))
""",
    "scope-column_of_head": """
attention a:
    tensor ks: f32[Slots, 16]
    logits(s): s * ks[slot, hk * 2 + 1] + f32(hk * 2 + 1) * f32(pos - kv)
""",
    "scope-all": """
attention a:
    scalar t: f32
    tensor bias: f32[Hq, 2]
    tensor ks: f32[Slots, Hk]
    logits(s): s * ks[slot, hk] * exp(t) + bias[h, 1] * exp(t) * f32(pos - kv)
    mask: causal & (kv % 3 == pos % 3)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_pair(case: str, golden: Golden) -> None:
    pass_name = case.split("-")[0]
    variant = ir.specialise(ir.build(dsl.parse_module(CASES[case]), "a"), 64, 64)
    for rewrite in ir.PASSES:
        result = rewrite(variant)
        ir.validate(result, rewrite.__name__)
        if rewrite.__name__ == pass_name:
            golden(PAIRS / f"{case}.txt", pair(variant, result))
            return
        variant = result
    raise AssertionError(f"no pass is called {pass_name}")


def pair(before: Variant, after: Variant) -> str:
    return f"{print_variant(before)}\n\n{print_variant(after)}\n"
