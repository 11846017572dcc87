"""GPU kernels on the CPU: the texts, planner and launcher of a GPU, every thread emulated, judged by the reference.

Small batches, since an emulated tile takes a second: tests/gpu has the rest.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attngen.runtime import build_cubin, setup
from tests.batches import Shape, make
from tests.emulator.compiler import EmulatorCompiler
from tests.gpu.support import try_batch
from tests.gpu.test_examples import variants
from tests.runtime.fake_gpu import Fake, fake_driver

DECODE = ((1, 0), (1, 1), (1, 70), (1, 33), (1, 300))
APPEND = ((5, 40), (3, 17), (0, 9), (4, 0))
PREFILL = ((33, 33), (70, 80), (9, 4))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return fake_driver(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The cache of these tests, and where their libraries lie."""
    return tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("libraries")


@pytest.fixture(autouse=True)
def emulated(driver: ctypes.CDLL, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cache, libraries = folders
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(cache))
    monkeypatch.setattr(build_cubin, "find_compiler", lambda _: EmulatorCompiler(libraries))
    monkeypatch.setattr(setup, "find_gpu", Fake(driver).find_gpu)
    yield
    gc.collect()


def run(name: str, shape: Shape, **options: object) -> None:
    for variant in variants(name):
        try_batch(variant, make(shape), "cpu", device="cuda", target="cuda", **options)


@pytest.mark.parametrize("copies", ["late", "early"])
@pytest.mark.parametrize("layout", ["paged", "ragged"])
@pytest.mark.parametrize("requests", [DECODE, APPEND, PREFILL], ids=["decode", "append", "prefill"])
def test_copies(
    requests: tuple[tuple[int, int], ...], layout: str, copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_COPIES", copies)
    run("causal", Shape(requests, layout, page_size=16, head_dim=32, head_dim_v=16, **BF16))


BF16 = {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
