"""GPU kernels without a GPU: a compiler that makes libraries for the fake driver, in which threads are emulated."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attngen.runtime.build import INCLUDE

HERE = Path(__file__).parent
# What ptxas would report; the emulator knows no registers.
REPORT = "ptxas info    : Used 1 registers, 0 bytes spill stores, 0 bytes spill loads"


@dataclass(frozen=True)
class EmulatorCompiler:
    """Takes nvcc's place in build_cubin(): the "cubin" names a library in `libraries`, since its own folder moves."""

    libraries: Path
    path: str = "g++"
    version: str = "emulator"

    def compile(self, folder: Path, main: str, output: str, flags: Sequence[str]) -> tuple[bool, str]:
        """Make folder/output from folder/main; gives whether it did and the log."""
        library = Path(tempfile.mkdtemp(dir=self.libraries)) / "kernel.so"  # several threads compile at once
        kernel = re.search(r"(attngen_\w+)\(const __grid_constant__", (folder / main).read_text())
        assert kernel is not None
        command = [
            *(self.path, "-std=c++20", "-O1", "-w", "-shared", "-fPIC"),
            *(flag for flag in flags if flag.startswith("-D")),
            *("-include", HERE / "cuda_on_cpu.hpp", f"-I{HERE}", f"-I{INCLUDE}", f"-I{folder}"),
            *(f'-DEMULATED_SOURCE="{folder / main}"', f"-DEMULATED_KERNEL={kernel.group(1)}"),
            *(HERE / "launch.cpp", "-o", library),
        ]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            return False, done.stderr
        (folder / output).write_bytes(str(library).encode() + b"\0")
        return True, REPORT
