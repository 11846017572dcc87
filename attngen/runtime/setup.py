"""The arguments of an Attention, checked, and what follows from them before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import torch

from attngen import env
from attngen.codegen.source import KernelConfig, Manifest, decode_rows
from attngen.dtypes import GPU_OPERANDS, NARROW_POOLS, OPERANDS, POOLS, STORAGE
from attngen.runtime.device import Gpu, find_gpu, resolve_target
from attngen.runtime.kv import BlockSparse, Dense, Layout, Paged, Ragged
from attngen.runtime.limits import Limits, PlanConfig
from attngen.runtime.module import Kernel

LseBase: TypeAlias = Literal["natural", "log2"]
Keys: TypeAlias = Literal["raw", "transformed"]

_LARGEST_COUNT: Final = 1 << 16
LARGEST_HEAD_DIM: Final = 576  # multi-head latent attention's; nothing in use is larger
LARGEST_GPU_HEAD_DIM: Final = 256
_PREFILL_ROWS: Final = (64, 128)  # packed rows of a GPU's tiles
_DTYPES: Final = {getattr(torch, row.torch): row.name for row in STORAGE.values() if hasattr(torch, row.torch)}
_OF_RUN: Final = ("q", "kv", "out", "lse", "raw")
_OF_PLAN: Final = (
    "qo_indptr",
    "kv_indptr",
    "kv_indices",
    "kv_len",
    "last_page_len",
    "kv_positions",
    "levels",
    "num_blocks",
)


class Compilable(Protocol):
    """A variant that gives a kernel for a configuration; what attngen.load returns is one."""

    @property
    def name(self) -> str:
        """The variant's name."""
        ...

    def compile(self, config: KernelConfig) -> Kernel:
        """The kernel of a configuration, built where it has to be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of an Attention, whose signature holds the defaults; what can't work is refused."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv: Layout
    limits: Limits
    head_dim_v: int | None
    kv_dtype: torch.dtype | None
    device: str | torch.device
    target: str | None
    lse: LseBase
    keys: Keys
    batch_invariant: bool
    fast_math: bool
    num_workers: int | None
    gpu: Gpu | None = field(init=False)  # that `device` names; None for the CPU

    def __post_init__(self) -> None:
        for name in ("num_qo_heads", "num_kv_heads"):
            _check_count(name, getattr(self, name))
        if self.num_qo_heads % self.num_kv_heads:
            raise ValueError(
                f"num_qo_heads is {self.num_qo_heads}; it needs a multiple of num_kv_heads, {self.num_kv_heads}"
            )
        for name in ("head_dim", "head_dim_v"):
            _check_head_dim(name, self.lanes_v if name == "head_dim_v" else self.head_dim)
        _check_type("dtype", self.dtype, OPERANDS)
        _check_type("kv_dtype", self.kv_dtype or self.dtype, POOLS)
        _check_choice("lse", self.lse, ("natural", "log2"))
        _check_choice("keys", self.keys, ("raw", "transformed"))
        for name in ("batch_invariant", "fast_math"):
            check_bool(name, getattr(self, name))
        if not isinstance(self.kv, (Paged, Ragged, Dense, BlockSparse)):
            raise ValueError(f"kv is {self.kv!r}; it needs Paged(…), Ragged(), Dense(…) or BlockSparse(…)")
        if not isinstance(self.limits, Limits):
            raise ValueError(f"limits is {self.limits!r}; it needs Limits(…)")
        if self.num_workers is not None:
            _check_count("num_workers", self.num_workers)
        object.__setattr__(self, "gpu", find_gpu(self.device))
        object.__setattr__(self, "target", resolve_target(self.target, self.gpu))
        if self.gpu is not None:
            self._check_gpu()

    def _check_gpu(self) -> None:
        on_gpu = f" on {self.gpu.torch_device}" if self.gpu else ""
        for name, value in (("head_dim", self.head_dim), ("head_dim_v", self.lanes_v)):
            if value > LARGEST_GPU_HEAD_DIM:
                raise ValueError(f"{name} is {value}; it needs at most {LARGEST_GPU_HEAD_DIM}{on_gpu}")
        _check_type("dtype", self.dtype, GPU_OPERANDS, on_gpu)
        _check_type("kv_dtype", self.kv_dtype or self.dtype, (_DTYPES[self.dtype], *NARROW_POOLS), on_gpu)

    @property
    def lanes_v(self) -> int:
        """The head dimension of V."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def kernel_configs(self) -> tuple[KernelConfig, ...]:
        """What to compile: a kernel a queue of the plan."""
        rows = (0,) if self.gpu is None else tile_rows(self.limits, self.group, self.lanes_v)
        return tuple(
            KernelConfig(
                target=str(self.target),
                head_dim=self.head_dim,
                head_dim_v=self.lanes_v,
                dtype=_DTYPES[self.dtype],
                kv_dtype=_DTYPES[self.kv_dtype or self.dtype],
                keys=self.keys,
                fast_math=self.fast_math,
                rows=count,
            )
            for count in rows
        )

    def plan_config(self, kernels: Sequence[Kernel]) -> PlanConfig:
        """What the planner must know of this Attention."""
        manifest = kernels[0].manifest
        for parameter in manifest.parameters:
            if parameter.name in (*_OF_RUN, *_OF_PLAN):
                raise ValueError(
                    f"`{manifest.variant}` has a parameter `{parameter.name}`, which is the name of an argument of "
                    "plan() or run(); it needs another name"
                )
        block_rows, block_size = self.kv.block
        return PlanConfig(
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            queues=tuple(self.num_workers or self._workers(kernel.manifest) for kernel in kernels),
            tile_queues=tuple(queue for queue, kernel in enumerate(kernels) for _ in kernel.manifest.tiles),
            limits=self.limits,
            tiles=tuple(tile for kernel in kernels for tile in kernel.manifest.tiles),
            storage=self.kv.storage,
            block_size=block_size,
            block_rows=block_rows,
            key_bounds=manifest.key_bounds,
            has_mask=manifest.has_mask,
            scalars=tuple(parameter.name for parameter in manifest.parameters if parameter.phase == "plan"),
            batch_invariant=self.batch_invariant,
        )

    def _workers(self, manifest: Manifest) -> int:
        return thread_count() if self.gpu is None else self.gpu.multiprocessors * manifest.ctas_per_sm


