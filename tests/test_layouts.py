"""Every layout, target and storage type against the reference, with splits, sinks, an output stage and poison."""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import attngen
from attngen.errors import EnvironmentFault
from attngen.loading import LoadedVariant, parse
from attngen.reference import judge, reference, rounded

from .batches import LAYOUTS, Made, Shape, make

VARIANT = """
attention everything:
    tensor sinks: f32[Hq]
    tensor gate: f32[Rows, Hq]
    tensor gain: f32[Slots]
    scalar n: i32 in 1..1048576
    mask: causal & (pos - kv < n)
    value(v): v * gain[slot]
    sink: sinks[h]
    output(o): o * sigmoid(gate[row, h]) + lse
"""
MAP_NORESERVE = 0x4000  # Linux; in the mmap module from Python 3.13 on
BF16, F32, F16, E4M3 = torch.bfloat16, torch.float32, torch.float16, torch.float8_e4m3fn
TYPES = {"cpu-amx": (BF16, BF16), "cpu-avx512": (F32, F32), "cpu-avx2": (F16, E4M3)}
REQUESTS = {
    "decode": ((1, 0), (1, 1), (1, 300), (1, 64)),
    "prefill": ((33, 33), (70, 70), (9, 4)),
    "append": ((5, 130), (3, 17), (0, 9), (8, 0)),
    "mixed": ((1, 400), (40, 100), (1, 7), (0, 0), (17, 65)),
}
WORKERS = (1, 2, 7, 264)
CASES = [
    (target, layout, kind, WORKERS[(i + j + k) % 4])
    for i, target in enumerate(TYPES)
    for j, layout in enumerate(LAYOUTS)
    for k, kind in enumerate(REQUESTS)
]


@cache
def everything() -> LoadedVariant:
    return parse(VARIANT)


def shape_of(target: str, layout: str, kind: str, **changes: Any) -> Shape:
    dtype, kv_dtype = TYPES[target]
    number = LAYOUTS.index(layout) + 7 * list(REQUESTS).index(kind)
    return replace(
        Shape(REQUESTS[kind], layout, dtype=dtype, kv_dtype=kv_dtype, seed=number),
        **{"order": "HND" if number % 2 else "NHD", "together": False, **changes},
    )


def attention(made: Made, target: str, **options: Any) -> attngen.Attention:
    shape = made.shape
    chosen: dict[str, Any] = {"limits": made.limits(), "target": target, **options}
    try:
        attn = attngen.Attention(
            everything(),
            num_qo_heads=shape.num_qo_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            head_dim_v=shape.head_dim_v,
            dtype=shape.dtype,
            kv_dtype=shape.kv_dtype,
            kv=made.lists.kv,
            **chosen,
        )
    except EnvironmentFault as fault:
        pytest.skip(f"{target}: {fault}")
    attn._engine.partials.out.fill_(math.nan)
    attn._engine.partials.lse.fill_(math.nan)
    return attn


def parameters(made: Made) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(made.shape.seed)
    heads = made.shape.num_qo_heads
    return {
        "sinks": torch.randn(heads, generator=generator) * 3,
        "gate": torch.randn(made.rows, heads, generator=generator),
        "gain": torch.rand(made.k.shape[0] * made.k.shape[1], generator=generator) * 1.5 + 0.25,
    }


def run(made: Made, attn: attngen.Attention, params: dict[str, Any], n: int = 90, raw: bool = False) -> Any:
    attn.plan(**made.lists.plan, n=n)
    heads, rows = made.shape.num_qo_heads, made.q.shape[0]
    out = torch.full((rows, heads, made.shape.head_dim_v), math.nan, dtype=made.shape.dtype)
    lse = torch.full((rows, heads), math.nan)
    attn.run(made.q, made.pool, out=out, lse=lse, raw=raw, **params)
    assert out[made.rows :].isnan().all() and lse[made.rows :].isnan().all()
    return out[: made.rows], lse[: made.rows]


