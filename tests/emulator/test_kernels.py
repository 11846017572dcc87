"""GPU kernels on the CPU: the texts, planner and launcher of a GPU, every thread emulated, judged by the reference.

Small batches, since an emulated tile takes a moment: tests/gpu has the rest.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen.codegen import tiles
from attngen.codegen.source import KernelConfig
from attngen.runtime import build_cubin, setup
from attngen.runtime.plan_records import Plan
from tests.batches import Shape, make
from tests.emulator.compiler import EmulatorCompiler
from tests.gpu import test_examples as gpu
from tests.gpu.support import try_batch
from tests.runtime.fake_gpu import Fake

REQUESTS = {
    "decode": ((1, 0), (1, 1), (1, 300), (1, 64)),
    "append": ((5, 130), (3, 17), (0, 9), (8, 0)),
    "prefill": ((33, 33), (70, 100), (9, 4)),
}
BF16 = {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
NAMES = [path.stem for path in gpu.EXAMPLES]


def cycled(number: int, name: str, phase: str | None = None) -> dict[str, Any]:
    """A case of an example in which layouts, types and phases take turns."""
    choices = {
        "phase": REQUESTS,
        "layout": gpu.LAYOUTS,
        "heads": gpu.HEADS,
        "dtype": gpu.DTYPES,
        "order": ("NHD", "HND"),
    }
    case = {key: tuple(values)[number % len(values)] for key, values in choices.items()}
    return {"variant": name, **case, **({"phase": phase} if phase else {})}


# Every example once, and those that have every hook between them in every phase.
CASES = [cycled(number, name) for number, name in enumerate(NAMES)] + [
    cycled(number + shift, name, phase)
    for number, name in enumerate(
        ("causal", "gpt_oss", "output_gate", "qwen3", "sigmoid", "packed_documents", "t5_fp8")
    )
    for shift, phase in enumerate(REQUESTS)
]


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
    monkeypatch.setattr(gpu, "REQUESTS", REQUESTS)
    yield
    gc.collect()


@pytest.fixture(params=["late", "early"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """When asynchronous copies happen."""
    monkeypatch.setenv("EMULATED_COPIES", request.param)
    return str(request.param)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Every plan that an Attention makes."""
    made: list[Plan] = []
    plan = attngen.Attention.plan

    def planned(self: attngen.Attention, **arguments: Any) -> None:
        plan(self, **arguments)
        made.append(self._planner.read())

    monkeypatch.setattr(attngen.Attention, "plan", planned)
    return made


def run(name: str, made: Any) -> None:
    for variant in gpu.variants(name):
        try_batch(variant, made, "cpu", device="cuda", target="cuda")


@pytest.mark.parametrize("case", [pytest.param(case, id=gpu.label(case)) for case in CASES])
def test_example(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMULATED_COPIES", "late" if case["order"] == "NHD" else "early")
    run(case["variant"], gpu.batch(case))


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("requests", [((1, 300), (1, 1)), ((70, 100), (33, 33))], ids=["decode", "prefill"])
@pytest.mark.parametrize(("storage", "page_size"), [("paged", 32), ("paged", 48), ("dense", 1), ("ragged", 1)])
def test_slices_at_equal_steps(storage: str, page_size: int, requests: Any) -> None:
    """In pages that they divide, whether or not shifts find the page, and in caches without any."""
    run("causal", make(Shape(requests, storage, page_size=page_size, head_dim=32, head_dim_v=16, **BF16)))


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
def test_splits_are_merged(page_size: int, plans: list[Plan]) -> None:
    """More keys than one CTA gets, in pages whose rows are found one by one, or a slice at a time."""
    requests = ((1, 6000), (3, 700))
    run("causal", make(Shape(requests, "paged", page_size=page_size, head_dim=32, head_dim_v=16, **BF16)))
    assert plans and all(plan.merges for plan in plans)


def test_segments_of_items_that_workers_share(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Prefixes of several requests, split between workers that each serve one KV head."""
    monkeypatch.setattr(tiles, "_ladder", lambda config: (tiles.Shape(64, 4, 2, 2),))
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path))  # where nothing else has this tile
    run("causal", make(Shape(((1, 700),) * 5, "shared", page_size=16, head_dim=32, head_dim_v=16, seed=3, **BF16)))
    plan = plans[0]
    assert len(plan.items) == 2 * plan.header.num_items
    assert any(item.segment_count > 1 and item.merge >= 0 for item in plan.items if item.kv_head == 1)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (16, (64, 4, 2, 2)),
        (16, (64, 4, 4, 1)),
        (16, (96, 6, 2, 2)),
        (16, (128, 8, 2, 1)),
        (16, (32, 2, 3, 1)),
        (16, (16, 1, 2, 1)),
        (32, (64, 4, 2, 2)),
        (64, (32, 4, 2, 2)),
        (64, (16, 4, 1, 1)),
        (128, (64, 8, 2, 1)),
        (128, (32, 4, 3, 1)),
        (128, (64, 8, 1, 1)),
    ],
)
def test_tiles(rows: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stages from one to four, warps from one to eight."""
    ladder = tiles._ladder

    def forced(config: KernelConfig) -> Any:
        return (tiles.Shape(*shape),) if config.rows == rows else ladder(config)

    monkeypatch.setattr(tiles, "_ladder", forced)
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path))  # where nothing else has these tiles
    longest = {16: 1, 32: 8, 64: 16, 128: 40}[rows]
    requests = ((longest, 333), (1, 64), (1, 0), (longest // 2 + 1, 129))
    run("causal", make(Shape(requests, "paged", page_size=16, head_dim=32, head_dim_v=32, **BF16)))
