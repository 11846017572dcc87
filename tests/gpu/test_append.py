"""append_kv on a GPU: against torch, against the key stage in fp64, and in a graph that reads its slots anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen.random_batch import Shape, random_batch
from attngen.reference.bound import FACTOR
from attngen.reference.dense import EXACT
from attngen.reference.stages import Stages

from ..runtime.test_append import FLOATS, rounded

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADS, D, PAGE, PAGES = 2, 64, 5, 9
LIMITS = attngen.Limits(batch=4, q_tokens=64, kv_tokens=PAGE * PAGES)


def attention(name: str, device: str, **options: Any) -> attngen.Attention:
    chosen: dict[str, Any] = {"dtype": torch.bfloat16, "kv": attngen.Paged(PAGE), "head_dim": D, **options}
    return attngen.Attention(
        attngen.load(EXAMPLES / f"{name}.attn"),
        num_qo_heads=4,
        num_kv_heads=HEADS,
        limits=LIMITS,
        device=device,
        **chosen,
    )


def tokens(count: int, dtype: torch.dtype, device: str, lanes: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(count)
    k, v = (3 * torch.randn(count, HEADS, lanes, generator=random) for _ in "kv")
    k[0, 0, 0], v[1, 1, 1] = torch.inf, 1e6
    return k.to(dtype).to(device), v.to(dtype).to(device)


def new_pool(dtype: torch.dtype, device: str, order: str = "NHD", lanes: int = D) -> torch.Tensor:
    shape = (PAGES, 2, PAGE, HEADS, lanes) if order == "NHD" else (PAGES, 2, HEADS, PAGE, lanes)
    return torch.full(shape, 0.5, device=device).to(dtype)


def flat(pool: torch.Tensor, half: int, order: str) -> torch.Tensor:
    """Bytes of a half as [slots, heads, bytes]."""
    nhd = pool[:, half] if order == "NHD" else pool[:, half].transpose(1, 2)
    return nhd.contiguous().view(torch.uint8).reshape(PAGES * PAGE, HEADS, -1)


@pytest.mark.parametrize("by", ["kernel", "torch"])
@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("source", FLOATS[:3])
@pytest.mark.parametrize("pool_type", [torch.bfloat16, *FLOATS[3:]])
def test_raw_keys(by: str, order: Any, source: torch.dtype, pool_type: torch.dtype, device: str) -> None:
    k, v = tokens(30, source, device)
    kv, pool = attngen.Paged(PAGE, order), new_pool(pool_type, device, order)
    where: dict[str, Any] = {"kv": kv}
    if by == "kernel":
        where = {"attention": attention("causal", device, kv=kv, kv_dtype=pool_type)}
    slots = torch.randperm(PAGES * PAGE)[:30].int()
    left_out = torch.tensor([4, 17])
    given = slots.clone()
    given[left_out[0]], given[left_out[1]] = -1, PAGES * PAGE
    attngen.append_kv(pool, k, v, slots=given.to(device), **where)
    kept = torch.ones(30, dtype=torch.bool)
    kept[left_out] = False
    untouched = torch.ones(PAGES * PAGE, dtype=torch.bool)
    untouched[slots[kept].long()] = False
    for half, new in enumerate((k, v)):
        there = flat(pool, half, order).cpu()
        wanted = rounded(new, pool_type).contiguous().view(torch.uint8).cpu()
        assert torch.equal(there[slots[kept].long()], wanted[kept])
        assert torch.equal(there[untouched], flat(new_pool(pool_type, "cpu", order), half, order)[untouched])


@pytest.mark.parametrize("lanes", [64, 72, 128])
@pytest.mark.parametrize("pool_type", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", ["qwen3", "rope_interleaved", "rope_partial", "qk_norm"])
def test_the_key_stage(name: str, pool_type: torch.dtype, lanes: int, device: str) -> None:
    """Within one rounding of the pool's type of the stage in fp64, or of what fp32 makes of an angle of 1110."""
    attn = attention(name, device, keys="transformed", kv_dtype=pool_type, head_dim=lanes)
    variant = attngen.load(EXAMPLES / f"{name}.attn").ir
    params = random_batch(variant, Shape(((1, 9),), 4, HEADS, lanes)).params
    keyed = {p.name: params[p.name] for p in attn.manifest.parameters if p.in_key}
    there = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in keyed.items()}
    k, v = (x.nan_to_num(posinf=1.0).clamp(-9, 9) for x in tokens(31, torch.bfloat16, device, lanes))
    slots, positions = torch.arange(31).int() + 3, (torch.arange(31) * 37).int()
    pool = new_pool(pool_type, device, lanes=lanes)
    attngen.append_kv(pool, k, v, attention=attn, slots=slots.to(device), positions=positions.to(device), **there)
    stages, plain = (
        Stages(variant, params, number, 4, HEADS, (lanes, lanes)) for number in (EXACT.number, torch.float32)
    )
    for head in range(HEADS):
        at = {"kv": positions, "slot": slots, "hk": torch.tensor(head, dtype=torch.int32)}
        exact = stages.vec(variant.key, "x", k[:, head].cpu().double(), at)
        angles = FACTOR * float((plain.vec(variant.key, "x", k[:, head].cpu().float(), at) - exact).abs().max())
        got = pool[:, 0].float().cpu().reshape(PAGES * PAGE, HEADS, lanes)[3:34, head]
        step = torch.finfo(pool_type).eps
        torch.testing.assert_close(
            got.double(), exact, rtol=0.51 * step, atol=max(angles, 2.0**-10 if step > 0.1 else 0.0)
        )


