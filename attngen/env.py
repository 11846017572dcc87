"""One table of environment variables: the only place that reads them, and what the manual prints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Variable:
    """A row of the table: what a value looks like, what holds when it is unset, and what it does."""

    name: str
    value: str
    default: str
    doc: str


VARIABLES: Final[dict[str, Variable]] = {
    row.name: row
    for row in (
        Variable(
            "ATTNGEN_CACHE_DIR",
            "a folder",
            "$XDG_CACHE_HOME/attngen, else ~/.cache/attngen",
            "Where compiled kernels are kept. Any writable folder will do; processes may share it.",
        ),
        Variable(
            "ATTNGEN_BUNDLE",
            f"folders, separated by `{os.pathsep}`",
            "none",
            "Prebuilt kernels (`attngen build --out`), searched before the cache; no compiler is needed for them.",
        ),
        Variable("ATTNGEN_CXX", "a program", "g++, else c++", "The C++ compiler for CPU kernels and the host library."),
        Variable(
            "ATTNGEN_NVCC",
            "a program",
            "nvcc, else /usr/local/cuda/bin/nvcc",
            "The CUDA compiler for GPU kernels.",
        ),
        Variable(
            "ATTNGEN_CUDA_COMPILER",
            "nvcc or nvrtc",
            "nvcc where there is one, else nvrtc",
            "Which of CUDA's compilers builds GPU kernels. NVRTC is a library that comes with torch.",
        ),
        Variable(
            "ATTNGEN_JOBS",
            "a number",
            "by cores and free memory",
            "How many compiler processes one build may start.",
        ),
        Variable(
            "ATTNGEN_DISABLE_JIT",
            "0 or 1",
            "0",
            "Never compile: a kernel that is in no bundle and not in the cache is an error.",
        ),
        Variable("ATTNGEN_PRINT_COMMANDS", "0 or 1", "0", "Print every compiler command to stderr."),
        Variable(
            "ATTNGEN_DEBUG",
            "0 to 4",
            "0",
            "Print to stderr: 1 builds, 2 also times and cache keys, 3 also the IR after each pass, "
            "4 also the generated code.",
        ),
        Variable(
            "ATTNGEN_DUMP_DIR",
            "a folder",
            "none",
            "Write every stage of a compilation into this folder. A kernel from the cache or a bundle isn't compiled.",
        ),
        Variable(
            "ATTNGEN_CHECK",
            "0 or 1",
            "0",
            "Check declared ranges of tensors and scalars at every call. Read when an Attention is made.",
        ),
        Variable("ATTNGEN_CHECK_IR", "0 or 1", "0", "Validate the IR after every pass of the compiler."),
        Variable(
            "ATTNGEN_NUM_THREADS",
            "a number",
            "torch.get_num_threads()",
            "Threads of the CPU engine, the calling one included.",
        ),
    )
}


def cache_dir() -> Path:
    """The folder of compiled kernels, as an absolute path."""
    if chosen := _text("ATTNGEN_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "attngen"


def bundles() -> tuple[Path, ...]:
    """The folders of prebuilt kernels, in search order."""
    return tuple(Path(part).expanduser().absolute() for part in _text("ATTNGEN_BUNDLE").split(os.pathsep) if part)


def cxx() -> str | None:
    """The C++ compiler that the user asks for."""
    return _text("ATTNGEN_CXX") or None


def nvcc() -> str | None:
    """The CUDA compiler that the user asks for."""
    return _text("ATTNGEN_NVCC") or None


def cuda_compiler() -> str | None:
    """Which of CUDA's compilers the user asks for: "nvcc", "nvrtc" or None."""
    text = _text("ATTNGEN_CUDA_COMPILER")
    if text not in ("", "nvcc", "nvrtc"):
        raise ValueError(f"ATTNGEN_CUDA_COMPILER is {text!r}; it needs nvcc or nvrtc")
    return text or None


def jobs() -> int | None:
    """How many compiler processes one build may start, where the user says."""
    return _number("ATTNGEN_JOBS", 1)


def disable_jit() -> bool:
    """Whether compiling is forbidden."""
    return _switch("ATTNGEN_DISABLE_JIT")


def print_commands() -> bool:
    """Whether compiler commands are printed."""
    return _switch("ATTNGEN_PRINT_COMMANDS")


def debug() -> int:
    """How much is printed, 0 to 4."""
    return _number("ATTNGEN_DEBUG", 0) or 0


def dump_dir() -> Path | None:
    """Where the stages of a compilation are written."""
    chosen = _text("ATTNGEN_DUMP_DIR")
    return Path(chosen).expanduser().absolute() if chosen else None


def check() -> bool:
    """Whether declared ranges are checked at every call."""
    return _switch("ATTNGEN_CHECK")


def check_ir() -> bool:
    """Whether the IR is validated after every pass."""
    return _switch("ATTNGEN_CHECK_IR")


def num_threads() -> int | None:
    """Threads of the CPU engine, where the user says."""
    return _number("ATTNGEN_NUM_THREADS", 1)


def child_environment(**extra: str) -> dict[str, str]:
    """The environment of a compiler process: this one's with `extra`, and messages in English."""
    return {**os.environ, "LC_ALL": "C", **extra}


def markdown() -> str:
    """The table as the manual prints it."""
    head = "| variable | value | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(f"| `{v.name}` | {v.value} | {v.default} | {v.doc} |\n" for v in VARIABLES.values())


def _text(name: str) -> str:
    assert name in VARIABLES, name
    return os.environ.get(name, "").strip()


def _number(name: str, least: int) -> int | None:
    text = _text(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{name} is {text!r}; it needs {VARIABLES[name].value}, at least {least}")
    return int(text)


def _switch(name: str) -> bool:
    text = _text(name)
    if text not in ("", "0", "1"):
        raise ValueError(f"{name} is {text!r}; it needs 0 or 1")
    return text == "1"
