"""What the reference attends over: queries, a pool seen as blocks, and explicit key lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

Pool: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """Keys that some packed query rows attend to: the pool slot and the logical position of each key."""

    rows: Sequence[int]
    slots: torch.Tensor  # i64[n]
    positions: torch.Tensor  # i64[n]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A ragged batch over one pool.

    `k` and `v` are [blocks, block_size, heads, lanes] (NHD) with any strides.  A row attends to all the keys of the
    visits that list it, each key once; keys at or beyond the row's `kv_len` do not exist.
    """

    q: torch.Tensor  # [rows, num_qo_heads, head_dim]
    k: torch.Tensor
    v: torch.Tensor
    qo_indptr: Sequence[int]
    kv_len: Sequence[int]
    visits: Sequence[Visit]
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """The rows that belong to a request; `q` may hold more."""
        return int(self.qo_indptr[-1])


def paged_visits(
    qo_indptr: Sequence[int],
    kv_indptr: Sequence[int],
    kv_indices: Sequence[int],
    kv_len: Sequence[int],
    page_size: int,
) -> list[Visit]:
    """One visit a request: its pages in list order, positions from 0."""
    indices = torch.as_tensor(kv_indices, dtype=torch.int64)
    visits = []
    for request, length in enumerate(kv_len):
        positions = torch.arange(length)
        blocks = indices[int(kv_indptr[request]) + positions // page_size]
        slots = blocks * page_size + positions % page_size
        visits.append(Visit(range(int(qo_indptr[request]), int(qo_indptr[request + 1])), slots, positions))
    return visits


def affine_visits(qo_indptr: Sequence[int], kv_begin: Sequence[int], kv_len: Sequence[int]) -> list[Visit]:
    """One visit a request: `kv_len` slots from `kv_begin` on (ragged and dense caches)."""
    return [
        Visit(
            range(int(qo_indptr[request]), int(qo_indptr[request + 1])),
            int(kv_begin[request]) + torch.arange(length),
            torch.arange(length),
        )
        for request, length in enumerate(kv_len)
    ]


def nhd(pool: torch.Tensor, layout: str) -> torch.Tensor:
    """A [blocks, …] pool of either layout as NHD, sharing storage."""
    return pool if layout == "NHD" else pool.transpose(1, 2)
