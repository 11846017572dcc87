"""From a generated GPU kernel to a cubin in a folder: the first of its tiles whose code needs no spilling."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from attngen.codegen.source import KernelSource, Manifest
from attngen.errors import EnvironmentFault
from attngen.runtime import build, store, toolchain
from attngen.runtime.toolchain_cuda import (
    INCLUDE,
    CudaCompiler,
    Figures,
    disassemble,
    find_compiler,
    find_nvcc,
    read_figures,
)

CUBIN: Final = "kernel.cubin"

# No -use_fast_math: variants rely on infinities and NaN, and on subnormals.
FLAGS: Final = ("-std=c++20", "--fmad=true")


def build_cubin(source: KernelSource, folder: Path, log_folder: Path) -> None:
    """Build a kernel in an empty folder, leaving its files, the cubin and a record of how it came about.

    A failure is an exception with a short excerpt; the folder moves to `log_folder` with the whole log.
    """
    what = build.describe(source.manifest.variant, source.manifest.config)
    compiler = find_compiler(_arch(source))
    store.trace(1, f"building {what} in {folder}")
    started = time.monotonic()
    rejected: list[dict[str, Any]] = []
    logs: list[str] = []
    for candidate in (source, *source.fallbacks):
        made, log = _compile(compiler, candidate, folder)
        logs.append(log)
        if not made:
            build.keep_failure(folder, log_folder, log)
            raise _explain(log, log_folder, what, compiler)
        figures = read_figures(log)
        if figures.clean:
            seconds = time.monotonic() - started
            store.trace(2, f"built {what} in {seconds:.2f} s: {figures.registers} registers")
            _record(candidate, figures, folder, what, compiler, seconds, rejected)
            return
        rejected.append(_rejected(candidate.manifest, figures))
        store.trace(2, f"{what}: {json.dumps(rejected[-1])}")
    build.keep_failure(folder, log_folder, "\n".join(logs))
    raise toolchain.CompileFault(_too_large(what, rejected, log_folder))


def ptx(folder: Path) -> str:
    """A built kernel's PTX, which nvcc makes once more from the texts in its folder."""
    flags = json.loads((folder / store.RECORD).read_text())["flags"]
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "kernel.ptx"
        (main,) = folder.glob("*.cu")
        words = ["-ptx", "-O3", f"-I{INCLUDE}", *flags, str(main), "-o", str(output)]
        made, log = find_nvcc().run(Path(scratch), words)
        if not made:
            raise toolchain.CompileFault(f"nvcc makes no PTX of {main}:\n{log[:2000]}")
        return output.read_text()


def sass(folder: Path) -> str:
    """A built kernel's machine code."""
    return disassemble(folder / CUBIN)


def _arch(source: KernelSource) -> str:
    return next(flag.removeprefix("-arch=") for flag in source.flags if flag.startswith("-arch="))


def _compile(compiler: CudaCompiler, source: KernelSource, folder: Path) -> tuple[bool, str]:
    for name, text in source.files.items():
        (folder / name).write_text(text)
    output = folder / CUBIN
    output.unlink(missing_ok=True)
    made, log = compiler.compile(folder, source.main, CUBIN, (*FLAGS, *source.flags))
    return made and output.is_file() and output.stat().st_size > 0, log


def _record(
    source: KernelSource,
    figures: Figures,
    folder: Path,
    what: str,
    compiler: CudaCompiler,
    seconds: float,
    rejected: list[dict[str, Any]],
) -> None:
    manifest = replace(source.manifest, registers=figures.registers, spills=figures.spills)
    (folder / build.MANIFEST).write_text(manifest.to_json())
    record = {
        "what": what,
        "output": CUBIN,
        "bytes": (folder / CUBIN).stat().st_size,
        "compiler": compiler.version,
        "flags": [*FLAGS, *source.flags],
        "seconds": round(seconds, 3),
        "registers": figures.registers,
        "spills": figures.spills,
        "stack": figures.stack,
        "shared_bytes": manifest.shared_bytes,
        "rejected": rejected,
    }
    (folder / store.RECORD).write_text(json.dumps(record, indent=1))


def _rejected(manifest: Manifest, figures: Figures) -> dict[str, Any]:
    (tile,) = manifest.tiles
    return {
        "tile": f"{tile.rows}x{tile.keys}",
        "warps": manifest.warps,
        "registers": figures.registers,
        "spills": figures.spills,
        "warnings": [line[:200] for line in figures.warnings],
    }


def _too_large(what: str, rejected: list[dict[str, Any]], log_folder: Path) -> str:
    tried = ", ".join(f"{one['tile']} ({one['spills']} bytes spilt)" for one in rejected)
    return (
        f"{what} needs more registers than a thread has, in every tile that attngen knows for it: {tried}. "
        f"Ask for fewer rows, or take work out of the variant's hooks.\n  whole log: {log_folder / build.LOG}"
    )


def _explain(log: str, log_folder: Path, what: str, compiler: CudaCompiler) -> Exception:
    fatal = next((line for line in log.splitlines() if line.startswith("nvcc fatal")), None)
    if fatal is not None:
        return EnvironmentFault(f"`{compiler.path}` ({compiler.version}) can't build {what}: {fatal}")
    return toolchain.explain(log, log_folder / build.LOG, what, toolchain.Compiler(compiler.path, compiler.version))
