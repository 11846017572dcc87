"""The compilers of GPU kernels: nvcc where there is one, else NVRTC; and what ptxas says of the code it made."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from attngen import env
from attngen.errors import EnvironmentFault
from attngen.runtime import nvrtc

INCLUDE: Final = Path(__file__).resolve().parent.parent / "include"
OLDEST_CUDA: Final = (12, 0)  # the first with C++20 and sm_90a

_USUAL_PLACE: Final = "/usr/local/cuda/bin/nvcc"
_HOW_TO_GET: Final = (
    "Install the CUDA toolkit (nvcc) or `pip install nvidia-cuda-nvrtc` (NVRTC), name an nvcc in ATTNGEN_NVCC, or use "
    "prebuilt kernels (`attngen build --out DIR` elsewhere, ATTNGEN_BUNDLE=DIR here)."
)


class CudaCompiler(Protocol):
    """What makes a cubin: its path, its version, and the architectures that it knows ("sm_90")."""

    @property
    def path(self) -> str:
        """The program or the library."""
        ...

    @property
    def version(self) -> str:
        """What it says of itself."""
        ...

    @property
    def architectures(self) -> frozenset[str]:
        """What it makes code for, without the letters of architecture-specific code."""
        ...

    def compile(self, folder: Path, main: str, output: str, flags: Sequence[str]) -> tuple[bool, str]:
        """Make folder/output from folder/main; gives whether it did and the whole log."""
        ...


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The toolkit's compiler."""

    path: str
    version: str
    architectures: frozenset[str]

    def compile(self, folder: Path, main: str, output: str, flags: Sequence[str]) -> tuple[bool, str]:
        """One process; names in the folder are relative, so that the same text gives the same bytes anywhere."""
        options = ("-cubin", "-O3", "-Xptxas", "-v,-warn-spills", f"-I{INCLUDE}", *flags)
        return self.run(folder, [*options, main, "-o", output])

    def run(self, folder: Path, words: Sequence[str]) -> tuple[bool, str]:
        """Whether a call in the folder succeeds, and its log."""
        command = [self.path, *words]
        try:
            ran = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=env.child_environment(TMPDIR=str(folder)),
            )
        except OSError as fault:
            raise EnvironmentFault(f"`{self.path}` does not run: {fault}. {_HOW_TO_GET}") from None
        if env.print_commands():
            print(f"{' '.join(command)}\n{ran.stdout}", end="", file=sys.stderr)
        return ran.returncode == 0, ran.stdout


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The compiler as a library; it has no standard headers, so it gets include/attngen/nvrtc."""

    library: nvrtc.Library

    @property
    def path(self) -> str:
        """The library."""
        return self.library.path

    @property
    def version(self) -> str:
        """Its version."""
        return self.library.version

    @property
    def architectures(self) -> frozenset[str]:
        """What it makes code for."""
        return self.library.architectures

    def compile(self, folder: Path, main: str, output: str, flags: Sequence[str]) -> tuple[bool, str]:
        """In this process; the cubin is written only where there is one."""
        includes = [f"-I{path}" for path in (folder, INCLUDE, INCLUDE / "attngen" / "nvrtc")]
        options = ["-default-device", "--ptxas-options=-v", "--ptxas-options=-warn-spills", *includes, *flags]
        cubin, log = self.library.compile(main, (folder / main).read_text(), options)
        if env.print_commands():
            print(f"{self.path} {' '.join(options)} {main}\n{log}", file=sys.stderr)
        if cubin is not None:
            (folder / output).write_bytes(cubin)
        return cubin is not None, log


def find_compiler(arch: str) -> CudaCompiler:
    """The compiler for an architecture ("sm_90a"); EnvironmentFault, with the cure, where none will do."""
    wanted, faults = env.cuda_compiler(), []
    finders: dict[str, Callable[[], CudaCompiler]] = {"nvcc": find_nvcc, "nvrtc": find_nvrtc}
    for name, find in finders.items():
        if wanted not in (None, name):
            continue
        try:
            compiler = find()
        except EnvironmentFault as fault:
            faults.append(str(fault))
            continue
        if arch.rstrip("af") in compiler.architectures:
            return compiler
        faults.append(f"{compiler.path} ({compiler.version}) makes no code for {arch}.")
    raise EnvironmentFault(f"No compiler for {arch} kernels: {' '.join(faults)} {_HOW_TO_GET}")


def find_nvcc() -> Nvcc:
    """The nvcc that ATTNGEN_NVCC names, else that of PATH, else that of the usual place."""
    wanted = env.nvcc()
    for candidate in (wanted,) if wanted else ("nvcc", _USUAL_PLACE):
        if path := shutil.which(candidate):
            return _ask(path)
    if wanted:
        raise EnvironmentFault(f"ATTNGEN_NVCC names `{wanted}`, which is no program that can be run.")
    raise EnvironmentFault(f"There is no `nvcc` on PATH, nor is there {_USUAL_PLACE}.")


def find_nvrtc() -> Nvrtc:
    """The NVRTC of torch's wheels, else the loader's."""
    library = nvrtc.find()
    if library is None:
        raise EnvironmentFault("There is no NVRTC: no libnvrtc beside Python's packages or on the loader's path.")
    _check_version(library.version, library.path)
    return Nvrtc(library)


@functools.cache
def _ask(path: str) -> Nvcc:
    version, known = (_output(path, option) for option in ("--version", "--list-gpu-code"))
    found = re.search(r"release (\d+\.\d+)", version)
    if found is None:
        raise EnvironmentFault(f"`{path} --version` names no release, so it is no nvcc.")
    _check_version(found[1], path)
    return Nvcc(path, f"nvcc {found[1]}", frozenset(known.split()))


def _check_version(text: str, path: str) -> None:
    major, minor = map(int, re.findall(r"\d+", text)[:2])
    if (major, minor) < OLDEST_CUDA:
        raise EnvironmentFault(f"{path} is of CUDA {major}.{minor}; attngen needs {OLDEST_CUDA[0]} or later.")


def _output(path: str, *options: str) -> str:
    command = [path, *options]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env.child_environment())
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise EnvironmentFault(f"`{path}` does not run: {fault}.") from None
    if asked.returncode != 0:
        raise EnvironmentFault(f"`{' '.join(command)}` fails: {asked.stderr.strip()[:200]}")
    return asked.stdout


def driver_version() -> str:
    """The newest CUDA that this machine's driver runs; EnvironmentFault where there is no driver."""
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        raise EnvironmentFault("There is no NVIDIA driver: libcuda.so.1 does not load.") from None
    if status != 0:
        raise EnvironmentFault(f"The NVIDIA driver fails: cuDriverGetVersion gives {status}.")
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def disassemble(cubin: Path) -> str:
    """A cubin's machine code as text, by the toolkit's own tool."""
    beside = shutil.which(env.nvcc() or "nvcc")
    for tool, *options in (("nvdisasm",), ("cuobjdump", "-sass")):
        for place in (Path(beside).parent if beside else None, None):
            if path := shutil.which(tool, path=None if place is None else str(place)):
                return _output(path, *options, str(cubin))
    raise EnvironmentFault("Neither `nvdisasm` nor `cuobjdump` is on PATH; both come with the CUDA toolkit.")


# What ptxas says ----------------------------------------------------------------------------------

_SPILLS: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
# The C75.. remarks are of hand-written matrix instructions that had to be serialised.
_WARNING: Final = re.compile(r"^.*(?:ptxas.*warning|\(C75\d\d\)).*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Figures:
    """A kernel as ptxas made it: registers a thread, bytes spilt (stores and loads) and of stack, and its warnings."""

    registers: int
    spills: int
    stack: int
    warnings: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether the code is as fast as it was written."""
        return self.spills == 0 and not self.warnings


def read_figures(log: str) -> Figures:
    """The figures of a log, over all functions that it tells of."""
    functions = [tuple(map(int, found)) for found in _SPILLS.findall(log)]
    return Figures(
        registers=max(map(int, _REGISTERS.findall(log)), default=0),
        spills=sum(stores + loads for _, stores, loads in functions),
        stack=max((stack for stack, _, _ in functions), default=0),
        warnings=tuple(line.strip() for line in _WARNING.findall(log)),
    )
