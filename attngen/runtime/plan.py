"""The planner as Python sees it: one native call a plan, and the arena decoded for reports and tests."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

import torch

from attngen.codegen.source import Tile
from attngen.runtime.limits import CHUNK_TILES, MAX_CHUNKS, PlanConfig, capacity

Ints: TypeAlias = "torch.Tensor | Sequence[int]"

_STORAGE: Final[dict[str, int]] = {"paged": 0, "ragged": 1, "dense": 2, "block_sparse": 3}
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
        own[: struct.calcsize(_HEADER)].zero_()
        self._arenas: dict[int, tuple[torch.Tensor, ctypes.c_int32]] = {}
        self._use(own)
        self._device = (0, 0) if device_arena is None else device_arena
        self._plan = make(_words(config))

    def _use(self, arena: torch.Tensor) -> None:
        known = self._arenas.get(id(arena))  # kept, so that no other tensor gets its id
        if known is None:
            known = arena, ctypes.c_int32.from_address(arena.data_ptr() + _NUM_ROWS_AT)
            self._arenas[id(arena)] = known
        self.arena, self._num_rows = known

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
        if arena is not None and arena is not self.arena:
            self._use(arena)
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
        """The query rows of the last plan."""
        return self._num_rows.value

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


# The arena, decoded --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """PlanHeader of include/attngen/work.hpp."""

    version: int
    num_workers: int
    batch: int
    num_rows: int
    num_items: int
    num_segments: int
    num_merges: int
    num_partial_rows: int
    num_levels: int
    num_empty: int
    max_q_len: int
    max_kv_len: int
    qo_indptr_at: int
    kv_len_at: int
    row_request_at: int
    workers_at: int
    items_at: int
    segments_at: int
    merges_at: int
    levels_at: int
    bytes: int
    num_slots: int
    scalars_at: int


@dataclass(frozen=True, slots=True)
class View:
    """Level of include/attngen/work.hpp."""

    indices: int
    positions: int
    tokens: int
    block_size: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Item:
    """Item of include/attngen/work.hpp."""

    list: int
    level: int
    tile: int
    kv_head: int
    packed_begin: int
    packed_count: int
    kv_begin: int
    kv_end: int
    full_from: int
    full_to: int
    segment_begin: int
    segment_count: int
    request: int
    q_begin: int
    q_len: int
    kv_len: int
    partial: int
    merge: int
    arrivals: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment of include/attngen/work.hpp."""

    offset: int
    count: int
    partial: int
    merge: int


