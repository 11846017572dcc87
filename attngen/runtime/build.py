"""From a recipe to a shared object in a folder: ninja runs the compiler, as many at once as memory allows."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attngen import env
from attngen.codegen.source import APPEND_ROWS, KernelConfig, KernelSource
from attngen.errors import EnvironmentFault
from attngen.runtime import store, toolchain

_PACKAGE: Final = Path(__file__).resolve().parent.parent
INCLUDE: Final = _PACKAGE / "include"
MANIFEST: Final = "manifest.json"
LOG: Final = "build.log"

# No -ffast-math: variants rely on infinities and NaN.  Integers wrap, as the language says.
KERNEL_FLAGS: Final = (
    "-std=c++20", "-O3", "-fPIC", "-pipe", "-fwrapv", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fvisibility=hidden", "-Wno-psabi",
)  # fmt: skip
LINK_FLAGS: Final = ("-shared", "-Wl,--no-undefined")

_JOB_BYTES: Final = 1 << 30  # what one optimising compiler takes, with room to spare


@dataclass(frozen=True, slots=True)
class Recipe:
    """One shared object: files to write by name, units to compile (names of these files, or absolute paths), flags."""

    what: str
    output: str
    files: dict[str, str]
    units: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = LINK_FLAGS


def kernel_recipe(source: KernelSource) -> Recipe:
    """How a generated CPU kernel is built."""
    config = source.manifest.config
    return Recipe(
        what=describe(source.manifest.variant, config),
        output="kernel.so",
        files={**source.files, MANIFEST: source.manifest.to_json()},
        units=(source.main,),
        flags=(*KERNEL_FLAGS, f"-I{INCLUDE}", *source.flags),
    )


def describe(variant: str, config: KernelConfig) -> str:
    """The kernel in a few words, naming every option that isn't the usual."""
    dims = f"{config.head_dim}" if config.head_dim == config.head_dim_v else f"{config.head_dim}/{config.head_dim_v}"
    words = [config.target, f"head_dim {dims}", config.dtype]
    words += [f"{config.kv_dtype} pool"] if config.kv_dtype != config.dtype else []
    words += [f"{config.rows} rows"] if config.rows > 0 else ["append"] if config.rows == APPEND_ROWS else []
    words += ["transformed keys"] if config.keys == "transformed" else []
    words += ["fast_math"] if config.fast_math else []
    return f"`{variant}` ({', '.join(words)})"


def job_count() -> int:
    """How many compilers may run at once: one a core, fewer where free memory is short."""
    if (chosen := env.jobs()) is not None:
        return chosen
    cores = len(os.sched_getaffinity(0))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return cores
    return max(1, min(cores, free // _JOB_BYTES))


def build(recipe: Recipe, folder: Path, log_folder: Path) -> None:
    """Build `recipe` in an empty folder, leaving its files, the shared object and a record of how it came about.

    A failure is an exception with a short excerpt; the folder moves to `log_folder` with the whole log.
    """
    cxx = toolchain.find_cxx()
    for name, text in recipe.files.items():
        (folder / name).write_text(text)
    (folder / "build.ninja").write_text(_ninja_file(recipe, cxx))
    started = time.monotonic()
    store.trace(1, f"building {recipe.what} in {folder}")
    status, log = _run_ninja(folder)
    output = folder / recipe.output
    if status != 0 or not output.is_file() or output.stat().st_size == 0:
        keep_failure(folder, log_folder, log)
        raise toolchain.explain(log, log_folder / LOG, recipe.what, cxx)
    seconds = time.monotonic() - started
    store.trace(2, f"built {recipe.what} in {seconds:.2f} s")
    for rubbish in (*folder.glob(".ninja*"), *folder.glob("*.o"), folder / "build.ninja"):
        rubbish.unlink(missing_ok=True)
    record = {
        "what": recipe.what,
        "output": recipe.output,
        "bytes": output.stat().st_size,
        "compiler": cxx.version,
        "flags": [flag for flag in recipe.flags if not flag.startswith("-I")],
        "seconds": round(seconds, 3),
    }
    (folder / store.RECORD).write_text(json.dumps(record, indent=1))


def _run_ninja(folder: Path) -> tuple[int, str]:
    # NOTE: temporary files of the compiler belong on the cache's disk too, so that one variable moves everything.
    command = [_ninja(), "-C", str(folder), "-j", str(job_count()), *(("-v",) if env.print_commands() else ())]
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env.child_environment(TMPDIR=str(folder)),
        )
    except OSError as fault:
        raise EnvironmentFault(f"`{command[0]}` does not run: {fault}. Install it with `pip install ninja`.") from None
    if env.print_commands():
        print(ran.stdout, end="", file=sys.stderr)
    if ran.returncode < 0:
        return ran.returncode, f"{ran.stdout}\nninja: {signal.strsignal(-ran.returncode)}"
    return ran.returncode, ran.stdout


def _ninja() -> str:
    try:
        import ninja

        program = Path(ninja.BIN_DIR) / "ninja"
        if program.is_file():
            return str(program)
    except ImportError:
        pass
    if found := shutil.which("ninja"):
        return found
    raise EnvironmentFault("The build tool `ninja` is missing. Install it with `pip install ninja`.")


def _ninja_file(recipe: Recipe, cxx: toolchain.Compiler) -> str:
    def command(*words: str) -> str:
        return " ".join(shlex.quote(word) for word in words).replace("$", "$$")

    def path(text: str) -> str:
        return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

    objects = [f"{Path(unit).stem}.o" for unit in recipe.units]
    lines = [
        "ninja_required_version = 1.5",
        "rule compile",
        f"  command = {command(cxx.path, *recipe.flags)} -c $in -o $out",
        "rule link",
        f"  command = {command(cxx.path)} $in -o $out {command(*recipe.link_flags)}",
        *(f"build {path(out)}: compile {path(unit)}" for out, unit in zip(objects, recipe.units, strict=True)),
        f"build {path(recipe.output)}: link {' '.join(path(out) for out in objects)}",
        "",
    ]
    return "\n".join(lines)


def keep_failure(folder: Path, log_folder: Path, log: str) -> None:
    """Keep what failed, where there is space for it: the log is for whoever mends attngen."""
    try:
        shutil.rmtree(log_folder, ignore_errors=True)
        log_folder.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(log_folder)
        (log_folder / LOG).write_text(log)
    except OSError as fault:
        store.trace(1, f"could not keep the log of a failed build in {log_folder}: {fault}")
