"""Building GPU kernels with a compiler that is only played: what is tried, what is recorded, what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attngen.codegen.source import KernelConfig, KernelSource, Manifest, Tile
from attngen.errors import EnvironmentFault
from attngen.runtime import build_cubin, toolchain, toolchain_cuda
from attngen.runtime.toolchain_cuda import read_figures

LOG = """ptxas info    : 24 bytes gmem
ptxas info    : Compiling entry function 'attngen_attention' for 'sm_90a'
ptxas info    : Function properties for attngen_attention
    32 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 194 registers, used 1 barriers, 32 bytes cumulative stack size
"""
FAKE = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release {release}, V1" ;;
  --list-gpu-code) echo "sm_80"; echo "sm_90" ;;
  *) {compile} ;;
esac
"""


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler whose code spills where the text says so; `write` changes what it does."""
    monkeypatch.setenv("ATTNGEN_NVCC", str(tmp_path / "nvcc"))
    monkeypatch.setenv("ATTNGEN_CUDA_COMPILER", "nvcc")
    (tmp_path / "clean").write_text(LOG.format(stores=0, loads=0))
    (tmp_path / "spilt").write_text(LOG.format(stores=8, loads=12))
    write(
        tmp_path / "nvcc",
        f"echo code > kernel.cubin; cat {tmp_path}/$(if grep -q large kernel.cu; then echo spilt; else echo clean; fi)",
    )
    return tmp_path / "nvcc"


def write(path: Path, compile: str, release: str = "13.0") -> None:
    path.write_text(FAKE.format(compile=compile, release=release))
    path.chmod(0o755)
    toolchain_cuda._ask.cache_clear()


def source(*texts: str, arch: str = "sm_90a") -> KernelSource:
    """A kernel whose tiles are these texts, best first."""
    config = KernelConfig("sm90", 64, 64, "bf16", "bf16", rows=16)
    first, *others = (
        KernelSource(
            {"kernel.cu": text},
            "kernel.cu",
            (f"-arch={arch}",),
            Manifest(
                "v", config, (), True, False, False, False, False, (), (Tile(16, 64 >> i, 1.0, 1.0, 1.0),), warps=4
            ),
        )
        for i, text in enumerate(texts)
    )
    return KernelSource(first.files, first.main, first.flags, first.manifest, tuple(others))


def build(tmp_path: Path, kernel: KernelSource) -> Path:
    folder = tmp_path / "built"
    folder.mkdir()
    build_cubin.build_cubin(kernel, folder, tmp_path / "failed")
    return folder


def test_the_first_tile_that_does_not_spill(tmp_path: Path, nvcc: Path) -> None:
    folder = build(tmp_path, source("large", "small", "smaller"))
    manifest = Manifest.from_json((folder / "manifest.json").read_text())
    assert manifest.tiles[0].keys == 32 and manifest.registers == 194 and manifest.spills == 0
    record = json.loads((folder / "build.json").read_text())
    assert record["output"] == "kernel.cubin" and record["stack"] == 32 and record["compiler"] == "nvcc 13.0"
    assert [(one["tile"], one["spills"]) for one in record["rejected"]] == [("16x64", 20)]
    assert (folder / "kernel.cu").read_text() == "small"


def test_no_tile_is_small_enough(tmp_path: Path, nvcc: Path) -> None:
    with pytest.raises(toolchain.CompileFault, match=r"16x64 \(20 bytes spilt\), 16x32 \(20 bytes spilt\)"):
        build(tmp_path, source("large", "larger large"))
    assert (tmp_path / "failed" / "build.log").read_text().count("spill stores") == 2


def test_errors_are_those_of_the_variant_file(tmp_path: Path, nvcc: Path) -> None:
    write(nvcc, "echo 'soft.attn(8): error: identifier is undefined'; exit 1")
    with pytest.raises(toolchain.CompileFault, match=r"soft.attn\(8\): error: identifier") as caught:
        build(tmp_path, source("text"))
    assert str(tmp_path / "failed" / "build.log") in str(caught.value)


@pytest.mark.parametrize("line", ["nvcc fatal   : Unsupported gpu architecture", "nvcc fatal   : no host compiler"])
def test_a_compiler_that_gives_up_is_the_machines_fault(tmp_path: Path, nvcc: Path, line: str) -> None:
    write(nvcc, f"echo '{line}'; exit 1")
    with pytest.raises(EnvironmentFault, match=line):
        build(tmp_path, source("text"))


def test_architectures_are_asked_for_first(tmp_path: Path, nvcc: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"nvcc 13\.0\) makes no code for sm_100a"):
        build(tmp_path, source("text", arch="sm_100a"))


def test_old_and_missing_compilers(tmp_path: Path, nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(nvcc, "exit 1", release="11.8")
    with pytest.raises(EnvironmentFault, match=r"CUDA 11\.8; attngen needs 12"):
        toolchain_cuda.find_compiler("sm_90a")
    monkeypatch.setenv("ATTNGEN_NVCC", "/no/such/nvcc")
    with pytest.raises(EnvironmentFault, match=r"ATTNGEN_NVCC names `/no/such/nvcc`.*ATTNGEN_BUNDLE"):
        toolchain_cuda.find_compiler("sm_90a")
    monkeypatch.setenv("ATTNGEN_CUDA_COMPILER", "clang")
    with pytest.raises(ValueError, match="ATTNGEN_CUDA_COMPILER is 'clang'; it needs nvcc or nvrtc"):
        toolchain_cuda.find_compiler("sm_90a")


def test_nvrtc_stands_in_for_a_missing_nvcc(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = toolchain_cuda.nvrtc.Library("libnvrtc.so", "NVRTC 13.0", frozenset({"sm_90"}), None)  # type: ignore[arg-type]
    monkeypatch.delenv("ATTNGEN_CUDA_COMPILER")
    monkeypatch.setenv("ATTNGEN_NVCC", "/no/such/nvcc")
    monkeypatch.setattr(toolchain_cuda.nvrtc, "find", lambda: library)
    assert toolchain_cuda.find_compiler("sm_90a").version == "NVRTC 13.0"
    monkeypatch.setattr(toolchain_cuda.nvrtc, "find", lambda: None)
    with pytest.raises(EnvironmentFault, match="no NVRTC"):
        toolchain_cuda.find_compiler("sm_90a")


def test_figures_of_several_functions() -> None:
    figures = read_figures(LOG.format(stores=4, loads=0) + LOG.format(stores=0, loads=8).replace("194", "20"))
    assert (figures.registers, figures.spills, figures.stack, figures.clean) == (194, 12, 32, False)


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        "ptxas /tmp/x.ptx, line 9; warning : Registers are spilled to local memory",
    ],
)
def test_warnings_of_ptxas_count(line: str) -> None:
    assert not read_figures(LOG.format(stores=0, loads=0) + line + "\n").clean
