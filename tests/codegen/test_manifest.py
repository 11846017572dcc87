"""What the manifest says of a variant's parameters."""

from pathlib import Path

import pytest

from attngen import loading
from attngen.codegen.source import KernelConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("example", "in_key"),
    [("qwen3", {"theta", "kw"}), ("qk_norm", {"kw"}), ("rope", {"theta"}), ("t5_fp8", set()), ("causal", set())],
)
def test_the_key_stage_needs_what_it_reads_directly_or_through_hoisted_values(example: str, in_key: set[str]) -> None:
    variant = loading.load(EXAMPLES / f"{example}.attn")
    manifest = variant.lower(KernelConfig("cpu-avx2", 128, 128, "bf16", "bf16")).manifest
    assert {parameter.name for parameter in manifest.parameters if parameter.in_key} == in_key