def test_request_lists_from_the_host(device: str) -> None:
    k, v = tokens(9, torch.bfloat16, device)
    pool = new_pool(torch.bfloat16, device)
    lists: dict[str, Any] = dict(
        qo_indptr=[0, 5, 5, 9], kv_indptr=[0, 2, 3, 4], kv_indices=[7, 2, 5, 0], kv_len=[8, 1, 4]
    )
    attngen.append_kv(pool, k, v, attention=attention("causal", device), **lists)
    slots = [38, 39, 10, 11, 12, 0, 1, 2, 3]
    assert torch.equal(flat(pool, 0, "NHD")[slots], k.view(torch.uint8).view(9, HEADS, -1))


def test_a_graph_reads_its_slots_anew(device: str) -> None:
    attn = attention("qwen3", device, keys="transformed")
    params = random_batch(attngen.load(EXAMPLES / "qwen3.attn").ir, Shape(((1, 9),), 4, HEADS, D)).to(device).params
    keyed = {p.name: params[p.name] for p in attn.manifest.parameters if p.in_key}
    k, v = tokens(6, torch.bfloat16, device)
    slots, positions = (torch.arange(6, device=device).int() for _ in "sp")
    pool, expected = new_pool(torch.bfloat16, device), new_pool(torch.bfloat16, device)

    def append(to: torch.Tensor) -> None:
        attngen.append_kv(to, k, v, attention=attn, slots=slots, positions=positions, **keyed)
        attngen.append_kv(to[:, :, :, :, :D], k, v, kv=attngen.Paged(PAGE), slots=slots + 20)

    with pytest.raises(ValueError, match="call it once before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        append(pool)
    append(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        append(pool)
    for first in (0, 7, 13):
        slots.copy_(torch.arange(6).int() + first)
        slots[2] = -1
        positions.fill_(first)
        k.normal_()
        pool.fill_(0.25)
        graph.replay()
        expected.fill_(0.25)
        append(expected)
        assert torch.equal(pool.view(torch.uint8), expected.view(torch.uint8))
    plain = attention("causal", device)
    with pytest.raises(ValueError, match="`slots` is on the CPU"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        attngen.append_kv(pool, k, v, attention=plain, slots=list(range(6)))


def test_wrong_arguments_are_refused_before_anything_is_written(device: str) -> None:
    k, v = tokens(2, torch.bfloat16, device)
    raw, kernel = {"kv": attngen.Paged(PAGE)}, {"attention": attention("causal", device)}
    for where in (raw, kernel):
        for message, change in (
            ("slot 45 of token 1 is outside the pool, which has 45 rows", {"slots": [0, 45]}),
            ("argument `k` is .*cpu", {"k": k.cpu()}),
            ("argument `v` is", {"v": v[:, :1]}),
            ("argument `k` is", {"k": k[:1]}),
            ("1 dimension of int32 or int64", {"slots": torch.zeros(2, device=device)}),
            (
                "memory of its own",
                {"pool": torch.zeros(1, 2, PAGE, HEADS, D, device=device).bfloat16().expand(9, -1, -1, -1, -1)},
            ),
        ):
            arguments: dict[str, Any] = {"pool": new_pool(torch.bfloat16, device), "k": k, "v": v, "slots": [0, 1]}
            with pytest.raises(ValueError, match=message):
                attngen.append_kv(**{**arguments, **change}, **where)  # type: ignore[arg-type]
            assert bool((arguments["pool"] == 0.5).all())
    with pytest.raises(ValueError, match=r"pool is .* on cuda|pool is .*cpu"):
        attngen.append_kv(new_pool(torch.bfloat16, "cpu"), k, v, slots=[0, 1], **kernel)  # type: ignore[arg-type]
