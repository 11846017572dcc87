"""Every example over every layout, type and phase, as a sample in which all pairs occur, against the fp64 reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from attngen.loading import LoadedVariant, load_all

from ..batches import Made, Shape, make
from ..pairwise import pairwise
from ..test_examples import EXAMPLES
from .support import try_batch

REQUESTS = {
    "decode": ((1, 0), (1, 1), (1, 300), (1, 64), (1, 1027)),
    "append": ((5, 130), (3, 17), (0, 9), (8, 0), (20, 150)),
    "prefill": ((33, 33), (150, 150), (9, 4), (64, 200)),
}
LAYOUTS = {
    "dense": ("dense", 4),
    "ragged": ("ragged", 4),
    "paged_1": ("paged", 1),
    "paged_5": ("paged", 5),
    "paged_16": ("paged", 16),
    "paged_64": ("paged", 64),
    "levels": ("shared", 16),
    "sparse": ("sparse", 16),
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
POOLS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
HEADS = {"6/2": (6, 2), "8/1": (8, 1), "4/4": (4, 4)}
SPECIAL = {"fp8_per_tensor": "e4m3", "fp8_per_head": "e5m2", "fp8_per_token": "e4m3", "t5_fp8": "e4m3"}
GRID = pairwise(
    {
        "variant": [path.stem for path in EXAMPLES],
        "layout": list(LAYOUTS),
        "phase": list(REQUESTS),
        "heads": list(HEADS),
        "dtype": list(DTYPES),
        "order": ["NHD", "HND"],
    }
)
NARROW = pairwise(
    {
        "variant": ["causal", "gpt_oss", "qwen3"],
        "layout": ["paged_16", "paged_5", "dense"],
        "phase": list(REQUESTS),
        "dtype": list(DTYPES),
        "pool": list(POOLS),
    }
)
WIDE = [
    {"variant": variant, "lanes": lanes, "phase": phase, "dtype": "bf16"}
    for variant, lanes in (
        ("causal", (128, 128)),
        ("causal", (256, 256)),
        ("causal", (80, 80)),
        ("causal", (8, 8)),
        ("gpt_oss", (128, 64)),
        ("gpt_oss", (64, 128)),
        ("qwen3", (128, 128)),
        ("output_gate", (72, 40)),
        ("value_gate", (40, 72)),
    )
    for phase in REQUESTS
]


@cache
def variants(name: str) -> list[LoadedVariant]:
    return load_all(next(path for path in EXAMPLES if path.stem == name))


def label(case: dict[str, Any]) -> str:
    return "-".join("x".join(map(str, value)) if isinstance(value, tuple) else value for value in case.values())


def cases(grid: list[dict[str, Any]]) -> list[Any]:
    """Cases of one kernel go to one worker, so that none waits while another compiles it."""
    marks = [[pytest.mark.xdist_group(f"{case['variant']}-{case['dtype']}")] for case in grid]
    return [pytest.param(case, id=label(case), marks=mark) for case, mark in zip(grid, marks, strict=True)]


def batch(case: dict[str, Any]) -> Made:
    """The batch of a case; factors that it doesn't have take their usual value."""
    layout, page = LAYOUTS[case.get("layout", "paged_16")]
    heads = HEADS[case.get("heads", "6/2")]
    lanes = case.get("lanes", (64, 64))
    dtype = DTYPES[case["dtype"]]
    pool = case.get("pool") or SPECIAL.get(case["variant"])
    shape = Shape(
        REQUESTS[case["phase"]],
        layout,
        num_qo_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=lanes[0],
        head_dim_v=lanes[1],
        dtype=dtype,
        kv_dtype=POOLS[pool] if pool else dtype,
        order=case.get("order", "NHD"),
        page_size=page,
        seed=sum(map(ord, label(case))),
    )
    return make(shape)


@pytest.mark.parametrize("case", [*cases(GRID), *cases(NARROW), *cases(WIDE)])
def test_example(case: dict[str, Any], device: str, record_property: Callable[[str, object], None]) -> None:
    for factor in ("layout", "phase", "dtype", "pool", "lanes", "heads"):
        if factor in case:
            record_property(f"case.{factor}", case[factor])
    made = batch(case)
    for variant in variants(case["variant"]):
        try_batch(variant, made, device)
