"""One batch under every layout, level and option, each against the fp64 reference over explicit key lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen.loading import LoadedVariant
from attngen.random_batch import RandomBatch, Shape, random_batch
from attngen.reference import Batch, Visit, affine_visits, judge, reference, rounded
from attngen.trial import limits

EXAMPLES = Path(__file__).parents[1] / "examples"
SHAPE = Shape(((2, 37), (1, 0), (5, 5), (1, 130), (0, 9)), 4, 2, head_dim=16, page_size=16)
LENGTHS = [kv for _, kv in SHAPE.requests]
STARTS = [sum(LENGTHS[:request]) for request in range(len(LENGTHS) + 1)]
DTYPES = {"cpu": torch.float32, "cuda": torch.float16}  # what each device is tried with


@cache
def variant(name: str) -> LoadedVariant:
    return attngen.load(EXAMPLES / f"{name}.attn")


@cache
def batch_of(device: str, name: str = "gpt_oss") -> RandomBatch:
    return new_batch(device, name, SHAPE)


def new_batch(device: str, name: str, shape: Shape) -> RandomBatch:
    dtype = {torch.float32: "f32", torch.float16: "f16"}[DTYPES[device]]
    return random_batch(variant(name).ir, replace(shape, dtype=dtype)).to(device)


def attention(name: str, kv: Any, device: str, shape: Shape = SHAPE, **options: Any) -> attngen.Attention:
    chosen = {"limits": limits(shape), "device": device, "target": device} | options
    heads = {"num_qo_heads": shape.num_qo_heads, "num_kv_heads": shape.num_kv_heads}
    return attngen.Attention(variant(name), **heads, head_dim=shape.head_dim, dtype=DTYPES[device], kv=kv, **chosen)


def run_params(batch: RandomBatch, attn: attngen.Attention) -> dict[str, Any]:
    phases = {parameter.name: parameter.phase for parameter in attn.manifest.parameters}
    return {name: value for name, value in batch.params.items() if phases[name] == "run"}


def here(batch: Batch) -> Batch:
    """The batch where the reference computes."""
    params = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in batch.params.items()}
    return replace(batch, q=batch.q.cpu(), k=batch.k.cpu(), v=batch.v.cpu(), params=params)


def assert_right(name: str, batch: Batch, state: Sequence[torch.Tensor | None], raw: bool = False) -> None:
    out, lse = state
    assert out is not None
    batch = here(batch)
    exact = reference(variant(name).ir, batch, raw=raw)
    plain = rounded(variant(name).ir, batch, out.dtype, raw=raw)
    verdict = judge(out.cpu(), None if lse is None else lse.cpu(), exact, plain)
    assert verdict.ok, verdict


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to a few roundings of the outputs' type, wherever the sums were split."""
    size = 4 * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=max(size, 1.3e-6), atol=max(size, 1e-5))


