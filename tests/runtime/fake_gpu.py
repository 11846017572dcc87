"""A GPU whose memory is the host's, behind a driver that runs its kernels on the CPU (fake_cuda.cpp)."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import torch

from attngen.runtime import host
from attngen.runtime.build import INCLUDE
from attngen.runtime.device import Gpu

SMS: Final = 3


class Fake:
    """The driver's own record, and what a test makes of it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.fake_calls.restype = ctypes.c_char_p
        library.fake_capture.argtypes = [ctypes.c_int64, ctypes.c_int]
        self.library = library
        self.stream = 7

    def calls(self) -> list[str]:
        """What was called since this was last asked."""
        return list(self.library.fake_calls().decode().splitlines())

    def find_gpu(self, device: str) -> Gpu | None:
        """What takes the place of attngen.runtime.setup.find_gpu."""
        return None if device == "cpu" else FakeGpu(int(device.partition(":")[2] or 0), "Fake", (9, 0), SMS, self)

    def capture(self, on: bool) -> None:
        """Begin or end a capture of the current stream."""
        self.library.fake_capture(self.stream, on)


@dataclass(frozen=True)
class FakeGpu(Gpu):
    """A GPU whose memory is the host's."""

    fake: Fake

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dlpack(self) -> tuple[int, int]:
        return 1, self.index

    def stream(self) -> int:
        return self.fake.stream

    def pinned(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8)


def fake_driver(folder: Path) -> ctypes.CDLL:
    """The driver, built in an empty folder and handed to the host library."""
    if torch.cuda.is_available():
        pytest.skip("this process needs the real driver")
    built = folder / "libcuda.so"
    source = Path(__file__).parent / "fake_cuda.cpp"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-O1", f"-I{INCLUDE}", "-o", built, source, "-ldl"]
    subprocess.run([*map(str, command)], check=True)
    host.library().use_cuda_library(str(built))
    return ctypes.CDLL(str(built))
