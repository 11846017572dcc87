"""Where an Attention runs: the CPU, or one GPU as torch sees it.  Everything that is asked of torch.cuda is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from attngen.errors import EnvironmentFault

_DLPACK_CUDA: Final = 2

# What the cubin of a target runs on: a compute capability, and whether later minor versions of it do too (code for an
# architecture-specific `sm_90a` runs on 9.0 alone).
_RUNS_ON: Final[dict[str, tuple[int, int, bool]]] = {
    "sm80": (8, 0, True),
    "sm86": (8, 6, True),
    "sm89": (8, 9, True),
    "sm90": (9, 0, False),
    "sm100": (10, 0, False),
    "sm120": (12, 0, False),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its number, its compute capability and how many multiprocessors it has."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def torch_device(self) -> torch.device:
        """The device of its tensors."""
        return torch.device("cuda", self.index)

    @property
    def dlpack(self) -> tuple[int, int]:
        """What DLPack calls it: type and number."""
        return _DLPACK_CUDA, self.index

    @property
    def target(self) -> str:
        """The best target that it runs."""
        for target in reversed(_RUNS_ON):
            if self.runs(target):
                return target
        raise EnvironmentFault(
            f"cuda:{self.index} ({self.name}) has compute capability {_dotted(self.capability)}; "
            f"attngen has kernels for {', '.join(_RUNS_ON)}"
        )

    def runs(self, target: str) -> bool:
        """Whether the code of a target runs here."""
        major, minor, later = _RUNS_ON[target]
        return self.capability == (major, minor) or (
            later and self.capability[0] == major and self.capability[1] > minor
        )

    def check_target(self, target: str, what: str) -> None:
        """Refuse code that this GPU can't run, before it is loaded."""
        if not self.runs(target):
            major, minor, later = _RUNS_ON[target]
            raise EnvironmentFault(
                f"{what} is for {target}, which needs compute capability {_dotted((major, minor))}"
                f"{' or a later minor version' if later else ''}; cuda:{self.index} ({self.name}) has "
                f"{_dotted(self.capability)}. Leave `target` out to build for it."
            )

    def stream(self) -> int:
        """The driver's handle of torch's current stream."""
        return int(torch._C._cuda_getCurrentRawStream(self.index))

    def is_capturing(self) -> bool:
        """Whether torch's current stream is being captured into a CUDA graph."""
        with torch.cuda.device(self.index):
            return bool(torch.cuda.is_current_stream_capturing())

    def pinned(self, *shape: int) -> torch.Tensor:
        """Bytes of host memory that the GPU copies from by itself."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def find_gpu(device: str | torch.device) -> Gpu | None:
    """The GPU of that name; None for the CPU.

    ValueError for anything that is no device of this kind, EnvironmentFault where torch can't use a GPU.
    """
    try:
        parsed = torch.device(device) if isinstance(device, (str, torch.device)) else None
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(device)!r}; it needs 'cpu', 'cuda' or 'cuda:N'")
    if parsed.type == "cpu":
        return None
    _check_cuda(str(device))
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if parsed.index is None else parsed.index
    if index >= count:
        raise ValueError(f"device is {str(device)!r}; this machine has {count} of them, cuda:0 to cuda:{count - 1}")
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return Gpu(index, properties.name, capability, properties.multi_processor_count)


def resolve_target(target: str | None, gpu: Gpu | None) -> str:
    """A row of codegen's targets, or "cpu" for the best that this machine runs; None and "cuda" go by the device."""
    if target is not None and not isinstance(target, str):
        raise ValueError(f"target is {target!r}; it needs a name like 'cpu-avx512' or 'sm90', or None")
    if gpu is None:
        if target == "cuda" or target in _RUNS_ON:
            raise ValueError(f"target is {target!r} and device is 'cpu'; a GPU's target needs device='cuda'")
        return target or "cpu"
    if target is None or target == "cuda":
        return gpu.target
    if target not in _RUNS_ON:
        raise ValueError(f"target is {target!r} and device is a GPU; it needs 'cuda' or one of {', '.join(_RUNS_ON)}")
    gpu.check_target(target, "The kernel")
    return target


def _check_cuda(device: str) -> None:
    if torch.version.cuda is None:
        raise EnvironmentFault(
            f"device is {device!r}, but this torch, {torch.__version__}, is built without CUDA; install one that has it"
        )
    if not torch.cuda.is_available():
        raise EnvironmentFault(
            f"device is {device!r}, but there is no CUDA driver or no GPU that torch can use: "
            "torch.cuda.is_available() is False"
        )
