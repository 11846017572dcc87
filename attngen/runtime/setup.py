"""The arguments of an Attention, checked, and what follows from them before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import torch

from attngen import env
from attngen.codegen.source import KernelConfig
from attngen.dtypes import OPERANDS, POOLS, STORAGE
from attngen.runtime.kv import BlockSparse, Dense, Layout, Paged, Ragged
from attngen.runtime.limits import Limits, PlanConfig
from attngen.runtime.module import Kernel

LseBase: TypeAlias = Literal["natural", "log2"]
Keys: TypeAlias = Literal["raw", "transformed"]

_LARGEST_COUNT: Final = 1 << 16
LARGEST_HEAD_DIM: Final = 576  # multi-head latent attention's; nothing in use is larger
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
    target: str
    lse: LseBase
    keys: Keys
    batch_invariant: bool
    fast_math: bool
    num_workers: int | None

    def __post_init__(self) -> None:
        if str(self.device).split(":")[0] != "cpu":
            raise ValueError(f"device is {str(self.device)!r}; this release has the CPU engine only: it needs 'cpu'")
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

    @property
    def lanes_v(self) -> int:
        """The head dimension of V."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def kernel_config(self) -> KernelConfig:
        """What to compile."""
        return KernelConfig(
            target=self.target,
            head_dim=self.head_dim,
            head_dim_v=self.lanes_v,
            dtype=_DTYPES[self.dtype],
            kv_dtype=_DTYPES[self.kv_dtype or self.dtype],
            keys=self.keys,
            fast_math=self.fast_math,
        )

    def plan_config(self, kernel: Kernel, threads: int) -> PlanConfig:
        """What the planner must know of this Attention."""
        manifest = kernel.manifest
        for parameter in manifest.parameters:
            if parameter.name in (*_OF_RUN, *_OF_PLAN, "num_blocks"):
                raise ValueError(
                    f"`{manifest.variant}` has a parameter `{parameter.name}`, which is the name of an argument of "
                    "plan() or run(); it needs another name"
                )
        block_rows, block_size = self.kv.block
        return PlanConfig(
            num_qo_heads=self.num_qo_heads,
            num_kv_heads=self.num_kv_heads,
            num_workers=self.num_workers or threads,
            limits=self.limits,
            tiles=manifest.tiles,
            storage=self.kv.storage,
            block_size=block_size,
            block_rows=block_rows,
            key_bounds=manifest.key_bounds,
            has_mask=manifest.has_mask,
            scalars=tuple(parameter.name for parameter in manifest.parameters if parameter.phase == "plan"),
            batch_invariant=self.batch_invariant,
        )


def dtype_name(tensor: torch.Tensor) -> str:
    """The row of dtypes.STORAGE that a pool's tensor holds."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"the pool is a {type(tensor).__name__}; it needs (k, v) or one tensor")
    _check_type("the pool's dtype", tensor.dtype, POOLS)
    return _DTYPES[tensor.dtype]


def thread_count() -> int:
    """Threads of the CPU engine."""
    return env.num_threads() or torch.get_num_threads()


def compile_variant(variant: Compilable, options: Options) -> Kernel:
    """The kernel that an Attention with these options runs."""
    if not callable(getattr(variant, "compile", None)):
        raise ValueError(
            f"variant is a {type(variant).__name__}; it needs what attngen.load() or attngen.parse() gives"
        )
    return variant.compile(options.kernel_config)


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


def _check_type(name: str, dtype: torch.dtype, allowed: tuple[str, ...]) -> None:
    if _DTYPES.get(dtype) not in allowed:
        needed = ", ".join(f"torch.{STORAGE[row].torch}" for row in allowed)
        raise ValueError(f"{name} is {dtype!r}; it needs one of {needed}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it needs one of {', '.join(repr(choice) for choice in choices)}")
