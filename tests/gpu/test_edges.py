"""The edge rules on a GPU: those of tests/test_edges.py, and what only a GPU has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import attngen
from attngen.loading import parse
from attngen.random_batch import Shape as Drawn
from attngen.random_batch import random_batch
from attngen.trial import limits, torch_type, try_variant, verdict_of

from ..batches import Made, Shape, make
from ..test_edges import (
    SMALL,
    test_edge,  # noqa: F401
    test_rows_without_keys_are_exactly_zero,  # noqa: F401
    test_the_same_bits_every_time,  # noqa: F401
    variant,
)
from ..test_layouts import LAYOUTS, VARIANT
from .support import (
    assert_right,
    assert_same,
    attention,
    on,
    outputs,
    parameters,
    plan,
    poison,
    run,
    try_batch,
)

BF16, F16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
MIXED = ((1, 400), (40, 100), (1, 7), (0, 0), (17, 65))
EVERYTHING = parse(VARIANT)  # sinks, gates, an output stage, a value gain by slot


def made(layout: str = "paged", requests: Any = MIXED, **changes: Any) -> Made:
    usual: dict[str, Any] = {"head_dim": 64, "head_dim_v": 64, "dtype": BF16, "kv_dtype": BF16, "page_size": 16}
    return make(Shape(requests, layout, **{**usual, **changes}))


# Rules 1, 3, 6 and 13 over all layouts, with splits and without


@pytest.mark.parametrize("workers", [None, 1, 3, 500])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_at_once(layout: str, workers: int | None, device: str) -> None:
    """A sink, an output stage, slots and poison, however many workers share the keys."""
    batch = made(layout, seed=len(layout) + (workers or 0), order="HND" if workers == 3 else "NHD")
    try_batch(EVERYTHING, batch, device, raw=workers == 500, num_workers=workers)


@pytest.mark.parametrize("pool", [BF16, E4M3])
@pytest.mark.parametrize("which", ["k", "v", "gain"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_poisoned_key_reaches_only_the_rows_that_see_it(
    pool: torch.dtype, which: str, value: float, device: str
) -> None:
    batch = made(requests=((1, 9), (40, 70), (1, 130)), kv_dtype=pool)
    params, attn = parameters(EVERYTHING, batch), attention(EVERYTHING, batch, device, num_workers=7)
    plan(batch, attn, params)
    clean_out, clean_lse = run(batch, attn, params, device)
    slot = int(batch.lists.visits[1].slots[60])
    place = slot // batch.k.shape[1], slot % batch.k.shape[1]
    if which == "gain":
        params["gain"][slot] = value
    else:
        tensor = batch.k if which == "k" else batch.v
        lane = tensor[place].float()
        lane[:, 3] = value if tensor.element_size() > 1 else math.nan
        tensor[place] = lane.to(tensor.dtype)
    out, lse = run(batch, attn, params, device)
    assert lse is not None and clean_lse is not None
    blind = torch.ones(batch.rows, dtype=torch.bool)
    blind[31:41] = False  # the positions from 60 to 69
    torch.testing.assert_close(out[blind], clean_out[blind], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse[blind], clean_lse[blind])
    if which != "k" and math.isnan(value):
        assert out[31:41].isnan().any(dim=-1).all()


# Rule 2


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_nothing_is_the_identity_of_merge(dtype: torch.dtype, device: str) -> None:
    out, lse = torch.randn(9, 4, 64, device=device).to(dtype), torch.randn(9, 4, device=device)
    nothing = torch.full_like(out, math.nan), torch.full_like(lse, -math.inf)
    for states in ([(out, lse), nothing], [nothing, (out, lse)], [(out, lse)]):
        merged = attngen.merge(states)
        assert torch.equal(merged[0], out) and merged[1] is not None and torch.equal(merged[1], lse)
    merged = attngen.merge([nothing, nothing])
    assert not merged[0].any() and merged[1] is not None and bool((merged[1] == -math.inf).all())


# Rule 4


@pytest.mark.parametrize("name", ["causal.attn", "gpt_oss.attn"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_extreme_logits(name: str, dtype: str, device: str) -> None:
    shape = replace(SMALL, dtype=dtype, magnitude=122.0, head_dim=64, requests=((1, 300), (40, 90), (3, 3)))
    trial = try_variant(variant(name), shape, repeats=0, target=device)
    assert trial.ok, trial


# Rule 5


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_pools_beyond_2_to_the_31_elements(order: Any, device: str) -> None:
    """The last pages of a pool of 2.2e9 elements a half, on both sides of 2^31 elements and of 2^31 bytes."""
    heads, lanes, page = 8, 128, 16
    pages = 2_200_000_000 // (heads * lanes * page)
    if torch.cuda.mem_get_info()[0] < 3 * 2 * pages * heads * lanes * page:
        pytest.skip("needs 13 GB of free GPU memory")
    shape = Drawn(((1, 100), (70, 90), (1, 37)), 16, heads, lanes, page_size=page, layout=order, dtype="bf16")
    ir = variant("causal.attn").ir
    batch = random_batch(ir, shape)
    used = batch.k_pool.shape[0]
    # The batch's pages, spread over the pool: its first, those around 2^31 bytes and elements, its last.
    edges = [0, 2**30 // (heads * lanes * page), 2**31 // (heads * lanes * page), pages]
    places = [max(0, min(pages - 1, edge + step)) for edge in edges for step in range(-6, 6)]
    places = list(dict.fromkeys(places))[-used:]
    assert len(places) == used
    halves = []
    for small in (batch.k_pool, batch.v_pool):
        pool = torch.empty(pages, *small.shape[1:], dtype=small.dtype, device=device)
        pool[torch.tensor(places, device=device)] = small.to(device)
        halves.append(pool)
    attn = attngen.Attention(
        variant("causal.attn"),
        num_qo_heads=16,
        num_kv_heads=heads,
        head_dim=lanes,
        dtype=torch_type("bf16"),
        kv=attngen.Paged(page, order),
        limits=limits(shape),
        device=device,
    )
    lists = batch.plan_arguments() | {"kv_indices": torch.tensor([places[i] for i in batch.kv_indices]).int()}
    attn.plan(**lists)
    out, lse = attn.run(batch.q.to(device), (halves[0], halves[1]))
    assert lse is not None
    verdict = verdict_of(ir, batch, out.cpu(), lse.cpu())
    assert verdict.ok, verdict


# Rule 7


def test_a_request_alone_and_in_any_batch(device: str) -> None:
    """Bitwise, prefill and decode, each in batches that split its keys differently."""
    requests = ((1, 1000), (60, 300), (1, 17), (3, 90))
    batch = made(requests=requests, dtype=F16, kv_dtype=F16)
    params = parameters(EVERYTHING, batch)
    attn = attention(EVERYTHING, batch, device, batch_invariant=True)
    plan(batch, attn, params)
    whole, whole_lse = run(batch, attn, params, device)
    assert whole_lse is not None
    there = batch.to(device)
    indptr, indices = batch.lists.plan["kv_indptr"], batch.lists.plan["kv_indices"]
    for b, (rows, keys) in enumerate(requests):
        begin = batch.qo_indptr[b]
        pages = indices[indptr[b] : indptr[b + 1]]
        attn.plan(qo_indptr=[0, rows], kv_indptr=[0, len(pages)], kv_indices=pages, kv_len=[keys], n=params["n"])
        own = on(device, {k: v for k, v in params.items() if k != "n"} | {"gate": params["gate"][begin:]})
        out, lse = attn.run(there.q[begin : begin + rows], there.pool, **own)
        assert lse is not None
        assert torch.equal(out.cpu(), whole[begin : begin + rows])
        assert torch.equal(lse.cpu(), whole_lse[begin : begin + rows])


# Rule 8


def test_alternating_plans_over_a_dirty_workspace(device: str) -> None:
    big, small = made(requests=((40, 600),) * 4 + ((1, 900),) * 5), made(requests=((1, 50), (2, 2)), seed=5)
    attn = attention(EVERYTHING, big, device)
    first: dict[int, Any] = {}
    for batch in (big, small, big, big, small, big):
        poison(attn)
        params = parameters(EVERYTHING, batch)
        plan(batch, attn, params)
        state = run(batch, attn, params, device)
        if id(batch) not in first:
            assert_right(EVERYTHING, batch, params, state)
        assert_same(first.setdefault(id(batch), state), state)


# Rule 9


def refused(message: str, change: Callable[[dict[str, Any]], dict[str, Any]], device: str) -> None:
    batch = made(requests=((1, 40), (5, 20)))
    params = parameters(EVERYTHING, batch)
    attn = attention(EVERYTHING, batch, device)
    plan(batch, attn, params)
    there, (out, lse) = batch.to(device), outputs(batch, device)
    arguments = {"q": there.q, "kv": there.pool, "out": out, "lse": lse}
    arguments |= {name: value for name, value in on(device, params).items() if name != "n"}
    with pytest.raises(ValueError, match=message):
        attn.run(**change(arguments))
    torch.cuda.synchronize()
    assert out.isnan().all() and lse.isnan().all()


def test_wrong_tensors_are_refused_before_any_launch(device: str) -> None:
    refused("`q` is .*cpu", lambda a: a | {"q": a["q"].cpu()}, device)
    refused("pool is .*cpu", lambda a: a | {"kv": (a["kv"][0], a["kv"][1].cpu())}, device)
    refused("`out` is .*cpu", lambda a: a | {"out": a["out"].cpu()}, device)
    refused("`lse` is f16", lambda a: a | {"lse": a["lse"].half()}, device)
    refused("`q` is f16", lambda a: a | {"q": a["q"].half()}, device)
    refused("`q` is", lambda a: a | {"q": a["q"][:3]}, device)
    refused("stride", lambda a: a | {"q": a["q"].repeat_interleave(2, -1)[..., ::2]}, device)
    refused("the pool has", lambda a: a | {"kv": (a["kv"][0][:2], a["kv"][1][:2])}, device)
    refused("`gate`.*cpu", lambda a: a | {"gate": a["gate"].cpu()}, device)
    refused("missing argument `gate`", lambda a: {k: v for k, v in a.items() if k != "gate"}, device)
    refused("unknown argument `soft_cap`", lambda a: a | {"soft_cap": 30.0}, device)


def test_wrong_options_are_refused_at_construction(device: str) -> None:
    batch = made(requests=((1, 40),))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dtype": torch.float32, "kv_dtype": torch.float32}, "dtype is torch.float32"),
        ({"kv_dtype": F16}, "kv_dtype is torch.float16"),
        ({"head_dim": 264}, "head_dim is 264"),
    ]
    for changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            attention(EVERYTHING, replace_shape(batch, **changes), device)


def replace_shape(batch: Made, **changes: Any) -> Made:
    return replace(batch, shape=replace(batch.shape, **changes))


def test_plans_that_are_wrong_leave_nothing_to_run(device: str) -> None:
    batch = made(requests=((1, 40), (5, 20)))
    params = parameters(EVERYTHING, batch)
    attn = attention(EVERYTHING, batch, device)
    plan(batch, attn, params)
    with pytest.raises(ValueError, match="kv_len"):
        attn.plan(**{**batch.lists.plan, "kv_len": [40, -1]}, n=params["n"])
    with pytest.raises(ValueError, match="no plan to run"):
        run(batch, attn, params, device)


# Rule 11


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu_whatever_the_current_one_is() -> None:
    batch, results = made(), []
    for current in (0, 1):
        for device in ("cuda:0", "cuda:1"):
            with torch.cuda.device(current):
                results.append(try_batch(EVERYTHING, batch, device))
    for state in results[1:]:
        assert_same(results[0], state)
    attn = attention(EVERYTHING, batch, "cuda:1")
    params = parameters(EVERYTHING, batch)
    plan(batch, attn, params)
    with pytest.raises(ValueError, match="cuda:0"):
        run(batch, attn, params, "cuda:0")


# Rule 12


@pytest.mark.parametrize("lanes", [(8, 8), (24, 40), (56, 56), (96, 96), (112, 80), (192, 128), (256, 256)])
def test_head_dimensions(lanes: tuple[int, int], device: str) -> None:
    for requests in (((1, 130), (2, 20)), ((50, 90), (3, 3))):
        try_batch(variant("causal.attn"), made(requests=requests, head_dim=lanes[0], head_dim_v=lanes[1]), device)


@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (7, 7), (40, 2), (64, 1), (71, 1)])
def test_groups(heads: tuple[int, int], device: str) -> None:
    batch = made(requests=((1, 130), (4, 20), (33, 40)), num_qo_heads=heads[0], num_kv_heads=heads[1])
    try_batch(EVERYTHING, batch, device)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("pool", [E4M3, E5M2])
def test_fp8_pools(dtype: torch.dtype, pool: torch.dtype, device: str) -> None:
    try_batch(EVERYTHING, made(dtype=dtype, kv_dtype=pool), device)


def test_long_sequences(device: str) -> None:
    """Many tiles, many splits of one request, and a prefill of many tiles."""
    try_batch(variant("gpt_oss.attn"), made(requests=((1, 40_000), (1, 3), (300, 3000))), device)


# Whatever strides tensors have


def test_strided_tensors(device: str) -> None:
    """Views into wider tensors, K and V as one tensor, a transposed lse."""
    batch = made(requests=((1, 130), (40, 60)))
    params, attn = parameters(EVERYTHING, batch), attention(EVERYTHING, batch, device)
    plan(batch, attn, params)
    expected = run(batch, attn, params, device)
    there = batch.to(device)
    rows, heads = there.q.shape[0], batch.shape.num_qo_heads
    wide = torch.full((rows, 2 * heads, 128), math.nan, dtype=BF16, device=device)
    wide[:, ::2, :64] = there.q
    out = torch.empty(heads, rows, 64, dtype=BF16, device=device).transpose(0, 1)
    lse = torch.empty(heads, rows, device=device).t()
    for_run = on(device, {name: value for name, value in params.items() if name != "n"})
    for_run["gate"] = torch.stack([for_run["gate"]] * 3, 2)[:, :, 1]
    attn.run(wide[:, ::2, :64], torch.stack([there.k, there.v], 1), out=out, lse=lse, **for_run)
    assert_same(expected, (out[: batch.rows].cpu().contiguous(), lse[: batch.rows].cpu().contiguous()))


def test_device_resident_lists(device: str) -> None:
    """kv_indices and kv_positions on the GPU are read in place: changing them there changes the next run."""
    batch = made("topk", requests=((1, 90), (12, 200)))
    params, attn = parameters(EVERYTHING, batch), attention(EVERYTHING, batch, device)
    plan(batch, attn, params)
    expected = run(batch, attn, params, device)
    lists = {name: torch.tensor(batch.lists.plan[name], dtype=torch.int32) for name in ("kv_indices", "kv_positions")}
    there = on(device, lists)
    attn.plan(**{**batch.lists.plan, **there}, n=params["n"])
    again = run(batch, attn, params, device)
    torch.testing.assert_close(again, expected, rtol=1e-2, atol=1e-2)
    for tensor in there.values():
        tensor.zero_()  # one key, slot 0 at position 0, over and over
    moved = run(batch, attn, params, device)
    assert not torch.equal(moved[0], again[0])
