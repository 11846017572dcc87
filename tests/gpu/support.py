"""The batches of tests/batches.py on a device: an Attention for them, parameters, poisoned outputs, and the judge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

import attngen
from attngen.loading import LoadedVariant
from attngen.random_batch import random_parameters
from attngen.reference import judge, reference, rounded
from attngen.trial import split_parameters

from ..batches import Made

State = tuple[torch.Tensor, torch.Tensor | None]


def parameters(variant: LoadedVariant, made: Made) -> dict[str, Any]:
    """A value for every parameter of the variant, sized for the batch."""
    shape, requests = made.shape, made.shape.requests
    sizes = {"Hq": shape.num_qo_heads, "Hk": shape.num_kv_heads, "D": shape.head_dim, "Dv": shape.head_dim_v}
    at_least = {
        "B": len(requests),
        "Rows": made.rows,
        "Slots": made.k.shape[0] * made.k.shape[1],
        "Q": max((rows for rows, _ in requests), default=0),
        "KV": max(made.kv_len, default=0),
    }
    sizes |= {name: max(1, size) for name, size in at_least.items()}
    return random_parameters(variant.ir, sizes, torch.Generator().manual_seed(shape.seed))


def attention(variant: LoadedVariant, made: Made, device: str, /, **options: Any) -> attngen.Attention:
    """An Attention whose limits the batch reaches exactly, its partials poisoned."""
    shape = made.shape
    chosen: dict[str, Any] = {
        "limits": made.limits(),
        "target": device.split(":")[0],
        "device": device,
        **options,
    }
    attn = attngen.Attention(
        variant,
        num_qo_heads=shape.num_qo_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        head_dim_v=shape.head_dim_v,
        dtype=shape.dtype,
        kv_dtype=shape.kv_dtype,
        kv=made.lists.kv,
        **chosen,
    )
    poison(attn)
    return attn


def poison(attn: attngen.Attention) -> None:
    """Fill what a launch must write before it reads."""
    attn._engine.partials.out.fill_(math.nan)
    attn._engine.partials.lse.fill_(math.nan)


def on(device: str, params: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in params.items()}


def outputs(made: Made, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Poisoned out and lse, with a row to spare."""
    rows, heads = made.q.shape[0], made.shape.num_qo_heads
    out = torch.full((rows, heads, made.shape.head_dim_v), math.nan, dtype=made.shape.dtype, device=device)
    return out, torch.full((rows, heads), math.nan, device=device)


def plan(made: Made, attn: attngen.Attention, params: dict[str, Any]) -> None:
    for_plan, _ = split_parameters(attn, params)
    attn.plan(**made.lists.plan, **for_plan)


def run(made: Made, attn: attngen.Attention, params: dict[str, Any], device: str, raw: bool = False) -> State:
    """Run a planned batch; what came out, on the CPU, after a look that rows of no request are as they were."""
    there = made.to(device)
    _, for_run = split_parameters(attn, on(device, params))
    out, lse = outputs(made, device)
    given = {"lse": lse} if attn.manifest.softmax else {}
    attn.run(there.q, there.pool, out=out, raw=raw, **given, **for_run)
    out, lse = out.cpu(), lse.cpu()
    assert out[made.rows :].isnan().all() and lse[made.rows :].isnan().all()
    return out[: made.rows], lse[: made.rows] if attn.manifest.softmax else None


def assert_right(
    variant: LoadedVariant,
    made: Made,
    params: dict[str, Any],
    state: State,
    raw: bool = False,
    transformed: bool = False,
) -> None:
    """Within the bound of rule 13.  `transformed`: the pool holds keys that the key stage has been applied to."""
    ir = replace(variant.ir, key=None) if transformed else variant.ir
    batch = made.for_reference(params)
    verdict = judge(*state, reference(ir, batch, raw=raw), rounded(ir, batch, made.shape.dtype, raw=raw))
    assert verdict.ok, verdict


def try_batch(variant: LoadedVariant, made: Made, device: str, /, raw: bool = False, **options: Any) -> State:
    """Compile, plan, run and judge a batch, twice with the same bits."""
    params, attn = parameters(variant, made), attention(variant, made, device, **options)
    plan(made, attn, params)
    state = run(made, attn, params, device, raw)
    assert_right(variant, made, params, state, raw, transformed=options.get("keys") == "transformed")
    poison(attn)
    assert_same(state, run(made, attn, params, device, raw))
    return state


def assert_same(one: State, other: State) -> None:
    """The same bits."""
    for first, second in zip(one, other, strict=True):
        if first is None or second is None:
            assert first is second
        else:
            assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))
