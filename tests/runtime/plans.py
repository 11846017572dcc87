"""What every plan must be, checked key by key, and how tests build planners and batches."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from attngen.codegen.source import Tile
from attngen.runtime import host
from attngen.runtime.limits import Limits, PlanConfig
from attngen.runtime.plan import Level, Planner
from attngen.runtime.plan_records import Item, Plan

CONST, ARG, ADD, SUB, MUL, FLOOR_DIV, MOD, MIN, MAX, NEG, ABS, LESS, LESS_EQUAL = range(13)
EQUAL, AND, OR, NOT, SELECT = range(13, 18)
POS_LO, POS_HI, Q_LEN, KV_LEN, SCALAR = range(5)

Program = tuple[tuple[int, int], ...]
Allowed = Callable[[int, int], bool]  # (position of the row, position of the key)


def arg(index: int) -> tuple[int, int]:
    return (ARG, index)


def const(value: int) -> tuple[int, int]:
    return (CONST, value)


def op(code: int) -> tuple[int, int]:
    return (code, 0)


NONE: tuple[Program, ...] = ()
CAUSAL: tuple[Program, ...] = (
    (const(0),),
    (const(0),),
    (arg(POS_LO), const(1), op(ADD)),
    (arg(POS_HI), const(1), op(ADD)),
)
WINDOW: tuple[Program, ...] = (  # causal & pos - kv < n
    (arg(POS_LO), arg(SCALAR), op(SUB), const(1), op(ADD)),
    (arg(POS_HI), arg(SCALAR), op(SUB), const(1), op(ADD)),
    (arg(POS_LO), const(1), op(ADD)),
    (arg(POS_HI), const(1), op(ADD)),
)


def everything(pos: int, kv: int) -> bool:
    return True


def causal(pos: int, kv: int) -> bool:
    return kv <= pos


def window(n: int) -> Allowed:
    return lambda pos, kv: kv <= pos < kv + n


SMALL_TILES = (Tile(4, 4, 0.0, 1.0, 0.0), Tile(16, 4, 0.0, 1.0, 0.0))
QUEUED_TILES = (Tile(4, 4, 1.0, 1.0, 0.5), Tile(64, 8, 2.0, 5.0, 2.0))
COSTLY_TILES = (Tile(4, 4, 3.0, 1.0, 0.5), Tile(16, 8, 4.0, 2.5, 1.0), Tile(64, 8, 5.0, 5.0, 2.0))


def make_planner(config: PlanConfig) -> Planner:
    return Planner(config, host.library().planner)


@dataclass
class Batch:
    """A batch as plan() takes it, beside the key lists that the checks read."""

    q_len: list[int]
    kv_len: list[int]
    page_size: int = 1
    pages: list[list[int]] = field(default_factory=list)

    @property
    def qo_indptr(self) -> list[int]:
        return [0, *accumulate(self.q_len)]

    @property
    def kv_indptr(self) -> list[int]:
        return [0, *accumulate(len(pages) for pages in self.pages)]

    @property
    def kv_indices(self) -> list[int]:
        return [page for pages in self.pages for page in pages]

    def paged(self) -> dict[str, list[int]]:
        return {
            "qo_indptr": self.qo_indptr,
            "kv_indptr": self.kv_indptr,
            "kv_indices": self.kv_indices,
            "kv_len": self.kv_len,
        }

    def slot(self, request: int, kv: int) -> int:
        return self.pages[request][kv // self.page_size] * self.page_size + kv % self.page_size


def paged_batch(q_len: Sequence[int], kv_len: Sequence[int], page_size: int = 1, seed: int = 0) -> Batch:
    """A batch whose pages lie anywhere in a pool twice as large."""
    counts = [-(-length // page_size) for length in kv_len]
    free = random.Random(seed).sample(range(2 * sum(counts) + 1), sum(counts))
    ends = list(accumulate(counts))
    pages = [free[end - count : end] for count, end in zip(counts, ends, strict=True)]
    return Batch(list(q_len), list(kv_len), page_size, pages)


def make_config(batch: Batch, **changes: object) -> PlanConfig:
    """A configuration whose limits are exactly this batch."""
    base: dict[str, object] = {
        "num_qo_heads": 2,
        "num_kv_heads": 2,
        "num_workers": 4,
        "tiles": SMALL_TILES,
        "block_size": batch.page_size,
        "limits": Limits(batch=len(batch.q_len), q_tokens=sum(batch.q_len), kv_tokens=sum(batch.kv_len)),
    }
    return PlanConfig(**{**base, **changes})  # type: ignore[arg-type]


def list_keys(plan: Plan, item: Item) -> list[tuple[int, int]]:
    """(position, slot) of each key of an item, by the rules of include/attngen/work.hpp."""
    if item.kv_begin == item.kv_end:
        return []
    level = plan.levels[item.level]
    size = level.block_size
    first = item.kv_begin // size
    count = (item.kv_end - 1) // size - first + 1

    def entries(at: int) -> tuple[int, ...]:
        return plan.ints(at + 4 * (item.list + first), count)

    blocks = entries(level.indices) if level.indices else range(item.list + first, item.list + first + count)
    starts = entries(level.positions) if level.positions else range(first * size, (first + count) * size, size)
    keys = range(item.kv_begin, item.kv_end)
    return [(starts[k // size - first] + k % size, blocks[k // size - first] * size + k % size) for k in keys]


def global_row(plan: Plan, item: Item, offset: int, group: int) -> int:
    """The packed row, numbered by token rows, at an offset in an item."""
    packed = item.packed_begin + offset
    tokens = plan.levels[item.level].tokens
    return packed if not tokens else plan.ints(tokens + 4 * (packed // group), 1)[0] * group + packed % group


def check_plan(plan: Plan, config: PlanConfig, batch: Batch, allowed: Allowed, slots: bool = True) -> None:
    """Every allowed key of every row is visited exactly once, and partials and merges fit together."""
    header = plan.header
    group = config.group
    assert plan.qo_indptr == tuple(batch.qo_indptr) and plan.kv_len == tuple(batch.kv_len)
    check_workers(plan, config)
    assert sum(item.kv_begin == item.kv_end for item in plan.items) == header.num_empty
    visits: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for item in plan.items:
        tile = config.tiles[item.tile]
        assert 0 < item.packed_count <= tile.rows and item.kv_begin % tile.keys == 0
        assert item.kv_begin <= item.full_from <= item.full_to <= item.kv_end
        keys = list_keys(plan, item)
        marked = [
            (position, slot, item.full_from <= item.kv_begin + i < item.full_to)
            for i, (position, slot) in enumerate(keys)
        ]
        for offset in range(item.packed_count):
            visits[global_row(plan, item, offset, group), item.kv_head].extend(marked)
    requests = plan.ints(header.row_request_at, header.num_rows)
    for item in plan.items:
        rows = [global_row(plan, item, offset, group) // group for offset in range(item.packed_count)]
        assert item.request == requests[rows[0]]
        assert (item.q_len, item.kv_len) == (batch.q_len[item.request], batch.kv_len[item.request])
        several = plan.levels[item.level].tokens != 0 or len({requests[row] for row in rows}) > 1
        assert item.q_begin == (-1 if several else plan.qo_indptr[item.request])
    for b, (q_len, kv_len) in enumerate(zip(batch.q_len, batch.kv_len, strict=True)):
        for q in range(q_len):
            row = plan.qo_indptr[b] + q
            assert requests[row] == b
            pos = q + kv_len - q_len
            for packed in range(row * group, (row + 1) * group):
                for head in range(config.num_kv_heads):
                    seen = visits.pop((packed, head))
                    check_row(seen, {kv for kv in range(kv_len) if allowed(pos, kv)}, batch, b, slots)
    assert not visits
    check_partials(plan, config)


def check_workers(plan: Plan, config: PlanConfig) -> None:
    """Items stand by worker, those of a queue with its workers, and each worker has a copy of its first."""
    assert plan.worker[0] == 0 and plan.worker[-1] == len(plan.items) >= plan.header.num_items
    assert list(plan.worker) == sorted(plan.worker) and len(plan.worker) == config.num_workers + 1
    assert plan.header.levels_at == config.levels_at and plan.header.scalars_at == config.scalars_at
    for queue, (first, workers) in enumerate(zip(config.first_workers, config.queues, strict=True)):
        for worker in range(first, first + workers):
            items = plan.queue(worker)
            first_item = plan.first[worker]
            assert (first_item is None) == (not items)
            assert first_item is None or replace(first_item, segment_begin=items[0].segment_begin) == items[0]
            assert all(config.tile_queues[item.tile] == queue for item in items)


def check_row(seen: list[tuple[int, int, bool]], needed: set[int], batch: Batch, request: int, slots: bool) -> None:
    counts = Counter(position for position, _, _ in seen)
    assert all(counts[kv] == 1 for kv in needed)
    for position, slot, full in seen:
        assert not full or position in needed
        if slots and position in needed:
            assert slot == batch.slot(request, position)


def check_partials(plan: Plan, config: PlanConfig) -> None:
    """Each row of each KV head is written through once, or lies in one merge with one partial from each visit."""
    group = config.group
    places: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrivals: Counter[int] = Counter()
    used: set[int] = set()
    named: set[int] = set()
    for item in plan.items:
        offset = 0
        first = plan.segments[item.segment_begin]
        assert (item.partial, item.merge) == (first.partial, first.merge)
        assert item.arrivals == (plan.merges[item.merge].arrivals if item.merge >= 0 else 0)
        for index in range(item.segment_begin, item.segment_begin + item.segment_count):
            assert index not in named
            named.add(index)
            segment = plan.segments[index]
            assert segment.offset == offset and segment.count > 0
            offset += segment.count
            assert (segment.merge < 0) == (segment.partial < 0)
            arrivals[segment.merge] += segment.merge >= 0
            for i in range(segment.count):
                row = global_row(plan, item, segment.offset + i, group)
                places[row, item.kv_head].append((segment.merge, segment.partial + i if segment.merge >= 0 else -1))
                if segment.merge >= 0:
                    assert segment.partial + i not in used and segment.partial + i < plan.header.num_partial_rows
                    used.add(segment.partial + i)
        assert offset == item.packed_count
    assert len(named) == len(plan.segments) >= plan.header.num_segments
    expected: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for number, merge in enumerate(plan.merges):
        assert merge.part_count >= 2 and merge.arrivals == arrivals[number]
        parts = [merge.partial + part * merge.packed_count for part in range(merge.part_count)]
        for i in range(merge.packed_count):
            place = (merge.packed_begin + i, merge.kv_head)
            assert place not in expected
            expected[place] = (number, sorted(part + i for part in parts))
    for place, visits in places.items():
        if place in expected:
            number, rows = expected.pop(place)
            assert sorted(visits) == [(number, row) for row in rows]
        else:
            assert visits == [(-1, -1)]
    assert not expected


def levels_of(batch: Batch, shared: int) -> list[Level]:
    """Two levels: the first `shared` pages of request 0, which every request has too, and the rest of each."""
    rows = len(batch.q_len)
    head = Level(
        qo_indptr=[0, sum(batch.q_len)],
        kv_indptr=[0, shared],
        kv_indices=batch.pages[0][:shared],
        block_size=batch.page_size,
    )
    rest = [pages[shared:] for pages in batch.pages]
    tail = Level(
        qo_indptr=batch.qo_indptr,
        kv_indptr=[0, *accumulate(len(pages) for pages in rest)],
        kv_indices=[page for pages in rest for page in pages],
        kv_len=[max(0, batch.kv_len[b] - shared * batch.page_size) for b in range(rows)],
        kv_positions=[(shared + i) * batch.page_size for pages in rest for i in range(len(pages))],
        block_size=batch.page_size,
    )
    return [head, tail]
