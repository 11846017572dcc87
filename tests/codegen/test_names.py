"""Whatever a variant is called, and its parts are, the generated text compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen import compiler
from tests.codegen.examples import CONFIG
from tests.codegen.test_examples import compile_with_gcc, include

CASES = {
    "inputs": """
attention inputs:
    scalar x: f32 = 0.5
    scalar s: f32 = 0.25
    scalar v: f32
    scalar o: f32
    query(s): s * 2.0 * x
    key(x): x + kv
    value(o): o * v + s
    logits(x): x * 0.5 + s
    output(v): v * o + 1.0
""",
    "locals_of_hooks": """
attention int:
    scalar args: f32
    scalar column: f32
    scalar at: f32
    scalar sizes: i32
    scalar select: f32
    scalar Lanes: f32
    scalar math: f32
    scalar kSoftmax: f32
    scalar launch0: i32
    scalar column0: i32
    tensor lane: f32[Hq]
    tensor lane0: f32[D]
    tensor row_: f32[Hq]
    def std(simd: f32, attngen: f32) -> f32:
        math_ = simd * attngen
        narrow = math_ * math_ + simd
        narrow * narrow + math_
    query(x): x * lane0[d] + exp(lane0[d]) * sizes
    logits(s): std(s, at) * select + row_[h] + Lanes * kSoftmax + exp(math) + f32(column0 * kv + launch0 * launch0)
    output(o): o * args + column * lane[h]
""",
    "suffixes": """
attention suffixes:
    scalar x_: f32
    scalar t0: f32
    tensor x: f32[Hq]
    def f(x__: f32) -> f32:
        x___ = x__ * x__
        t0_ = x___ * x___ + x__
        t0_ * t0_ + x___
    logits(s): f(s) * x_ + x[h] * t0
""",
    "keywords": """
def double(long: f32, short: f32) -> f32:
    unsigned = long * short
    register = unsigned + long
    register * unsigned + register
mask virtual[template](union: i32): template(pos - union, kv - union) & template
attention typename:
    scalar float: f32
    tensor operator: f32[Hq]
    logits(s): double(s, operator[h]) * float
    mask: virtual[causal](1)
""",
    "macros": """
attention __x__:
    scalar __LINE_: f32
    scalar __: f32
    tensor __FILE_: f32[Hq]
    def f(__LINE__: f32, NAN: f32) -> f32:
        __cplusplus = __LINE__ * NAN
        EOF = __cplusplus * __cplusplus + NAN
        M_PI = EOF * EOF + __cplusplus
        errno = M_PI * M_PI + EOF
        _ = errno * errno + M_PI
        _ * _ + errno
    logits(s): f(s, __LINE_) * __FILE_[h] + __
""",
    "built_ins": """
def tanh(x: f32) -> f32: x * 2.0
def min(a: i32, b: i32) -> i32: max(a, b)
mask causal: kv < pos
mask sum: kv < 3
attention _:
    logits(s): tanh(s)
    mask: causal | sum | (min(kv, 5) == 5)
""",
    "parameters_like_indices": """
def f(pos: f32, d: f32, lse: f32, kv: f32) -> f32: pos * d + lse - kv
mask g(kv: i32, q_len: i32): (pos - kv < q_len) & causal
attention shadows:
    logits(hk): f(hk, 2.0, hk * hk, 0.5)
    mask: g(kv + 1, 7)
""",
    "lane_sums_in_indices": """
attention lane_sums:
    tensor w: f32[64]
    query(x): x * w[d + i32(sum(f32(d)))] + sum(w[d])
""",
    "nothing_read": """
attention nothing_read:
    logits(s): 1.0
    mask: (~(f32(kv) < 2.0) | (i64(kv) < i64(pos))) & ~bool(f32(pos))
""",
    "not\udcff unicode": """
attention not_unicode:
    mask: causal & (kv % 3 == pos % 3)
""",
    'quoted "and\\back\nslashed': """
attention quoted:
    mask: causal & (kv % 3 == pos % 3)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_names(case: str, tmp_path: Path) -> None:
    module = compiler.parse(CASES[case], f"{case}.attn")
    sources = [compiler.lower(module, name, CONFIG) for name in compiler.check_module(module)]
    compile_with_gcc(tmp_path, *include(tmp_path, sources), "cpu-avx2")