def gathered(batch: RandomBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of all requests in a row, [tokens, heads, lanes]."""
    slots = torch.cat([visit.slots for visit in batch.for_reference().visits]).to(batch.q.device)
    return tuple(pool.flatten(0, 1)[slots] for pool in (batch.k_pool, batch.v_pool))  # type: ignore[return-value]


def test_ragged(device: str) -> None:
    batch, attn = batch_of(device), attention("gpt_oss", attngen.Ragged(), device)
    k, v = gathered(batch)
    attn.plan(qo_indptr=batch.qo_indptr, kv_indptr=STARTS, kv_len=LENGTHS)
    state = attn.run(batch.q, (k, v), **run_params(batch, attn))
    visits = affine_visits(batch.qo_indptr, STARTS, LENGTHS)
    assert_right("gpt_oss", replace(batch.for_reference(), k=k[None], v=v[None], visits=visits), state)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_dense(layout: Any, device: str) -> None:
    batch, attn = batch_of(device), attention("gpt_oss", attngen.Dense(capacity=140, layout=layout), device)
    pools = []
    for source in gathered(batch):
        pool = torch.full((len(LENGTHS), 140, 2, 16), math.nan, dtype=source.dtype, device=device)
        for request, (begin, end) in enumerate(pairwise(STARTS)):
            pool[request, : end - begin] = source[begin:end]
        pools.append(pool)
    given = [pool if layout == "NHD" else pool.transpose(1, 2).contiguous() for pool in pools]
    attn.plan(qo_indptr=batch.qo_indptr, kv_len=LENGTHS)
    state = attn.run(batch.q, (given[0], given[1]), **run_params(batch, attn))
    visits = affine_visits(batch.qo_indptr, [140 * request for request in range(len(LENGTHS))], LENGTHS)
    assert_right("gpt_oss", replace(batch.for_reference(), k=pools[0], v=pools[1], visits=visits), state)


def test_one_tensor_for_k_and_v(device: str) -> None:
    batch, attn = batch_of(device), attention("gpt_oss", attngen.Paged(16), device)
    attn.plan(**batch.plan_arguments())
    both = torch.stack([batch.k_pool, batch.v_pool], 1)
    assert_right("gpt_oss", batch.for_reference(), attn.run(batch.q, both, **run_params(batch, attn)))


@pytest.mark.parametrize(
    "options", [{"num_workers": 264}, {"num_workers": 1}, {"batch_invariant": True}, {"lse": "log2"}]
)
def test_options(options: dict[str, Any], device: str) -> None:
    batch, attn = batch_of(device), attention("gpt_oss", attngen.Paged(16), device, **options)
    attn.plan(**batch.plan_arguments())
    out, lse = attn.run(batch.q, (batch.k_pool, batch.v_pool), **run_params(batch, attn))
    assert lse is not None
    assert_right("gpt_oss", batch.for_reference(), (out, lse * math.log(2.0) if "lse" in options else lse))


@pytest.mark.parametrize(("br", "bc"), [(1, 1), (2, 8), (3, 16)])
def test_block_sparse(br: int, bc: int, device: str) -> None:
    """Each block row visits every other block of its request, named by position."""
    batch = batch_of(device)
    attn = attention("causal", attngen.BlockSparse(br, bc), device, limits=replace(limits(SHAPE), blocks=4096))
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 300 * bc - len(x)), value=math.nan) for x in spread(batch, bc))
    first_block, block = [], 0
    for length in LENGTHS:
        first_block.append(block)
        block += -(-length // bc)
    indptr, indices, positions, visits = [0], [], [], []
    for request, (q_len, kv_len) in enumerate(SHAPE.requests):
        for row in range(0, q_len, br):
            chosen = range((row // br) % 2, -(-kv_len // bc), 2)
            indices += [first_block[request] + number for number in chosen]
            positions += [number * bc for number in chosen]
            indptr.append(len(indices))
            keys = torch.tensor([number * bc + j for number in chosen for j in range(bc)], dtype=torch.int64)
            rows = range(batch.qo_indptr[request] + row, batch.qo_indptr[request] + min(row + br, q_len))
            visits.append(Visit(rows, first_block[request] * bc + keys, keys))
    plan = {"kv_indptr": indptr, "kv_indices": indices, "kv_positions": positions, "kv_len": LENGTHS}
    attn.plan(qo_indptr=batch.qo_indptr, **plan)
    state = attn.run(batch.q, (k.view(-1, bc, 2, 16), v.view(-1, bc, 2, 16)))
    assert_right("causal", replace(batch.for_reference(), k=k[None], v=v[None], visits=visits, params={}), state)


def spread(batch: RandomBatch, bc: int) -> list[torch.Tensor]:
    """K and V of all requests in a row, each request padded to whole blocks with NaN."""
    padded = []
    for source in gathered(batch):
        parts = [source[begin:end] for begin, end in pairwise(STARTS)]
        padded.append(
            torch.cat([torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -len(x) % bc), value=math.nan) for x in parts])
        )
    return padded


def shared_prefix(device: str) -> RandomBatch:
    """A batch with the first four pages of every request shared."""
    batch = new_batch(device, "gpt_oss", replace(SHAPE, requests=((2, 90), (1, 64), (3, 130), (1, 70))))
    indices = list(batch.kv_indices)
    for begin in batch.kv_indptr[1:-1]:
        indices[begin : begin + 4] = indices[:4]
    return replace(batch, kv_indices=indices)


@pytest.mark.parametrize("name", ["gpt_oss", "causal"])
def test_prefix_tree(name: str, device: str) -> None:
    batch = shared_prefix(device)
    lengths = batch.plan_arguments()
    sizes = replace(limits(batch.shape), levels=8, level_rows=64)
    attn = attention(name, attngen.Paged(16), device, batch.shape, limits=sizes)
    levels = attngen.prefix_tree(**lengths, page_size=16, partial_keys=0.0)
    assert len(levels) > 1
    attn.plan(qo_indptr=lengths["qo_indptr"], kv_len=lengths["kv_len"], levels=levels)
    params = batch.params if name == "gpt_oss" else {}
    state = attn.run(batch.q, (batch.k_pool, batch.v_pool), **{k: v for k, v in params.items() if k == "sinks"})
    assert_right(name, replace(batch.for_reference(), params=params), state)


def test_batch_invariance(device: str) -> None:
    batch, attn = batch_of(device), attention("gpt_oss", attngen.Paged(16), device, batch_invariant=True)
    params = run_params(batch, attn)
    attn.plan(**batch.plan_arguments())
    whole, _ = attn.run(batch.q, (batch.k_pool, batch.v_pool), **params)
    for request, (begin, end) in enumerate(pairwise(batch.qo_indptr)):
        pages = batch.kv_indices[batch.kv_indptr[request] : batch.kv_indptr[request + 1]]
        attn.plan(qo_indptr=[0, end - begin], kv_indptr=[0, len(pages)], kv_indices=pages, kv_len=[LENGTHS[request]])
        alone, _ = attn.run(batch.q[begin:end], (batch.k_pool, batch.v_pool), **params)
        assert torch.equal(alone, whole[begin:end])


def test_transformed_keys(device: str) -> None:
    """A pool that append_kv filled through the key stage gives what raw keys give."""
    name = "qwen3"
    batch = batch_of(device, name)
    raw = attention(name, attngen.Paged(16), device)
    attn = attention(name, attngen.Paged(16), device, keys="transformed")
    params = run_params(batch, raw)
    raw.plan(**batch.plan_arguments())
    expected, _ = raw.run(batch.q, (batch.k_pool, batch.v_pool), **params)
    pool = (torch.full_like(batch.k_pool, math.nan), torch.full_like(batch.v_pool, math.nan))
    k, v = gathered(batch)
    keyed = {p.name: params[p.name] for p in attn.manifest.parameters if p.in_key}
    everything = batch.plan_arguments() | {"qo_indptr": STARTS}
    attngen.append_kv(pool, k, v, attention=attn, **everything, **keyed)
    attn.plan(**batch.plan_arguments())
    out, _ = attn.run(batch.q, pool, **params)
    assert_near(out, expected)


def test_merging_halves(device: str) -> None:
    """Runs over the pages of each half, merged, are the whole: raw, then sink and output by the caller."""
    batch = batch_of(device, "softmax")
    attn = attention("softmax", attngen.Paged(16), device)
    attn.plan(**batch.plan_arguments())
    pools = (batch.k_pool, batch.v_pool)
    whole, lse = attn.run(batch.q, pools)
    states = []
    for part in (0, 1):
        indptr, indices, lengths = [0], [], []
        for request, length in enumerate(LENGTHS):
            pages = batch.kv_indices[batch.kv_indptr[request] : batch.kv_indptr[request + 1]]
            cut = len(pages) // 2
            mine = pages[:cut] if part == 0 else pages[cut:]
            indices += mine
            indptr.append(len(indices))
            lengths.append(cut * 16 if part == 0 else length - cut * 16)
        attn.plan(qo_indptr=batch.qo_indptr, kv_indptr=indptr, kv_indices=indices, kv_len=lengths)
        states.append(attn.run(batch.q, pools))
    merged, merged_lse = attngen.merge(states)
    rows = batch.qo_indptr[-1]
    assert_near(merged[:rows], whole[:rows])
    assert lse is not None and merged_lse is not None
    torch.testing.assert_close(merged_lse[:rows], lse[:rows])


def test_raw_leaves_the_sink_out(device: str) -> None:
    batch, attn = batch_of(device), attention("gpt_oss", attngen.Paged(16), device)
    attn.plan(**batch.plan_arguments())
    state = attn.run(batch.q, (batch.k_pool, batch.v_pool), raw=True, **run_params(batch, attn))
    assert_right("gpt_oss", batch.for_reference(), state, raw=True)