def tile_rows(limits: Limits, group: int, head_dim_v: int) -> tuple[int, ...]:
    """The packed rows of a GPU's tiles, one or two: the smallest that holds every request, or decode and prefill."""
    packed = max(limits.longest_q, limits.all_level_rows) * group
    small = decode_rows(head_dim_v)
    for rows in small:
        if packed <= rows:
            return (rows,)
    decode = tuple(rows for rows in small if group <= rows)[:1]
    return (*decode, next((rows for rows in _PREFILL_ROWS if packed <= rows), _PREFILL_ROWS[-1]))


def dtype_name(tensor: torch.Tensor) -> str:
    """The row of dtypes.STORAGE that a pool's tensor holds."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"the pool is a {type(tensor).__name__}; it needs (k, v) or one tensor")
    _check_type("the pool's dtype", tensor.dtype, POOLS)
    return _DTYPES[tensor.dtype]


def thread_count() -> int:
    """Threads of the CPU engine."""
    return env.num_threads() or torch.get_num_threads()


def compile_variant(variant: Compilable, options: Options) -> tuple[Kernel, ...]:
    """The kernels that an Attention with these options runs, one a queue of its plans."""
    if not callable(getattr(variant, "compile", None)):
        raise ValueError(
            f"variant is a {type(variant).__name__}; it needs what attngen.load() or attngen.parse() gives"
        )
    first, *others = options.kernel_configs
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        rest = [pool.submit(variant.compile, config) for config in others]
        return (variant.compile(first), *(kernel.result() for kernel in rest))


def check_bool(name: str, value: bool) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; it needs True or False")


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_COUNT:
        raise ValueError(f"{name} is {value!r}; it needs an integer from 1 to {_LARGEST_COUNT}")


def _check_head_dim(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value % 8 or not 8 <= value <= LARGEST_HEAD_DIM:
        raise ValueError(f"{name} is {value!r}; it needs a multiple of 8 from 8 to {LARGEST_HEAD_DIM}")


def _check_type(name: str, dtype: torch.dtype, allowed: tuple[str, ...], where: str = "") -> None:
    if _DTYPES.get(dtype) not in allowed:
        needed = ", ".join(f"torch.{STORAGE[row].torch}" for row in allowed)
        raise ValueError(f"{name} is {dtype!r}; it needs one of {needed}{where}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it needs one of {', '.join(repr(choice) for choice in choices)}")
