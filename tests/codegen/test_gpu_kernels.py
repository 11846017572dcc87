"""Whole GPU kernels, compiled without a GPU: variants that have every hook between them, on three architectures.

ATTNGEN_TEST_KERNELS=all (`make test-nvcc`) compiles every kernel for every target, the default a third of them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from attngen import compiler
from attngen.codegen.source import KernelConfig, KernelSource, Manifest
from attngen.codegen.target import GPUS
from attngen.codegen.tiles import DECODE_ROWS, ROWS, Extras, Shape, shapes, shared_bytes
from attngen.runtime import nvrtc
from attngen.runtime.build_cubin import build_cubin
from tests.codegen.cxx import needs
from tests.codegen.examples import ROOT, lowered
from tests.conftest import Golden

GOLDEN = ROOT / "tests" / "golden" / "functor"
EVERYTHING = """
attention everything:
    tensor gate: f32[Rows, Hq, Dv] in -4.0..4.0
    query(x): x + rotate_pairs(x)
    key(x): x * x[D - 1 - d]
    value(v): max(v, 0.0) + 0.001 * slot
    logits(s): tanh(s)
    mask: kv <= pos
    sink: 0.5
    output(o): o * sigmoid(gate[row, h, d])
"""
CONFIG = KernelConfig("sm90", 128, 128, "bf16", "bf16", rows=16)
# Between them: every hook, half, pair and lane.at, softmax off, a mask that reads tensors, both operand types, pools of
# 8-bit elements, head dimensions that are no multiple of 16, that differ, and the largest.
KERNELS = {
    "causal": replace(CONFIG, head_dim=256, head_dim_v=256),
    "everything": replace(CONFIG, head_dim=40, head_dim_v=72, dtype="f16", kv_dtype="e5m2"),
    "gpt_oss": replace(CONFIG, head_dim=64, head_dim_v=64),
    "output_gate": replace(CONFIG, dtype="f16", kv_dtype="f16"),
    "packed_documents": replace(CONFIG, kv_dtype="e4m3"),
    "qwen3": CONFIG,
    "rope_interleaved": replace(CONFIG, keys="transformed", fast_math=True),
    "rope_partial": replace(CONFIG, head_dim=192, head_dim_v=128),
    "sigmoid": CONFIG,
    "t5_fp8": replace(CONFIG, kv_dtype="e4m3"),
}
TARGETS = ("sm80", "sm90", "sm120")


def rows_of(name: str) -> tuple[int, ...]:
    """The tiles that a kernel can have: no warp holds 32 × 256 results."""
    return tuple(rows for rows in ROWS if rows != 32 or KERNELS[name].head_dim_v < 256)


ALL = [(name, target, rows) for name in KERNELS for target in TARGETS for rows in rows_of(name)]
# Each kernel once a target, its rows by turns: all rows of a target and all targets of a kernel are met.
SOME = [
    (name, target, rows_of(name)[(i + j) % len(rows_of(name))])
    for i, name in enumerate(KERNELS)
    for j, target in enumerate(TARGETS)
]


def source_of(name: str, target: str = "sm90", rows: int = 16) -> KernelSource:
    config = replace(KERNELS[name], target=target, rows=rows)
    if name != "everything":
        return lowered(name, config)[0]
    return compiler.lower(compiler.parse(EVERYTHING, "everything.attn"), name, config)


def build(source: KernelSource, folder: Path) -> Manifest:
    folder.mkdir()
    build_cubin(source, folder, folder.with_name("failed"))
    return Manifest.from_json((folder / "manifest.json").read_text())


@pytest.mark.parametrize(("name", "target", "rows"), ALL if os.environ.get("ATTNGEN_TEST_KERNELS") == "all" else SOME)
def test_kernels_compile_with_nvcc(tmp_path: Path, name: str, target: str, rows: int) -> None:
    needs("nvcc")
    source = source_of(name, target, rows)
    manifest = build(source, tmp_path / "built")
    record = json.loads((tmp_path / "built" / "build.json").read_text())
    assert 0 < manifest.registers <= 255 and manifest.spills == 0
    assert record["registers"] == manifest.registers and record["bytes"] > 0
    assert manifest.tiles in [one.manifest.tiles for one in (source, *source.fallbacks)]


def test_a_kernel_compiles_with_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if nvrtc.find() is None:
        pytest.skip("no NVRTC")
    monkeypatch.setenv("ATTNGEN_CUDA_COMPILER", "nvrtc")
    for name in ("everything", "qwen3"):
        assert build(source_of(name), tmp_path / name).registers > 0


def test_nvcc_gives_the_same_bytes_in_any_folder(tmp_path: Path) -> None:
    needs("nvcc")
    (tmp_path / "another").mkdir()
    folders = (tmp_path / "a", tmp_path / "another" / "much_longer_name")
    for folder in folders:
        build(source_of("gpt_oss"), folder)
    one, other = ((folder / "kernel.cubin").read_bytes() for folder in folders)
    assert one == other


@pytest.mark.parametrize(("name", "rows"), [("qwen3", 16), ("packed_documents", 128)])
def test_kernel_text(name: str, rows: int, golden: Golden) -> None:
    golden(GOLDEN / f"{name}_kernel_{rows}.cu", source_of(name, "sm90", rows).files["kernel.cu"])


# The table of tiles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("head_dim", [8, 64, 128, 192, 256])
def test_some_tile_fits_every_gpu(target: str, kv_dtype: str, head_dim: int) -> None:
    gpu = GPUS[target]
    for extras in (Extras(0, 0, False, False), Extras(5, 9, True, True)):
        for rows in (16, 64):
            config = replace(CONFIG, head_dim=head_dim, head_dim_v=head_dim, kv_dtype=kv_dtype, rows=rows)
            for shape in shapes(config, gpu, extras):
                taken = shared_bytes(config, shape, extras)
                assert taken <= gpu.shared_block and shape.ctas_per_sm * (taken + 1024) <= gpu.shared_sm
                assert shape.keys % (16 if rows not in DECODE_ROWS else 16 * shape.warps) == 0


def test_the_first_tiles_are_the_measured_ones() -> None:
    """On an H200 at head dimension 128: eight warps of 16 keys for decode, four that share 64 for prefill."""
    for rows, first in ((16, Shape(128, 8, 2, 1)), (32, Shape(128, 8, 2, 1)), (128, Shape(64, 4, 2, 2))):
        assert shapes(replace(CONFIG, rows=rows), GPUS["sm90"], Extras(0, 0, False, False))[0] == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 48}, "rows: got 48"),
        ({"rows": 0}, "rows: got 0"),
        ({"rows": 32, "head_dim_v": 256}, "rows: got 32"),
        ({"dtype": "f32"}, "dtype: got 'f32'"),
        ({"kv_dtype": "f16"}, "kv_dtype: got 'f16'"),
        ({"head_dim": 264}, "head_dim: got 264"),
        ({"head_dim_v": 264}, "head_dim_v: got 264"),
        ({"target": "cpu-avx2"}, "rows: got 16"),
    ],
)
def test_what_no_gpu_kernel_can_do_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowered("softmax", replace(CONFIG, **change))  # type: ignore[arg-type]
