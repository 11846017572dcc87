"""Compiles C++ for tests and tells what this machine can run."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from attngen.codegen.target import TARGETS, Cpu

INCLUDE = Path(__file__).parents[2] / "attngen" / "include"
FLAGS = ("-std=c++20", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")


@functools.cache
def cpu_flags() -> frozenset[str]:
    text = Path("/proc/cpuinfo").read_text()
    line = next(line for line in text.splitlines() if line.startswith("flags"))
    return frozenset(line.split(":")[1].split())


def runnable_targets() -> list[Cpu]:
    """The SIMD targets that this machine can execute; AMX adds nothing to functors."""
    rows = (TARGETS["cpu-avx2"], TARGETS["cpu-avx512"])
    return [row for row in rows if set(row.isa) <= cpu_flags()]


def needs(tool: str) -> str:
    """The path of a compiler; without it the test is skipped, or fails where CI is set."""
    path = shutil.which(tool)
    if path is None and os.environ.get("CI"):
        pytest.fail(f"CI needs {tool}")
    if path is None:
        pytest.skip(f"no {tool}")
    return path


def run(command: list[str]) -> str:
    """The log of a command that must succeed."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    log = ran.stdout + ran.stderr
    errors = [line for line in log.splitlines() if "error" in line][:12]
    assert ran.returncode == 0, "\n".join(errors) or log[-3000:]
    return log


def shared_object(folder: Path, name: str, text: str, target: Cpu, *flags: str) -> ctypes.CDLL:
    """Compile one translation unit and load it."""
    source, output = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    options = [*FLAGS, *target.flags, *flags, "-fPIC", "-shared", f"-I{INCLUDE}", f"-I{folder}"]
    run([needs("g++"), *options, str(source), "-o", str(output)])
    return ctypes.CDLL(str(output))
