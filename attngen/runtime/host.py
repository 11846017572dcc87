"""The host library: planner, launcher, merge and append in C++17, built through the cache and loaded on first need."""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any, Final

import tvm_ffi

from attngen.errors import EnvironmentFault
from attngen.runtime import cache
from attngen.runtime.build import INCLUDE, LINK_FLAGS, Recipe

_NATIVE: Final = Path(__file__).resolve().parent / "native"
_OUTPUT: Final = "host.so"
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-pipe", "-fvisibility=hidden", "-pthread")


def library() -> Any:
    """The loaded library; its functions are attributes."""
    return _load()


@functools.cache
def _load() -> Any:
    path = folder() / _OUTPUT
    try:
        return tvm_ffi.load_module(str(path))
    except (OSError, RuntimeError) as fault:
        raise EnvironmentFault(
            f"The host library {path} does not load: {fault}. If it comes from a bundle, make that again on a machine "
            "like this one; else remove it with `attngen cache clear`."
        ) from None


def folder() -> Path:
    """The library's entry, built where neither a bundle nor the cache has it."""
    return cache.obtain(key(), _recipe)


def key() -> str:
    """The entry's key: the sources, the processor family, and the tvm-ffi release whose headers they include."""
    release = ".".join(tvm_ffi.__version__.split(".")[:2])
    return cache.make_key("host", platform.machine(), release, of="host")


def _recipe() -> Recipe:
    library = Path(tvm_ffi.libinfo.find_libtvm_ffi())
    includes = dict.fromkeys((tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()))
    return Recipe(
        what="the host library",
        output=_OUTPUT,
        files={},
        units=tuple(str(path) for path in sorted(_NATIVE.glob("*.cpp"))),
        flags=(*_FLAGS, f"-I{INCLUDE}", *(f"-I{path}" for path in includes)),
        # No run path: tvm_ffi has loaded its own library before this one asks for it.
        link_flags=(*LINK_FLAGS, "-pthread", f"-L{library.parent}", "-ltvm_ffi", "-ldl"),
    )