@dataclass(frozen=True, slots=True)
class Move:
    """Move of include/attngen/work.hpp."""

    kv_head: int
    partial: int
    merge: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge of include/attngen/work.hpp."""

    packed_begin: int
    packed_count: int
    kv_head: int
    partial: int
    part_count: int
    arrivals: int


_HEADER: Final = "<12i11q"
_ITEM: Final = "q18i"
_WORKER: Final = f"<5i28x{_ITEM}"
_NUM_ROWS_AT: Final = struct.calcsize("<3i")  # of PlanHeader::num_rows


@dataclass(frozen=True, slots=True)
class Plan:
    """An arena's contents; `worker` holds the range of items of each worker, and `first` its copy of the first.

    Workers that share items in the arena have each their own here, with segments of their own.
    """

    header: Header
    qo_indptr: tuple[int, ...]
    kv_len: tuple[int, ...]
    worker: tuple[int, ...]
    first: tuple[Item | None, ...]
    items: tuple[Item, ...]
    segments: tuple[Segment, ...]
    merges: tuple[Merge, ...]
    levels: tuple[View, ...]
    arena: bytes

    def ints(self, offset: int, count: int) -> tuple[int, ...]:
        """`count` 32-bit integers of the arena."""
        return struct.unpack_from(f"<{count}i", self.arena, offset)

    def scalars(self, count: int) -> tuple[int, ...]:
        """The words of the first `count` plan scalars."""
        return struct.unpack_from(f"<{count}q", self.arena, self.header.scalars_at)

    def queue(self, worker: int) -> tuple[Item, ...]:
        """The items of one worker, in its order."""
        return self.items[self.worker[worker] : self.worker[worker + 1]]


def read_plan(arena: torch.Tensor) -> Plan:
    """Decode an arena that `Planner.plan` wrote."""
    host = arena.cpu()
    header = Header(*struct.unpack(_HEADER, ctypes.string_at(host.data_ptr(), struct.calcsize(_HEADER))))
    if header.version == 0:
        raise ValueError("arena holds no plan: call plan() first, and again after it raised")
    data = ctypes.string_at(host.data_ptr(), header.bytes)

    def ints(offset: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}i", data, offset)

    def records(layout: str, offset: int, count: int) -> list[tuple[int, ...]]:
        return list(struct.iter_unpack(layout, data[offset : offset + count * struct.calcsize(layout)]))

    workers = records(_WORKER, header.workers_at, header.num_workers)
    shared = [Item(*row) for row in records(f"<{_ITEM}", header.items_at, header.num_items)]
    shared_segments = [Segment(*row) for row in records("<4i", header.segments_at, header.num_segments)]
    items: list[Item] = []
    segments: list[Segment] = []
    worker = [0]
    for begin, end, *rest in workers:
        move = Move(*rest[:3])
        for item in shared[begin:end]:
            own = shared_segments[item.segment_begin : item.segment_begin + item.segment_count]
            items.append(replace(_moved(item, move), kv_head=item.kv_head + move.kv_head, segment_begin=len(segments)))
            segments += [_moved(segment, move) for segment in own]
        worker.append(len(items))
    return Plan(
        header=header,
        qo_indptr=ints(header.qo_indptr_at, header.batch + 1),
        kv_len=ints(header.kv_len_at, header.batch),
        worker=tuple(worker),
        first=tuple(Item(*rest[3:]) if begin < end else None for begin, end, *rest in workers),
        items=tuple(items),
        segments=tuple(segments),
        merges=tuple(Merge(*row) for row in records("<6i", header.merges_at, header.num_merges)),
        levels=tuple(View(*row) for row in records("<3q2i", header.levels_at, header.num_levels)),
        arena=data,
    )


_Record = TypeVar("_Record", Item, Segment)


def _moved(record: _Record, move: Move) -> _Record:
    """As `moved` of include/attngen/work.hpp, but for the KV head."""
    if record.merge < 0:
        return record
    return replace(record, partial=record.partial + move.partial, merge=record.merge + move.merge)


def item_cost(item: Item, plan: Plan, config: PlanConfig) -> float:
    """What the planner takes an item to cost: a + b·tiles, and c where it leaves partials."""
    tile = config.tiles[item.tile]
    own = plan.segments[item.segment_begin : item.segment_begin + item.segment_count]
    partial = any(segment.merge >= 0 for segment in own)
    return tile.a + tile.b * -(-(item.kv_end - item.kv_begin) // tile.keys) + (tile.c if partial else 0.0)


def plan_stats(plan: Plan, config: PlanConfig) -> dict[str, Any]:
    """Sizes, balance and chosen tiles of a plan, as attn.plan_stats() reports them.

    `queues` counts the items of each; `makespan_over_mean` is that of the queue which is balanced worst.
    """
    header = plan.header
    loads = [sum(item_cost(item, plan, config) for item in plan.queue(worker)) for worker in range(header.num_workers)]
    queues = [loads[first : first + own] for first, own in zip(config.first_workers, config.queues, strict=True)]
    tiles = Counter(f"{config.tiles[item.tile].rows}x{config.tiles[item.tile].keys}" for item in plan.items)
    return {
        "workers": header.num_workers,
        "requests": header.batch,
        "rows": header.num_rows,
        "levels": max(1, header.num_levels - 1),
        "items": len(plan.items),
        "queues": [
            plan.worker[first + workers] - plan.worker[first]
            for first, workers in zip(config.first_workers, config.queues, strict=True)
        ],
        "empty_items": header.num_empty,
        "segments": len(plan.segments),
        "merges": header.num_merges,
        "partials": sum(merge.part_count for merge in plan.merges),
        "partial_rows": header.num_partial_rows,
        "most_parts": max((merge.part_count for merge in plan.merges), default=0),
        "makespan": max(loads),
        "makespan_over_mean": max((max(own) * len(own) / sum(own) for own in queues if any(own)), default=1.0),
        "bytes": header.bytes,
        "tiles": dict(sorted(tiles.items())),
    }
