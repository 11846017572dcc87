"""compute-sanitizer over small shapes: no access out of bounds, no race in shared memory, no barrier that parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sanitizer
@pytest.mark.parametrize("part", ["decode", "prefill", "split", "append"])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizer(tool: str, part: str) -> None:
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("no compute-sanitizer on PATH")
    script = [sys.executable, "-m", "tests.gpu.small", part]
    # Kernels are built outside, where it is fast; torch's own are not looked at.
    subprocess.run(script, cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=300)
    only = ["--kernel-name-exclude", "kernel_substring=at::"] if tool != "memcheck" else []
    command = [program, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all", *only, *script]
    ran = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=500)
    log = ran.stdout + ran.stderr
    assert ran.returncode == 0 and "right" in log, log[-4000:]


def environment() -> dict[str, str]:
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # NOTE: torch's cached blocks hide what reads past a tensor.
    return {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
