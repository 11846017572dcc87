from __future__ import annotations

from typing import Any

import pytest
import torch

import attngen
from attngen.runtime import append_gpu
from tests.runtime.tiny_kernel import TinyVariant

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
HEADS, LANES = 2, 64


def tokens(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(count)
    return (3 * torch.randn(count, HEADS, LANES)).to(dtype), torch.randn(count, HEADS, LANES).to(dtype)


def attention(**options: Any) -> attngen.Attention:
    chosen: dict[str, Any] = dict(
        num_qo_heads=4, num_kv_heads=HEADS, head_dim=LANES, dtype=torch.float32, kv=attngen.Paged(16)
    )
    return attngen.Attention(
        TinyVariant(), limits=attngen.Limits(batch=4, q_tokens=64, kv_tokens=4096), **{**chosen, **options}
    )


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """torch's rounding, with fp8 saturated."""
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(dtype).max
        x = x.float().clamp(-largest, largest)
    return x.to(dtype)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool_type", FLOATS)
def test_values_round_as_torch_does(source: torch.dtype, pool_type: torch.dtype) -> None:
    k, v = tokens(70, source)
    pool = (torch.zeros(10, 8, HEADS, LANES).to(pool_type), torch.zeros(10, 8, HEADS, LANES).to(pool_type))
    slots = torch.randperm(80)[:70]
    attngen.append_kv(pool, k, v, kv=attngen.Paged(8), slots=slots)
    for tensor, new in zip(pool, (k, v), strict=True):
        flat = tensor.view(torch.uint8).view(80, HEADS, -1)[slots]
        assert torch.equal(flat, rounded(new, pool_type).view(torch.uint8).view(70, HEADS, -1))


@pytest.mark.parametrize("pool_type", FLOATS[1:])
def test_every_step_of_a_type_and_the_halves_between(pool_type: torch.dtype) -> None:
    codes = torch.arange(2**8 if pool_type.itemsize == 1 else 2**16)
    codes = codes.to(torch.uint8) if pool_type.itemsize == 1 else codes.to(torch.int32).to(torch.int16)
    steps = codes.view(pool_type).float()
    steps = steps[steps.isfinite()].sort().values
    halves = (steps[1:] + steps[:-1]) / 2
    values = torch.cat([steps, halves, torch.nextafter(halves, steps[1:]), torch.nextafter(halves, steps[:-1])])
    values = torch.nn.functional.pad(values, (0, -len(values) % LANES)).view(-1, 1, LANES)
    pool = torch.zeros(len(values), 1, 2, LANES).to(pool_type), torch.zeros(len(values), 1, 2, LANES).to(pool_type)
    both = values.expand(-1, 2, -1)
    attngen.append_kv(pool, both, both, kv=attngen.Paged(1), slots=range(len(values)))
    assert torch.equal(pool[0].view(torch.uint8), rounded(both, pool_type).unsqueeze(1).view(torch.uint8))


def test_overflow_and_nan() -> None:
    x = torch.zeros(1, 1, 8)
    x[0, 0, :5] = torch.tensor([1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    for dtype in FLOATS:
        pool = torch.zeros(1, 1, 1, 8).to(dtype), torch.zeros(1, 1, 1, 8).to(dtype)
        attngen.append_kv(pool, x, x, kv=attngen.Paged(1), slots=[0])
        big, small, inf, minus_inf, nan = pool[0].float()[0, 0, 0, :5].tolist()
        assert nan != nan
        if dtype.itemsize == 1:
            assert big == inf == torch.finfo(dtype).max and small == minus_inf == -torch.finfo(dtype).max
        else:
            assert inf == torch.inf and minus_inf == -torch.inf


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("together", [False, True])
def test_pages_of_a_batch(layout: Any, together: bool) -> None:
    page, pages = 4, 9
    shape = (pages, page, HEADS, LANES) if layout == "NHD" else (pages, HEADS, page, LANES)
    pool: Any = torch.full((pages, 2, *shape[1:]), torch.nan)
    halves = pool[:, 0], pool[:, 1]
    k, v = tokens(9)
    # request 0 grows from 3 to 8, request 1 gets nothing, request 2 starts with 4 of 4
    attngen.append_kv(
        pool if together else halves,
        k,
        v,
        kv=attngen.Paged(page, layout),
        qo_indptr=[0, 5, 5, 9],
        kv_indptr=[0, 2, 3, 4],
        kv_indices=torch.tensor([7, 2, 5, 0]),
        kv_len=[8, 1, 4],
    )
    slots = [7 * 4 + 3, 8, 9, 10, 11, 0, 1, 2, 3]
    for half, new in zip(halves, (k, v), strict=True):
        nhd = half if layout == "NHD" else half.transpose(1, 2)
        flat = nhd.reshape(pages * page, HEADS, LANES)
        assert torch.equal(flat[slots], new)
        rest = torch.ones(pages * page, dtype=torch.bool)
        rest[slots] = False
        assert flat[rest].isnan().all()


def test_ragged_and_dense() -> None:
    k, v = tokens(3)
    ragged = torch.zeros(10, HEADS, LANES), torch.zeros(10, HEADS, LANES)
    attngen.append_kv(ragged, k, v, kv=attngen.Ragged(), qo_indptr=[0, 1, 3], kv_indptr=[0, 4, 10], kv_len=[4, 6])
    assert torch.equal(ragged[0][[3, 8, 9]], k) and torch.equal(ragged[1][[3, 8, 9]], v)
    dense = torch.zeros(2, 2, 7, HEADS, LANES)
    attngen.append_kv(dense, k, v, kv=attngen.Dense(7), qo_indptr=[0, 1, 3], kv_len=[1, 6])
    assert torch.equal(dense[0, 0, 0], k[0]) and torch.equal(dense[1, 1, 4:6], v[1:])


def test_negative_slots_leave_their_tokens_out() -> None:
    k, v = tokens(3)
    pool = torch.zeros(2, 2, HEADS, LANES), torch.zeros(2, 2, HEADS, LANES)
    attngen.append_kv(pool, k, v, kv=attngen.Paged(2), slots=[2, -1, 0])
    assert torch.equal(pool[0][1, 0], k[0]) and torch.equal(pool[0][0, 0], k[2])
    assert not pool[0][0, 1].any() and not pool[0][1, 1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformed_keys_go_through_the_key_stage(dtype: torch.dtype) -> None:
    attn = attention(keys="transformed", kv_dtype=dtype)
    k, v = tokens(70)
    pool = torch.zeros(5, 16, HEADS, LANES, dtype=dtype), torch.zeros(5, 16, HEADS, LANES, dtype=dtype)
    weight = torch.randn(LANES)
    attngen.append_kv(
        pool, k, v, attention=attn, qo_indptr=[0, 70], kv_indptr=[0, 5], kv_indices=range(5), kv_len=[75], weight=weight
    )
    positions = torch.arange(5, 75).float()[:, None, None]
    assert torch.equal(pool[0].view(80, HEADS, LANES)[5:75], (2 * k + positions + weight).to(dtype))
    assert torch.equal(pool[1].view(80, HEADS, LANES)[5:75], v.to(dtype))


def test_an_attention_with_raw_keys_copies_them() -> None:
    k, v = tokens(2)
    pool = torch.zeros(1, 16, HEADS, LANES), torch.zeros(1, 16, HEADS, LANES)
    attngen.append_kv(pool, k, v, attention=attention(), slots=[3, 4])
    assert torch.equal(pool[0][0, 3:5], k)


def refused(message: str, **changes: Any) -> None:
    k, v = tokens(2)
    pool = torch.zeros(2, 16, HEADS, LANES), torch.zeros(2, 16, HEADS, LANES)
    arguments: dict[str, Any] = dict(pool=pool, k=k, v=v, kv=attngen.Paged(16), slots=[0, 1])
    arguments.update(changes)
    with pytest.raises(ValueError, match=message):
        attngen.append_kv(**{name: value for name, value in arguments.items() if value is not None})
    assert not pool[0].any() and not pool[1].any()


def test_wrong_arguments_are_refused_before_anything_is_written() -> None:
    k, v = tokens(2)
    pages = dict(slots=None, qo_indptr=[0, 2], kv_indptr=[0, 1], kv_indices=[0], kv_len=[2])
    refused("missing argument `kv`", kv=None)
    refused("slot 32 of token 1 is outside the pool, which has 32 rows", slots=[0, 32])
    refused(r"argument `k` is f32\[1, 2, 64\]; it needs f32\[tokens = 2, Hk = 2, D = 64\]", k=k[:1])
    refused(r"argument `v` is f32\[2, 1, 64\]", v=v[:, :1])
    refused("arguments `k` and `v` are i32.*need a float type", k=k.int())
    refused(r"slots is torch.float32\[2\]; it needs 1 dimension of int32 or int64", slots=torch.zeros(2))
    refused("arguments `slots` and `kv_len` are both given", kv_len=[2])
    refused("missing argument `kv_len`", **{**pages, "kv_len": None})
    refused("qo_indptr has 1 entries; it needs 2", **{**pages, "qo_indptr": [2]})
    refused("qo_indptr ends at 3; k has 2 tokens", **{**pages, "qo_indptr": [0, 3]})
    two = {**pages, "kv_indptr": [0, 1, 1], "kv_len": [16, 2]}
    refused("qo_indptr goes from 0 to 9 at entry 0; it needs to rise from 0", **{**two, "qo_indptr": [0, 9, 2]})
    refused(
        "qo_indptr goes from 1 to 2; it needs to rise from 0 to the number of tokens, 2",
        **{**two, "qo_indptr": [1, 2, 2]},
    )
    refused("qo_indptr goes from 2 to 1 at entry 1|qo_indptr ends at 1", **{**two, "qo_indptr": [0, 2, 1]})
    refused(r"kv_len\[0\] is 1, but 2 tokens are appended", **{**pages, "kv_len": [1]})
    refused("request 0 has 1 blocks of 16; kv_len 17 needs 2", **{**pages, "kv_len": [17]})
    refused(r"slot .* of token 0 is outside the pool", **{**pages, "kv_indices": [2]})
    refused(r"kv_indices\[0\] is -1, which is no block", **{**pages, "kv_indices": [-1]})
    refused("`weight` is given, but no key stage", weight=torch.zeros(LANES))
    refused("kv is Paged.*but the attention reads", attention=attention(kv=attngen.Paged(8)))
    refused("has no indices", **{**pages, "kv": attngen.Ragged()})
    refused("a Dense cache has one row a request", **{**pages, "kv": attngen.Dense(16), "kv_indices": None})
    refused(
        "qo_indptr goes from 2 to 2; it needs to rise from 0",
        **{**pages, "qo_indptr": [2], "kv_len": [], "kv_indptr": [0]},
    )
    refused("argument `k` is a list; it needs a tensor", k=k.tolist())
    refused(r"argument `v` is \[2, 64\]; it needs a tensor \[tokens, Hk, D\]", v=v[:, 0])
    refused("argument `v` is on meta", v=v.to("meta"))
    refused("argument `k` requires a gradient", k=k.clone().requires_grad_())
    refused("kv is 'NHD'; it needs Paged", kv="NHD")
    refused("slots has -9223372036854775808; it needs numbers of 32 bits", slots=torch.tensor([0, -(2**63)]))
    refused("slots is a list, need a tensor or a sequence of integers", slots=[0.5, 1])
    shared = torch.zeros(1, 16, HEADS, LANES).expand(2, -1, -1, -1)
    refused("the K pool is .* with stride 0 along dimension 0; it needs memory of its own", pool=(shared, shared))
    close = torch.zeros(18 * HEADS, LANES).as_strided((2, 16, HEADS, LANES), (64, 128, 64, 1))
    refused("the K pool is .* with stride 64 along dimension .; it needs memory of its own", pool=(close, close))


def test_a_request_is_not_appended_beyond_its_own_run() -> None:
    """Neither into the tokens of the next request of a ragged cache, nor into the next row of a dense one."""
    pool = torch.zeros(32, HEADS, LANES), torch.zeros(32, HEADS, LANES)
    ragged = dict(slots=None, pool=pool, kv=attngen.Ragged(), qo_indptr=[0, 2, 2])
    refused("request 0 has 5 blocks of 1; kv_len 6 needs 6", **ragged, kv_indptr=[0, 5, 9], kv_len=[6, 0])
    refused("request 1 has -3 blocks of 1; kv_len 0 needs 0", **ragged, kv_indptr=[0, 5, 2], kv_len=[5, 0])
    dense = dict(slots=None, kv=attngen.Dense(16), qo_indptr=[0, 2])
    refused("request 0 has 1 blocks of 16; kv_len 17 needs 2", **dense, kv_len=[17])


def test_parameters_of_the_key_stage_are_checked() -> None:
    attn = attention(keys="transformed")
    weight = torch.zeros(LANES)
    refused("missing argument `positions`", attention=attn, weight=weight)
    refused("missing argument `weight`: the variant needs f32", attention=attn, positions=[0, 1])
    refused("`bias` is not read by the key stage", attention=attn, positions=[0, 1], weight=weight, bias=weight)
    refused("position -1 of token 1 is negative", attention=attn, positions=[0, -1], weight=weight)


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pool_type", FLOATS)
def test_torch_and_the_host_library_scatter_alike(order: Any, source: torch.dtype, pool_type: torch.dtype) -> None:
    """What runs on a GPU without an Attention, here on the CPU; slots outside the pool leave their tokens out."""
    kv, shape = attngen.Paged(5, order), (7, 5, HEADS, LANES) if order == "NHD" else (7, HEADS, 5, LANES)
    k, v = tokens(12, source)
    k[3, 0, 0], v[4, 1, 2] = torch.nan, 1e30
    slots = torch.tensor([3, 30, 12, -1, 0, 34, 7, -5, 21, 9, 1, 2], dtype=torch.int32)
    expected, pool = [tuple(torch.full(shape, 0.5).to(pool_type) for _ in "kv") for _ in range(2)]
    attngen.append_kv(expected, k, v, kv=kv, slots=slots)
    slots[7] = 35
    append_gpu.scatter(kv, *pool, k, v, slots)
    for one, other in zip(pool, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    append_gpu.scatter(kv, *pool, -k, -v, torch.full((12,), -1))
    for one, other in zip(pool, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
