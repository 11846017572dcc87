"""`attngen doctor`: what this machine has, what it lacks, and how to get it."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from attngen import env
from attngen.cli.report import BAD_ENVIRONMENT, FINE, Commands, target
from attngen.errors import EnvironmentFault
from attngen.runtime import toolchain, toolchain_cuda

PACKAGES = ("torch", "apache-tvm-ffi", "ninja", "lark", "jinja2", "pydantic")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("doctor", help="say what this machine lacks", description=__doc__)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print a line a fact; a missing one says how to get it."""
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("python", platform.python_version),
        *((name, lambda name=name: _package(name)) for name in PACKAGES),
        ("C++ compiler", _compiler),
        ("CPU target", lambda: target("cpu")),
        ("threads", lambda: str(env.num_threads() or len(os.sched_getaffinity(0)))),
        ("cache", _cache),
    )
    missing = 0
    for name, ask in checks:
        try:
            print(f"ok       {name}: {ask()}")
        except EnvironmentFault as fault:
            missing += 1
            print(f"MISSING  {name}: {fault}")
    for name, ask in (("nvcc", _nvcc), ("NVRTC", _nvrtc), ("CUDA driver", _driver), ("GPU target", _gpu)):
        try:
            print(f"ok       {name}: {ask()}")
        except EnvironmentFault as fault:  # which only who wants a GPU misses
            print(f"-        {name}: {fault}")
    return BAD_ENVIRONMENT if missing else FINE


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        raise EnvironmentFault(f"not installed; `pip install {name}`") from None


def _compiler() -> str:
    found = toolchain.find_cxx()
    return f"{found.path} ({found.version})"


def _nvcc() -> str:
    found = toolchain_cuda.find_nvcc()
    return f"{found.path} ({found.version})"


def _nvrtc() -> str:
    found = toolchain_cuda.find_nvrtc()
    return f"{found.path} ({found.version})"


def _driver() -> str:
    return toolchain_cuda.driver_version()


def _gpu() -> str:
    from attngen.runtime.device import find_gpu  # with torch, which no other command should wait for

    gpu = find_gpu("cuda")
    assert gpu is not None
    return f"{gpu.target} ({gpu.name})"


def _cache() -> str:
    folder = env.cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise EnvironmentFault(f"can't write {folder} ({error.strerror}); set ATTNGEN_CACHE_DIR") from None
