"""Plans as Python reads them, for reports and tests: the arena decoded (include/attngen/work.hpp)."""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import torch

from attngen.runtime.limits import PlanConfig


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


HEADER: Final = "<12i11q"
_ITEM: Final = "q18i"
_WORKER: Final = f"<5i28x{_ITEM}"


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
    header = Header(*struct.unpack(HEADER, ctypes.string_at(host.data_ptr(), struct.calcsize(HEADER))))
    if header.version == 0:
        raise ValueError("arena holds no plan: call plan() first, and again after it raised")
    data = ctypes.string_at(host.data_ptr(), header.bytes)

    def ints(offset: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}i", data, offset)

    def records(layout: str, offset: int, count: int) -> list[tuple[int, ...]]:
        return list(struct.iter_unpack(layout, data[offset : offset + count * struct.calcsize(layout)]))

    workers = records(_WORKER, header.workers_at, header.num_workers)
    worker, items, segments = _own_items(
        workers,
        [Item(*row) for row in records(f"<{_ITEM}", header.items_at, header.num_items)],
        [Segment(*row) for row in records("<4i", header.segments_at, header.num_segments)],
    )
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


def _own_items(
    workers: Sequence[tuple[int, ...]], shared: Sequence[Item], shared_segments: Sequence[Segment]
) -> tuple[list[int], list[Item], list[Segment]]:
    """What workers share, once for each of them: where each one's items begin, the items, and their segments."""
    worker, items, segments = [0], list[Item](), list[Segment]()
    for begin, end, *rest in workers:
        move = Move(*rest[:3])
        for item in shared[begin:end]:
            own = shared_segments[item.segment_begin : item.segment_begin + item.segment_count]
            items.append(replace(_moved(item, move), kv_head=item.kv_head + move.kv_head, segment_begin=len(segments)))
            segments += [_moved(segment, move) for segment in own]
        worker.append(len(items))
    return worker, items, segments


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
