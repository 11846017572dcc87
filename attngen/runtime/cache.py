"""Compiled kernels by content: the front key of a kernel finds its finished entry, whatever the file times.

The key covers the variant, the configuration and attngen's own code.  The compiler is not in it, so that prebuilt
kernels load where there is none; the entry says which one built it.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

from attngen import env
from attngen.codegen.source import KernelSource
from attngen.runtime import store
from attngen.runtime.build import Recipe, build, job_count, kernel_recipe
from attngen.runtime.build_cubin import build_cubin
from attngen.runtime.store import clear, entries, find, use_bundle

__all__ = ["clear", "entries", "entry", "export", "find", "fingerprint", "make_key", "obtain", "use_bundle"]

_PACKAGE: Final = Path(__file__).resolve().parent.parent
# What decides the text and the code of a kernel, and of the host library.
_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "kernels": (
        "dtypes.py", "compiler.py", "dsl", "ir", "codegen", "prelude", "include", "runtime/build.py",
        "runtime/build_cubin.py", "runtime/toolchain_cuda.py", "../grammar/attn.lark",
    ),
    "host": (
        "include/attngen/work.hpp", "include/attngen/append.hpp", "include/attngen/bounds.hpp", "runtime/native",
        "runtime/build.py",
    ),
}  # fmt: skip
_SUFFIXES: Final = (".py", ".hpp", ".cpp", ".cuh", ".h", ".jinja", ".attn", ".lark")


def entry(key: str, make: Callable[[], KernelSource]) -> Path:
    """The folder of a kernel: from a bundle, else from the cache, else built from what `make` gives, once a key."""

    def fill(folder: Path, log_folder: Path) -> None:
        source = make()
        with store.build_slot(job_count()):
            if source.manifest.config.rows:
                build_cubin(source, folder, log_folder)
            else:
                build(kernel_recipe(source), folder, log_folder)

    return _obtain(key, fill)


def obtain(key: str, make: Callable[[], Recipe]) -> Path:
    """The folder of any shared object; `make` is called only where it has to be built."""

    def fill(folder: Path, log_folder: Path) -> None:
        recipe = make()
        with store.build_slot(job_count()):
            build(recipe, folder, log_folder)

    return _obtain(key, fill)


def _obtain(key: str, fill: Callable[[Path, Path], None]) -> Path:
    """The folder of a key; `fill` builds it in an empty folder and leaves what failed in another."""
    return store.obtain(key, lambda folder: fill(folder, env.cache_dir() / ".failed" / key), fingerprint())


def export(folders: Iterable[Path], out: str | os.PathLike[str]) -> None:
    """Copy finished entries and the host library into a bundle, which loads where there is no compiler."""
    from attngen.runtime import host  # which stands on this module

    store.export([*folders, host.folder()], out, fingerprint())


def make_key(*parts: str, of: Literal["kernels", "host"] = "kernels") -> str:
    """The name of the entry for these parts and this attngen; equal content, equal key, whatever the file times."""
    digest = hashlib.sha256(fingerprint(of).encode())
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


@functools.cache
def fingerprint(of: Literal["kernels", "host"] = "kernels") -> str:
    """A hash of the content of attngen's own code that decides what a build gives."""
    digest = hashlib.sha256()
    for name in _PARTS[of]:
        for file in _files(str(_PACKAGE / name)):
            with open(file, "rb") as opened:
                data = opened.read()
            digest.update(f"{os.path.basename(file)} {len(data)}\n".encode())
            digest.update(data)
    return digest.hexdigest()


def _files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    found: list[str] = []
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.is_dir():
                    found += _files(entry.path)
                elif entry.name.endswith(_SUFFIXES) or "." not in entry.name:  # NVRTC's <cstdint> has no suffix
                    found.append(entry.path)
    return found