@pytest.mark.parametrize(("target", "layout", "kind", "workers"), CASES)
def test_against_the_reference(target: str, layout: str, kind: str, workers: int) -> None:
    """Limits are reached exactly, partials start as NaN, and a second run gives the same bits."""
    made, raw = make(shape_of(target, layout, kind)), workers == 2
    params, attn = parameters(made), attention(made, target, num_workers=workers)
    out, lse = run(made, attn, params, raw=raw)
    batch = made.for_reference({**params, "n": 90})
    exact, plain = (
        reference(everything().ir, batch, raw=raw),
        rounded(everything().ir, batch, made.shape.dtype, raw=raw),
    )
    verdict = judge(out, lse, exact, plain)
    assert verdict.ok, verdict
    again, lse_again = run(made, attn, params, raw=raw)
    assert torch.equal(out, again) and torch.equal(lse, lse_again)


@pytest.mark.parametrize("layout", ["paged", "ragged", "dense", "topk"])
def test_k_and_v_as_one_tensor(layout: str) -> None:
    made = make(shape_of("cpu-avx512", layout, "mixed", head_dim_v=24))
    made.shape = replace(made.shape, head_dim=24)
    params, attn = parameters(made), attention(made, "cpu-avx512")
    apart = run(made, attn, params)
    made.shape = replace(made.shape, together=True)
    for one, other in zip(apart, run(made, attn, params), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("which", ["k", "v", "gain"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_poisoned_key_reaches_only_the_rows_that_see_it(target: str, which: str, value: float) -> None:
    """Key 60 of the second request lies in tiles that rows before it share, and in a part of its own with splits."""
    made = make(replace(shape_of(target, "paged", "mixed"), requests=((1, 9), (40, 70), (1, 130))))
    params, attn = parameters(made), attention(made, target, num_workers=7)
    clean_out, clean_lse = run(made, attn, params)
    slot = int(made.lists.visits[1].slots[60])
    place = slot // made.k.shape[1], slot % made.k.shape[1]
    if which == "gain":
        params["gain"][slot] = value
    else:
        pool = made.k if which == "k" else made.v
        lane = pool[place].float()
        lane[:, 3] = value if pool.element_size() > 1 else math.nan
        pool[place] = lane.to(pool.dtype)
    out, lse = run(made, attn, params)
    blind = torch.ones(made.rows, dtype=torch.bool)
    blind[31:41] = False  # the positions from 60 to 69
    torch.testing.assert_close(out[blind], clean_out[blind], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse[blind], clean_lse[blind])
    assert not out[~blind].isfinite().all()
    if which == "v":
        assert out[~blind][..., 4:].isfinite().all()


def test_infinite_sinks() -> None:
    """A sink of -inf is none at all; one of +inf takes all the weight, also from rows without keys."""
    made = make(shape_of("cpu-avx512", "paged", "decode"))
    params = parameters(made)
    params["sinks"] = torch.tensor([math.inf, -math.inf, 0.0, 5e4, -5e4, math.inf])
    params["gate"][:] = math.inf  # the output stage adds the lse alone, which the first and last heads make infinite
    for workers in (1, 7):
        out, lse = run(made, attention(made, "cpu-avx512", num_workers=workers), params)
        batch = made.for_reference({**params, "n": 90})
        exact, plain = reference(everything().ir, batch), rounded(everything().ir, batch, F32)
        assert judge(out, lse, exact, plain).ok
        assert (lse[:, 0] == math.inf).all() and (out[:, 0] == math.inf).all()
        assert lse[0, 1] == -math.inf and lse[0, 2] == 0.0 and not lse.isnan().any()


@pytest.mark.parametrize("target", TYPES)
def test_batch_invariance(target: str) -> None:
    """The same bits alone and in a batch, whatever the number of workers."""
    made = make(replace(shape_of(target, "paged", "mixed"), requests=((1, 700), (9, 130), (0, 3), (40, 100), (1, 0))))
    params, limits = parameters(made), attngen.Limits(batch=8, q_tokens=99, kv_tokens=3000)
    one, other = (
        attention(made, target, limits=limits, batch_invariant=True, num_workers=workers) for workers in (2, 264)
    )
    out, lse = run(made, one, params)
    for given, expected in zip(run(made, other, params), (out, lse), strict=True):
        assert torch.equal(given, expected)
    lists = made.lists.plan
    for b, (count, keys) in enumerate(made.shape.requests):
        rows, own = slice(made.qo_indptr[b], made.qo_indptr[b + 1]), lists["kv_indptr"][b : b + 2]
        indices = lists["kv_indices"][own[0] : own[1]]
        one.plan(qo_indptr=[0, count], kv_indptr=[0, len(indices)], kv_indices=indices, kv_len=[keys], n=90)
        alone = one.run(made.q[rows], made.pool, **{**params, "gate": params["gate"][rows]})
        assert torch.equal(alone[0], out[rows]) and torch.equal(alone[1], lse[rows])


def test_strides_and_results_in_place_of_queries() -> None:
    made = make(shape_of("cpu-avx512", "paged", "mixed", head_dim_v=24))
    params, attn = parameters(made), attention(made, "cpu-avx512", num_workers=7)
    out, lse = run(made, attn, params)
    rows, heads = made.q.shape[:2]
    q = torch.full((3 * rows, heads + 2, 40), math.nan)[::3, 1:-1, 7:31]
    given_out = torch.full((heads, rows, 40), math.nan).transpose(0, 1)[..., 3:27]
    given_lse = torch.full((heads, rows, 3), math.nan)[..., 1].t()
    q.copy_(made.q)
    spread = {"sinks": params["sinks"].repeat_interleave(3)[::3], "gate": params["gate"].t().contiguous().t()}
    attn.run(q, made.pool, out=given_out, lse=given_lse, **{**params, **spread})
    assert torch.equal(given_out[: made.rows], out) and torch.equal(given_lse[: made.rows], lse)
    attn.run(q, made.pool, out=q, **params)
    assert torch.equal(q[: made.rows], out)


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_pools_beyond_32_bits(order: Any) -> None:
    """Tokens, blocks and heads far apart, in memory that is never touched between them."""
    made = make(shape_of("cpu-avx512", "paged", "append", order=order, head_dim_v=24))
    params, attn = parameters(made), attention(made, "cpu-avx512")
    out, lse = run(made, attn, params)
    strides = 1 << 27, 1 << 23, 1 << 34, 1
    reach = sum((size - 1) * stride for size, stride in zip(made.k.shape, strides, strict=True)) + 1
    pools = []
    for pool in (made.k, made.v):
        memory = mmap.mmap(-1, 4 * reach, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        far = torch.frombuffer(memory, dtype=torch.float32).as_strided(pool.shape, strides)
        pools.append(far.copy_(pool) if order == "NHD" else far.copy_(pool).transpose(1, 2))
    attn.plan(**made.lists.plan, n=90)
    far_out, far_lse = attn.run(made.q, tuple(pools), **params)
    assert torch.equal(far_out[: made.rows], out) and torch.equal(far_lse[: made.rows], lse)


def test_appending_transformed_keys_gives_the_same_bits_as_raw_ones() -> None:
    """In two steps, the second of which starts inside a page."""
    variant = parse(
        "attention turned:\n    tensor w: f32[D]\n    mask: causal\n"
        "    key(x): (x + rotate_half(x)) * w[d] * cos(f32(kv))\n"
    )
    torch.manual_seed(0)
    table = {"kv_indptr": [0, 3, 8], "kv_indices": [4, 0, 9, 1, 2, 3, 8, 6]}
    k, v, q, w = (torch.randn(size).bfloat16() for size in ((28, 2, 24), (28, 2, 24), (4, 4, 24), (24,)))
    limits = attngen.Limits(batch=2, q_tokens=4, kv_tokens=28)
    results = []
    keys: Any
    for keys in ("raw", "transformed"):
        attn = attngen.Attention(
            variant,
            num_qo_heads=4,
            num_kv_heads=2,
            head_dim=24,
            dtype=BF16,
            kv=attngen.Paged(4),
            limits=limits,
            keys=keys,
        )
        pool = torch.full((10, 2, 4, 2, 24), math.nan, dtype=BF16)
        params = {"w": w.float()} if keys == "transformed" else {}
        for begin, end, counts, lengths in ((0, 17, [0, 7, 17], [7, 10]), (17, 28, [0, 3, 11], [10, 18])):
            attngen.append_kv(
                pool, k[begin:end], v[begin:end], attention=attn, qo_indptr=counts, kv_len=lengths, **table, **params
            )
        attn.plan(qo_indptr=[0, 1, 4], kv_len=[10, 18], **table)
        results.append(attn.run(q, pool, w=w.float()))
    assert torch.equal(results[0][0], results[1][0]) and not results[0][0].isnan().any()
