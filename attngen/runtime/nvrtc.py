"""NVRTC, CUDA's compiler as a library: torch brings it along, so that a machine with no CUDA toolkit compiles too.

Called through ctypes; nothing here needs a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_OK: Final = 0
_LOADER_NAMES: Final = ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")
_IN_WHEELS: Final = ("nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*")


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded NVRTC: where it lies, its version, and the architectures that it makes code for ("sm_90")."""

    path: str
    version: str
    architectures: frozenset[str]
    api: ctypes.CDLL

    def compile(self, name: str, text: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        """The cubin of a translation unit and the log; no cubin where it has errors."""
        program = ctypes.c_void_p()
        self._check(
            self.api.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None),
            "nvrtcCreateProgram",
        )
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self.api.nvrtcCompileProgram(program, len(options), words)
            log = self._get(program, "ProgramLog").decode(errors="replace").rstrip("\0")
            if status == _OK:
                return self._get(program, "CUBIN"), log
            return None, log or f"{name}: error: {self._reason(status)}"
        finally:
            self.api.nvrtcDestroyProgram(ctypes.byref(program))

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self.api, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
        data = ctypes.create_string_buffer(max(1, size.value))
        self._check(getattr(self.api, f"nvrtcGet{what}")(program, data), f"nvrtcGet{what}")
        return data.raw[: size.value]

    def _check(self, status: int, call: str) -> None:
        if status != _OK:
            raise OSError(f"{call} of {self.path} fails: {self._reason(status)}")

    def _reason(self, status: int) -> str:
        return str(self.api.nvrtcGetErrorString(status).decode())


@functools.cache
def find() -> Library | None:
    """The newest NVRTC beside torch's wheels, else the loader's; None where there is none that loads."""
    for path in _candidates():
        try:
            return _open(path)
        except (OSError, AttributeError):
            continue
    return None


def _candidates() -> Iterator[str]:
    in_wheels = [
        path
        for folder in sys.path
        for pattern in _IN_WHEELS
        for path in Path(folder).glob(pattern)
        if re.fullmatch(r"libnvrtc\.so\.\d+", path.name)
    ]
    yield from sorted(map(str, in_wheels), key=lambda path: int(path.rsplit(".", 1)[1]), reverse=True)
    yield from _LOADER_NAMES


def _open(path: str) -> Library:
    api = ctypes.CDLL(path)
    for name in ("CreateProgram", "CompileProgram", "GetProgramLogSize", "GetProgramLog", "GetCUBINSize", "GetCUBIN"):
        getattr(api, f"nvrtc{name}").restype = ctypes.c_int
    handle, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t)
    words = ctypes.POINTER(ctypes.c_char_p)
    api.nvrtcCreateProgram.argtypes = [ctypes.POINTER(handle), text, text, ctypes.c_int, words, words]
    api.nvrtcCompileProgram.argtypes = [handle, ctypes.c_int, words]
    for what in ("ProgramLog", "CUBIN"):
        getattr(api, f"nvrtcGet{what}Size").argtypes = [handle, size]
        getattr(api, f"nvrtcGet{what}").argtypes = [handle, ctypes.c_void_p]
    api.nvrtcDestroyProgram.argtypes = [ctypes.POINTER(handle)]
    api.nvrtcGetErrorString.restype = text
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if api.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) != _OK:
        raise OSError(f"nvrtcVersion of {path} fails")
    if api.nvrtcGetNumSupportedArchs(ctypes.byref(count)) != _OK:
        raise OSError(f"nvrtcGetNumSupportedArchs of {path} fails")
    numbers = (ctypes.c_int * count.value)()
    api.nvrtcGetSupportedArchs(numbers)
    return Library(path, f"NVRTC {major.value}.{minor.value}", frozenset(f"sm_{n}" for n in numbers), api)
