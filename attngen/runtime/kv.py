"""How a KV cache lies in memory.  Each layout becomes blocks of one pool; kernels know no more of it.

A pool is a pair (k, v), or one tensor with an axis of size 2 (K, then V) after its first.  Its last dimension is
contiguous; all other strides are free.

    Paged        [blocks, page, Hk, D] (NHD)   [blocks, Hk, page, D] (HND)   as one: [blocks, 2, …]
    Ragged       [tokens, Hk, D]                                             as one: [tokens, 2, Hk, D]
    Dense        [B, capacity, Hk, D] (NHD)    [B, Hk, capacity, D] (HND)    as one: [B, 2, …]
    BlockSparse  as Paged with bc tokens a page, or as Ragged with blocks of bc tokens

A pool with the K/V axis first is a pair: `pool.unbind(0)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

from attngen.runtime.arguments import TYPES
from attngen.runtime.limits import Storage

Order: TypeAlias = Literal["NHD", "HND"]
_LARGEST: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Paged:
    """Pages of `page_size` tokens, in any order in the pool."""

    page_size: int
    layout: Order = "NHD"

    storage: ClassVar[Storage] = "paged"
    flat: ClassVar[tuple[bool, bool]] = (True, False)  # may be blocked, may be flat

    def __post_init__(self) -> None:
        _check_size("page_size", self.page_size)
        _check_layout(self.layout)

    @property
    def block(self) -> tuple[int, int]:
        """Block rows and the tokens of a block."""
        return 1, self.page_size


@dataclass(frozen=True, slots=True)
class Ragged:
    """Every request's tokens in one run, request after request."""

    storage: ClassVar[Storage] = "ragged"
    flat: ClassVar[tuple[bool, bool]] = (False, True)
    layout: ClassVar[Order] = "NHD"

    @property
    def block(self) -> tuple[int, int]:
        """Block rows and the tokens of a block."""
        return 1, 1


@dataclass(frozen=True, slots=True)
class Dense:
    """A row of `capacity` tokens for every request, of which the first kv_len are valid."""

    capacity: int
    layout: Order = "NHD"

    storage: ClassVar[Storage] = "dense"
    flat: ClassVar[tuple[bool, bool]] = (True, False)

    def __post_init__(self) -> None:
        _check_size("capacity", self.capacity)
        _check_layout(self.layout)

    @property
    def block(self) -> tuple[int, int]:
        """Block rows and the tokens of a block."""
        return 1, self.capacity


@dataclass(frozen=True, slots=True)
class BlockSparse:
    """Blocks of `br` query rows by `bc` tokens, of which a plan lists those that are visited."""

    br: int
    bc: int
    layout: Order = "NHD"

    storage: ClassVar[Storage] = "block_sparse"
    flat: ClassVar[tuple[bool, bool]] = (True, True)

    def __post_init__(self) -> None:
        _check_size("br", self.br)
        _check_size("bc", self.bc)
        _check_layout(self.layout)

    @property
    def block(self) -> tuple[int, int]:
        """Block rows and the tokens of a block."""
        return self.br, self.bc


Layout: TypeAlias = Paged | Ragged | Dense | BlockSparse


def pool_words(kv: Layout, kv_dtype: str, num_kv_heads: int, head_dim: int, head_dim_v: int) -> list[int]:
    """What the host library must know to read a pool (native/pool.hpp)."""
    blocked, flat = kv.flat
    heads_first = kv.layout == "HND"
    return [kv.block[1], int(heads_first), int(blocked), int(flat), TYPES[kv_dtype], num_kv_heads, head_dim, head_dim_v]


def split_pool(pool: Any) -> tuple[Any, Any]:
    """The tensors of a pool: (k, v), or (both, None)."""
    if isinstance(pool, (tuple, list)):
        if len(pool) != 2:
            raise ValueError(f"the pool is a {type(pool).__name__} of {len(pool)}; it needs (k, v) or one tensor")
        return pool[0], pool[1]
    return pool, None


def _check_size(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise ValueError(f"{name} is {value!r}; it needs an integer from 1 to {_LARGEST}")


def _check_layout(layout: str) -> None:
    if layout not in ("NHD", "HND"):
        raise ValueError(f'layout is {layout!r}; it needs "NHD" or "HND"')
