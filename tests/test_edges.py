"""The edge rules as a table: many shapes over few kernels, each against the fp64 reference.

`random_batch` poisons unused slots, page tails, spare rows and the outputs with NaN, so every case here also says that
nothing outside the batch is read or written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from attngen.loading import LoadedVariant, load, parse
from attngen.random_batch import Shape, random_batch
from attngen.trial import attention, split_parameters, try_variant, verdict_of

EXAMPLES = Path(__file__).parents[1] / "examples"
NEVER = "attention never:\n    mask: kv < 0\n"
MIXED = ((1, 5), (3, 3), (1, 0), (4, 37), (0, 9), (2, 64))
SMALL = Shape(MIXED, num_qo_heads=4, num_kv_heads=2, head_dim=16, dtype="f32", page_size=16)


@dataclass(frozen=True)
class Case:
    name: str
    variant: str
    shape: Shape = SMALL


def small(**changes: object) -> Shape:
    return replace(SMALL, **changes)  # type: ignore[arg-type]


LENGTHS = {
    "empty_caches": ((1, 0), (4, 0)),
    "one_key": ((1, 1),),
    "one_request": ((5, 21),),
    "no_queries": ((0, 5), (0, 0)),
    "no_request": (),
    "zero_lengths_among_others": ((0, 0), (2, 9), (0, 3), (1, 0), (1, 40), (0, 0)),
    "more_queries_than_keys": ((9, 4), (3, 0), (33, 17)),
    "last_page_full": ((1, 16), (2, 32), (1, 48)),
    "one_more_than_a_page": ((1, 17), (2, 33)),
    "long_and_short": ((1, 1500), (1, 1), (70, 200), (1, 7)),
}
ROWS = ("causal.attn", "gpt_oss.attn", "relu_squared.attn", NEVER)
CASES = [
    *(Case(f"{name}-{row[:6]}", row, small(requests=requests)) for name, requests in LENGTHS.items() for row in ROWS),
    *(Case(f"page_size_{size}", "causal.attn", small(page_size=size)) for size in (1, 5, 16, 256)),
    *(Case(f"group_{g}", "gpt_oss.attn", small(num_qo_heads=2 * g, num_kv_heads=2)) for g in (1, 3, 7, 8, 40)),
    Case("hnd", "causal.attn", small(layout="HND", page_size=5)),
    Case("extreme_logits", "causal.attn", small(magnitude=122.0)),
    Case("extreme_logits_and_sinks", "gpt_oss.attn", small(magnitude=122.0)),
    Case("equal_logits", "causal.attn", small(magnitude=0.0)),
    *(Case(f"bf16_{lanes}", "causal.attn", small(head_dim=lanes, dtype="bf16")) for lanes in (8, 64, 80, 128, 256)),
    *(Case(f"f16_{lanes}", "causal.attn", small(head_dim=lanes, dtype="f16")) for lanes in (16, 72)),
    *(Case(f"f32_{lanes}", "causal.attn", small(head_dim=lanes)) for lanes in (40, 128)),
    Case("wide_keys", "gpt_oss.attn", small(head_dim=64, head_dim_v=24, dtype="bf16")),
    Case("wide_values", "gpt_oss.attn", small(head_dim=16, head_dim_v=112)),
    *(
        Case(f"{pool}_pool", "causal.attn", small(head_dim=32, dtype=dtype, kv_dtype=pool))
        for pool, dtype in (("e4m3", "f16"), ("e5m2", "f16"), ("e4m3", "bf16"))
    ),
]


@cache
def variant(source: str) -> LoadedVariant:
    return load(EXAMPLES / source) if source.endswith(".attn") else parse(source)


def on(device: str, shape: Shape) -> Shape:
    """The shape in a type that the device computes with."""
    return replace(shape, dtype="bf16") if device == "cuda" and shape.dtype == "f32" else shape


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_edge(case: Case, device: str) -> None:
    trial = try_variant(variant(case.variant), on(device, case.shape), repeats=0, target=device)
    assert trial.ok, trial


def test_rows_without_keys_are_exactly_zero(device: str) -> None:
    shape = on(device, SMALL)
    attn = attention(variant("causal.attn"), shape, target=device)
    batch = random_batch(variant("causal.attn").ir, shape).to(device)
    attn.plan(**batch.plan_arguments())
    out, lse = attn.run(batch.q, (batch.k_pool, batch.v_pool))
    assert lse is not None
    row = batch.qo_indptr[2]  # the request with an empty cache
    assert bool((out[row] == 0).all()) and bool((lse[row] == -torch.inf).all())


def test_the_same_bits_every_time(device: str) -> None:
    """Plans of other batches in between, dirty workspaces and new outputs change nothing."""
    small = on(device, SMALL)
    larger = replace(small, requests=((64, 300),) * 6)
    attn = attention(variant("gpt_oss.attn"), larger, target=device)
    results = []
    for shape in (small, larger, small, replace(small, requests=((1, 1),)), small):
        batch = random_batch(variant("gpt_oss.attn").ir, shape)
        there = batch.to(device)
        for_plan, for_run = split_parameters(attn, there.params)
        attn.plan(**batch.plan_arguments(), **for_plan)
        out, lse = there.outputs()
        attn.run(there.q, (there.k_pool, there.v_pool), out=out, lse=lse, **for_run)
        assert verdict_of(variant("gpt_oss.attn").ir, batch, out.cpu(), lse.cpu()).ok
        if shape is small:
            results.append((out[: batch.qo_indptr[-1]], lse[: batch.qo_indptr[-1]]))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])
