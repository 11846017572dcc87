"""The compilers and the processor of this machine: found, asked, and said plainly when they won't do."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attngen import env
from attngen.errors import EnvironmentFault
from attngen.runtime import store

OLDEST_GCC: Final = 11

_HOW_TO_GET: Final = (
    "Install one (Debian and Ubuntu: `apt install g++`; Fedora: `dnf install gcc-c++`; conda: `conda install gxx`), "
    "name one in ATTNGEN_CXX, or use prebuilt kernels (`attngen build --out DIR` elsewhere, ATTNGEN_BUNDLE=DIR here)."
)
_OUT_OF_SPACE: Final = (
    "No space left on device",
    "File size limit exceeded",
    "File too large",
    "Disk quota exceeded",
    "Read-only file system",
)
_UNKNOWN_OPTION: Final = re.compile(
    r"unrecognized command[- ]line option [‘'`\"]?([^’'\"\s]+)|bad value \(?[‘'`\"]?([^’'\"\s)]+)[’'\"]?\)? for"
)
_ERROR_LINE: Final = re.compile(r"error:|undefined reference|undefined symbol|Killed|internal compiler error")


class CompileFault(RuntimeError):
    """A compiler refused generated code: a fault of attngen's, not of the variant."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its absolute path and the first line of what it says of itself."""

    path: str
    version: str


def find_cxx() -> Compiler:
    """The C++ compiler to use; raises EnvironmentFault with the cure where there is none that will do."""
    wanted = env.cxx()
    candidates = (wanted,) if wanted else ("g++", "c++")
    for candidate in candidates:
        if path := shutil.which(candidate):
            return _ask(path)
    if wanted:
        raise EnvironmentFault(f"ATTNGEN_CXX names `{wanted}`, which is no program that can be run. {_HOW_TO_GET}")
    raise EnvironmentFault(f"No C++ compiler: neither `g++` nor `c++` is on PATH. {_HOW_TO_GET}")


@functools.cache
def _ask(path: str) -> Compiler:
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, env=env.child_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise EnvironmentFault(f"The C++ compiler `{path}` does not run: {fault}. {_HOW_TO_GET}") from None
    lines = asked.stdout.splitlines()
    if asked.returncode != 0 or not lines:
        raise EnvironmentFault(f"`{path} --version` fails, so it is no C++ compiler that will do. {_HOW_TO_GET}")
    major = re.search(r"\b(\d+)\.\d+\.\d+", lines[0])
    if "clang" not in lines[0] and major and int(major[1]) < OLDEST_GCC:
        raise EnvironmentFault(f"`{path}` is {lines[0]}; attngen needs GCC {OLDEST_GCC} or later. {_HOW_TO_GET}")
    return Compiler(path, lines[0].strip())


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets of this machine's processor, by /proc/cpuinfo's names; empty where that can't be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def resolve_target(
    target: str, targets: Sequence[tuple[str, Sequence[str]]], flags: frozenset[str] | None = None
) -> str:
    """`target`, where "cpu" is the first of `targets` (name, needed flags; best first) that this machine can run."""
    if target != "cpu":
        return target
    have = cpu_flags() if flags is None else flags
    for name, needs in targets:
        if have.issuperset(needs):
            return name
    name, needs = targets[-1]
    missing = ", ".join(sorted(set(needs) - have))
    raise EnvironmentFault(f"This processor lacks {missing}, which even the plainest CPU target, `{name}`, needs.")


def check_isa(isa: Sequence[str], what: str) -> None:
    """Refuse code that needs instructions which this machine lacks, before it is loaded."""
    missing = sorted(set(isa) - cpu_flags())
    if missing:
        raise EnvironmentFault(
            f"{what} needs {', '.join(missing)}, which this processor lacks. "
            "Build for target `cpu` on this machine, or choose a plainer target."
        )


def explain(log: str, log_path: Path, what: str, cxx: Compiler) -> Exception:
    """The exception for a failed build: a few lines of the log, never all of it."""
    for phrase in _OUT_OF_SPACE:
        if phrase in log:
            return store.unwritable(env.cache_dir(), phrase)
    if "Killed signal terminated" in log:
        return EnvironmentFault(
            f"The compiler was killed while it built {what}, most likely for want of memory. "
            "Lower ATTNGEN_JOBS, or free some."
        )
    if unknown := _UNKNOWN_OPTION.search(log):
        option = unknown[1] or unknown[2]
        return EnvironmentFault(
            f"`{cxx.path}` ({cxx.version}) does not know `{option}`, which {what} needs. "
            "Use a newer compiler (ATTNGEN_CXX) or a plainer target."
        )
    excerpt = "\n".join(f"  {line}" for line in _excerpt(log))
    return CompileFault(
        f"The compiler refused the code generated for {what}. That is a fault of attngen, not of the variant.\n"
        f"{excerpt}\n  whole log: {log_path}"
    )


def _excerpt(log: str, lines: int = 3, width: int = 200) -> list[str]:
    """The lines of a log that say most: the first errors, where `#line` has mapped them to the variant's file."""
    telling = [line for line in log.splitlines() if _ERROR_LINE.search(line)] or log.strip().splitlines()[-lines:]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in telling[:lines]]
