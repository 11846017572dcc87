"""What plans and runs for an Attention: the host library's launcher with its workspace, on the CPU or on a GPU.

Both engines are used alike: begin(), planned(scalars), planner.plan(arena=engine.arena, …), commit(); then launch().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
import tvm_ffi

from attngen import env
from attngen.errors import EnvironmentFault
from attngen.runtime import host, workspace
from attngen.runtime.arguments import TYPES, specification
from attngen.runtime.device import Gpu
from attngen.runtime.kv import pool_words
from attngen.runtime.limits import PlanConfig
from attngen.runtime.module import Kernel
from attngen.runtime.plan import Planner
from attngen.runtime.setup import Options, thread_count
from attngen.runtime.workspace import Partials

_LSE_SCALE: Final = {"natural": 0.6931471805599453, "log2": 1.0}  # ln 2
_BUFFERS: Final = 3  # plans that may be on their way to a GPU at once


class Engine(Protocol):
    """One Attention's planner, workspace and launcher."""

    planner: Planner
    partials: Partials
    arena: torch.Tensor  # that the plan which was begun is written to
    device: torch.device

    def begin(self) -> None:
        """From here on there is no plan to run."""
        ...

    def planned(self, values: Sequence[Any]) -> None:
        """Take over the scalars of plan(): a value a parameter, of which the planned ones count."""
        ...

    def commit(self) -> None:
        """The plan in `arena` is whole: runs follow it from here on."""
        ...

    def launch(self, q: Any, k: Any, v: Any, out: Any, lse: Any, raw: bool, *values: Any) -> None:
        """Check the arguments and start the kernels."""
        ...

    def is_capturing(self) -> bool:
        """Whether launches are captured into a graph instead of run."""
        ...

    def release_graphs(self) -> None:
        """Captured graphs are gone."""
        ...


class CpuEngine:
    """Workers are spread over threads; a launch returns when the work is done."""

    def __init__(self, options: Options, kernels: Sequence[Kernel], config: PlanConfig) -> None:
        library = host.library()
        self.device = torch.device("cpu")
        self.planner = Planner(config, library.planner)
        self.arena = self.planner.arena
        self.partials = workspace.allocate(config.workspace(options.lanes_v), self.device)
        self.launch, self.begin, self._planned = library.launcher(
            kernels[0].handle,
            thread_count(),
            *_specification(options, kernels[0], config),
            *map(tvm_ffi.from_dlpack, (self.arena, *_tensors(self.partials))),
            specification(kernels[0].manifest, (options.num_qo_heads, options.num_kv_heads)),
            env.check(),
        )

    def planned(self, values: Sequence[Any]) -> None:
        """Take over the scalars of plan()."""
        self._planned(*values)

    def commit(self) -> None:
        """Nothing to do: kernels read the planner's own arena."""

    def is_capturing(self) -> bool:
        """Never."""
        return False

    def release_graphs(self) -> None:
        """There are none."""


class CudaEngine:
    """Plans are copied to a fixed place on the GPU, and launches go to torch's current stream."""

    def __init__(self, options: Options, kernels: Sequence[Kernel], config: PlanConfig, gpu: Gpu) -> None:
        for kernel in kernels:
            gpu.check_target(kernel.manifest.config.target, f"The kernel {kernel.folder}")
        library = host.library()
        manifest, heads = kernels[0].manifest, (options.num_qo_heads, options.num_kv_heads)
        sizes = config.workspace(options.lanes_v)
        self.device = gpu.torch_device
        self._stream = gpu.stream
        # NOTE: first, so that torch, which asks for pinned memory where it has been before, doesn't wake another GPU.
        there = torch.empty(sizes.arena, dtype=torch.uint8, device=self.device)
        buffers = gpu.pinned(_BUFFERS, sizes.arena)
        self._arenas = buffers.unbind()
        self.arena = self._arenas[0]
        self.planner = Planner(config, library.planner, arena=self.arena, device_arena=(there.data_ptr(), gpu.index))
        self.partials = workspace.allocate(sizes, self.device)
        zeros = torch.zeros(64, dtype=torch.uint8, device=self.device)  # what an empty tensor is read as
        parameters = specification(manifest, heads)
        queues = zip(kernels, config.queues, strict=True)
        self._order_after_torch()
        try:
            functions = library.cuda_launcher(
                [word for kernel, workers in queues for word in (kernel.handle, workers)],
                list(gpu.dlpack),
                *_specification(options, kernels[0], config),
                *map(tvm_ffi.from_dlpack, (there, *_tensors(self.partials), zeros, buffers)),
                parameters,
                env.check(),
            )
        except RuntimeError as fault:
            folders = ", ".join(str(kernel.folder) for kernel in kernels)
            raise EnvironmentFault(
                f"The kernels {folders} don't load on cuda:{gpu.index} ({gpu.name}): {fault}"
            ) from None
        self._run, self._begin, self._planned, self._commit, self._is_capturing, self.release_graphs = functions
        self._check = library.range_check(parameters) if env.check() else None
        if self._check:
            self.launch = self._launch_checked  # type: ignore[method-assign]

    def _order_after_torch(self) -> None:
        """Wait until torch has zeroed the counters: the first run may be on another stream."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def begin(self) -> None:
        """From here on there is no plan to run; waits where all buffers are on their way."""
        self.arena = self._arenas[self._begin(self._stream())]

    def planned(self, values: Sequence[Any]) -> None:
        """Take over the scalars of plan()."""
        self._planned(*values)

    def commit(self) -> None:
        """Check the plan against captured graphs and send it to the GPU."""
        self._commit(self._stream())

    def launch(self, q: Any, k: Any, v: Any, out: Any, lse: Any, raw: bool, *values: Any) -> None:
        """Check the arguments and launch on the current stream."""
        self._run(q, k, v, out, lse, raw, self._stream(), *values)

    def _launch_checked(self, q: Any, k: Any, v: Any, out: Any, lse: Any, raw: bool, *values: Any) -> None:
        # NOTE: ranges come last, when shapes are known to be right; a kernel clamps what it reads by.
        self._run(q, k, v, out, lse, raw, self._stream(), *values)
        if self._check and not self.is_capturing():
            self._check(*(value.cpu() if isinstance(value, torch.Tensor) else value for value in values))

    def is_capturing(self) -> bool:
        """Whether launches are captured into a graph."""
        return bool(self._is_capturing(self._stream()))


def make_engine(options: Options, kernels: Sequence[Kernel], config: PlanConfig) -> Engine:
    """The engine of the device that the options name."""
    gpu = options.gpu
    return CpuEngine(options, kernels, config) if gpu is None else CudaEngine(options, kernels, config, gpu)


def _specification(options: Options, kernel: Kernel, config: PlanConfig) -> tuple[list[int], list[int], float]:
    """The pool, the words and the scale of the lse, as native/host.cpp reads them."""
    manifest = kernel.manifest
    built = manifest.config
    pool = pool_words(options.kv, built.kv_dtype, options.num_kv_heads, built.head_dim, built.head_dim_v)
    words = [TYPES[built.dtype], options.num_qo_heads, options.num_kv_heads, int(manifest.softmax)]
    return pool, [*words, config.limits.levels + 1], _LSE_SCALE[options.lse]


def _tensors(partials: Partials) -> tuple[torch.Tensor, ...]:
    return partials.out, partials.lse, partials.arrived
