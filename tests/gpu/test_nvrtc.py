"""NVRTC compiles the same kernels as nvcc, for where there is no toolkit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["decode", "prefill", "append"])
def test_without_nvcc(part: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "ATTNGEN_CUDA_COMPILER": "nvrtc",
        "ATTNGEN_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    script = [sys.executable, "-m", "tests.gpu.small", part]
    ran = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0 and "right" in ran.stdout, ran.stdout + ran.stderr
    records = [path.read_text().lower() for path in (tmp_path / "cache").rglob("*.json")]
    assert any("nvrtc" in record for record in records), "no record of a kernel names NVRTC as its compiler"
