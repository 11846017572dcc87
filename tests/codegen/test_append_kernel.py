"""Append kernels compile for every architecture, with nvcc; no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen.codegen.source import APPEND_ROWS, KernelConfig
from attngen.codegen.target import GPUS
from attngen.loading import load
from tests.codegen.cxx import INCLUDE, needs, run

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = [
    ("qwen3", "transformed", 64, "bf16"),
    ("qwen3", "transformed", 72, "e4m3"),
    ("rope_partial_interleaved", "transformed", 128, "f16"),
    ("causal", "raw", 256, "e5m2"),
]


@pytest.mark.parametrize(("name", "keys", "lanes", "pool"), CASES)
def test_append_kernel_with_nvcc(name: str, keys: str, lanes: int, pool: str, tmp_path: Path) -> None:
    for target in GPUS if name == "qwen3" and lanes == 64 else ("sm90",):
        config = KernelConfig(target, lanes, lanes, "bf16", pool, keys, rows=APPEND_ROWS)  # type: ignore[arg-type]
        source = load(EXAMPLES / f"{name}.attn").lower(config)
        assert ("functor.hpp" in source.files) == (keys == "transformed")
        for file, text in source.files.items():
            (tmp_path / file).write_text(text)
        flags = ["-std=c++20", "-cubin", "-Werror=all-warnings", "-Xptxas=-v", f"-I{INCLUDE}", *source.flags]
        log = run([needs("nvcc"), *flags, str(tmp_path / source.main), "-o", str(tmp_path / "kernel.cubin")])
        assert "0 bytes spill stores" in log
