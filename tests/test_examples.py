"""Every example on the CPU: compiled, run over a ragged paged batch full of poison, and within its bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attngen.loading import load_all
from attngen.random_batch import Shape
from attngen.trial import try_variant

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.attn"))

# An empty cache, decode, append, prefill, no query, more queries than keys, and a cache of several tiles.
REQUESTS = ((1, 0), (1, 33), (3, 20), (19, 19), (0, 7), (5, 2), (1, 300), (40, 170))
USUAL = Shape(REQUESTS, num_qo_heads=6, num_kv_heads=2, head_dim=64, dtype="bf16", page_size=16)
SPECIAL = {
    "fp8_per_tensor": {"dtype": "f16", "kv_dtype": "e4m3"},
    "fp8_per_head": {"dtype": "f16", "kv_dtype": "e5m2"},
    "fp8_per_token": {"dtype": "bf16", "kv_dtype": "e4m3"},
    "t5_fp8": {"dtype": "f16", "kv_dtype": "e4m3", "layout": "HND"},
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    shape = replace(USUAL, **SPECIAL.get(path.stem, {}))
    for variant in load_all(path):
        trial = try_variant(variant, shape, repeats=1)
        assert trial.ok, trial
