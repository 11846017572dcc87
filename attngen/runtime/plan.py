"""The planner as Python sees it: one native call a plan."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from attngen.codegen.source import Tile
from attngen.runtime.limits import CHUNK_TILES, MAX_CHUNKS, PlanConfig, capacity
from attngen.runtime.plan_records import HEADER, Plan, plan_stats, read_plan

Ints: TypeAlias = "torch.Tensor | Sequence[int]"

_STORAGE: Final[dict[str, int]] = {"paged": 0, "ragged": 1, "dense": 2, "block_sparse": 3}
_NUM_ROWS_AT: Final = struct.calcsize("<3i")  # of PlanHeader::num_rows
_COST_UNIT: Final = 1024  # of the cheapest tile's b; costs are integers so that plans are the same bits everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One view of plan(levels=...): block rows of token rows, each with the keys that it visits.

    Block row i holds the token rows qo_indptr[i]..qo_indptr[i + 1] of `tokens` (default: the token rows themselves)
    and the blocks kv_indptr[i]..kv_indptr[i + 1] of kv_indices, of which the first `kv_len[i]` keys count (default:
    all).  `kv_positions` is the logical position of each block's first key (default: list order from 0).
    """

    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    block_size: int
    tokens: Ints | None = None
    kv_len: Ints | None = None
    kv_positions: Ints | None = None


class Planner:
    """Plans one batch after another into one arena; not for two threads at once."""

    def __init__(
        self,
        config: PlanConfig,
        make: Callable[[list[int]], Callable[..., int]],
        *,
        arena: torch.Tensor | None = None,
        device_arena: tuple[int, int] | None = None,
    ) -> None:
        """`make` is the host library's `planner`; `arena`, host bytes to plan into (default: its own).

        Where kernels read a copy of the plan on a GPU, `device_arena` is the copy's address and the GPU's index; key
        lists may then lie on that GPU.
        """
        self.config = config
        # NOTE: a dirty arena is as good as a clean one, so nothing is zeroed but the header.
        own = torch.empty(config.workspace(1).arena, dtype=torch.uint8) if arena is None else arena
        own[: struct.calcsize(HEADER)].zero_()
        self.arena = own
        self._device = (0, 0) if device_arena is None else device_arena
        self._plan = make(_words(config))

    def plan(
        self,
        *,
        qo_indptr: Ints,
        kv_indptr: Ints | None = None,
        kv_indices: Ints | None = None,
        kv_len: Ints | None = None,
        last_page_len: Ints | None = None,
        kv_positions: Ints | None = None,
        levels: Sequence[Level] = (),
        scalars: Sequence[int] = (),
        num_blocks: int | None = None,
        arena: torch.Tensor | None = None,
    ) -> int:
        """Plan a batch into `arena` (default: the last one) and return the bytes in use.

        `num_blocks` is the pool's, against which indices are checked.  int32 tensors `kv_indices` and `kv_positions` on
        the GPU of `device_arena` stay where they are: kernels read them there, unchecked.
        """
        if len(scalars) != len(self.config.scalars):
            raise ValueError(
                f"scalars has {len(scalars)} values, need {len(self.config.scalars)}: {self.config.scalars}"
            )
        if num_blocks is not None and (not isinstance(num_blocks, int) or num_blocks < 0):
            raise ValueError(f"num_blocks is {num_blocks!r}, need the pool's number of blocks")
        if not isinstance(levels, (list, tuple)):
            raise ValueError(f"levels is a {type(levels).__name__}, need a list of Level(…)")
        views: list[Any] = []
        for number, level in enumerate(levels):
            if not isinstance(level, Level):
                raise ValueError(f"levels[{number}] is a {type(level).__name__}, need Level(…)")
            for name in _LEVEL_ARGUMENTS:
                views.append(host_ints(getattr(level, name), f"levels[{number}].{name}"))
            views.append(level.block_size)
        if arena is not None:
            self.arena = arena
        return self._plan(
            self.arena,
            num_blocks,
            *self._device,
            host_ints(qo_indptr, "qo_indptr"),
            host_ints(kv_indptr, "kv_indptr"),
            host_ints(kv_indices, "kv_indices"),
            host_ints(kv_len, "kv_len"),
            host_ints(last_page_len, "last_page_len"),
            host_ints(kv_positions, "kv_positions"),
            *scalars,
            *views,
        )

    @property
    def num_rows(self) -> int:
        """The query rows of the last plan; 0 before the first."""
        return ctypes.c_int32.from_address(self.arena.data_ptr() + _NUM_ROWS_AT).value

    def read(self) -> Plan:
        """The last plan."""
        return read_plan(self.arena)

    def stats(self) -> dict[str, Any]:
        """What the last plan looks like: sizes, balance and the tiles that it uses."""
        return plan_stats(self.read(), self.config)


_LEVEL_ARGUMENTS: Final = ("qo_indptr", "tokens", "kv_indptr", "kv_indices", "kv_len", "kv_positions")


def host_ints(value: Ints | None, name: str) -> Any:
    """A tensor as it is, any other sequence of integers as an int64 tensor."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            raise ValueError(f"{name} is on meta, need a tensor that holds integers")
        return value
    try:
        numbers = array("q", value)
    except (TypeError, OverflowError):
        raise ValueError(f"{name} is a {type(value).__name__}, need a tensor or a sequence of integers") from None
    return torch.frombuffer(numbers, dtype=torch.int64) if numbers else torch.empty(0, dtype=torch.int64)


def _words(config: PlanConfig) -> list[int]:
    """The configuration as native/plan_ffi.cpp reads it."""
    limits = config.limits
    most = capacity(config)
    words = [config.num_qo_heads, config.num_kv_heads, len(config.queues), *config.queues, len(config.scalars)]
    words += [_STORAGE[config.storage], config.block_size, config.block_rows]
    words += [int(config.batch_invariant), CHUNK_TILES, MAX_CHUNKS]
    words += [limits.batch, limits.q_tokens, limits.longest_q, limits.kv_tokens, limits.longest_kv]
    words += [limits.levels, limits.all_level_rows, most.blocks, most.partial_rows, most.merges]
    words.append(len(config.tiles))
    for tile, queue, (a, b, c) in zip(config.tiles, config.tile_queues, integer_costs(config.tiles), strict=True):
        words += [tile.rows, tile.keys, queue, a, b, c]
    words += [int(config.has_mask), len(config.key_bounds)]
    for program in config.key_bounds:
        words += [len(program), *(word for step in program for word in step)]
    return words


def integer_costs(tiles: Sequence[Tile]) -> list[tuple[int, int, int]]:
    """Costs (a, b, c) of each tile in units of 1/1024 of the cheapest tile's b."""
    unit = min(tile.b for tile in tiles) / _COST_UNIT
    return [(round(tile.a / unit), round(tile.b / unit), round(tile.c / unit)) for tile in tiles]
