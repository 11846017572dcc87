"""Plans cover every key once, balance, and fit the workspace of their limits."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.codegen.source import Tile
from attngen.runtime.limits import Limits, PlanConfig
from attngen.runtime.plan import Level
from attngen.runtime.plan_records import item_cost, read_plan

from . import plans

FEW = settings(max_examples=60, deadline=None)

lengths = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 90)), max_size=6)
masks = st.sampled_from(["none", "causal", "window"])


def with_mask(mask: str) -> tuple[dict[str, object], list[int], plans.Allowed]:
    """Configuration, plan scalars and meaning of a mask."""
    if mask == "none":
        return {}, [], plans.everything
    if mask == "causal":
        return {"has_mask": True, "key_bounds": plans.CAUSAL}, [], plans.causal
    return {"has_mask": True, "key_bounds": plans.WINDOW, "scalars": ("n",)}, [7], plans.window(7)


@FEW
@given(
    lengths,
    masks,
    st.sampled_from([(2, 2), (6, 2), (3, 1), (5, 5), (8, 2)]),
    st.integers(1, 9),
    st.sampled_from([plans.SMALL_TILES, plans.COSTLY_TILES, plans.COSTLY_TILES[:1], plans.COSTLY_TILES[2:]]),
    st.sampled_from([1, 3, 16]),
    st.booleans(),
)
def test_every_key_once(
    shape: list[tuple[int, int]],
    mask: str,
    heads: tuple[int, int],
    workers: int,
    tiles: tuple[Tile, ...],
    page_size: int,
    batch_invariant: bool,
) -> None:
    batch = plans.paged_batch([q for q, _ in shape], [kv for _, kv in shape], page_size)
    changes, scalars, allowed = with_mask(mask)
    config = plans.make_config(
        batch,
        num_qo_heads=heads[0],
        num_kv_heads=heads[1],
        num_workers=workers,
        tiles=tiles,
        batch_invariant=batch_invariant,
        **changes,
    )
    planner = plans.make_planner(config)
    used = planner.plan(**batch.paged(), scalars=scalars)
    plan = planner.read()
    assert plan.header.bytes == used <= planner.arena.numel()
    plans.check_plan(plan, config, batch, allowed)


two_queues = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(
    lambda workers: {"queues": workers, "tiles": plans.QUEUED_TILES, "tile_queues": (0, 1), "num_workers": 0}
)


@FEW
@given(lengths, masks, st.sampled_from([(2, 2), (6, 6), (8, 2)]), two_queues, st.booleans())
def test_two_queues_cover_every_key_once(
    shape: list[tuple[int, int]], mask: str, heads: tuple[int, int], queues: dict[str, object], batch_invariant: bool
) -> None:
    batch = plans.paged_batch([q for q, _ in shape], [kv for _, kv in shape], 3)
    changes, scalars, allowed = with_mask(mask)
    config = plans.make_config(
        batch, num_qo_heads=heads[0], num_kv_heads=heads[1], batch_invariant=batch_invariant, **queues, **changes
    )
    planner = plans.make_planner(config)
    used = planner.plan(**batch.paged(), scalars=scalars)
    plan = planner.read()
    assert plan.header.bytes == used <= planner.arena.numel()
    plans.check_plan(plan, config, batch, allowed)
    assert sum(planner.stats()["queues"]) == len(plan.items)
    assert list(plan.scalars(len(scalars))) == scalars


def test_each_queue_is_balanced_over_its_own_workers() -> None:
    batch = plans.paged_batch([1] * 16 + [256] * 4, [2048] * 20, 16)
    tiles = (Tile(16, 64, 0.0, 1.0, 0.0), Tile(64, 64, 0.0, 3.0, 0.0))
    config = plans.make_config(
        batch, num_qo_heads=16, num_kv_heads=4, num_workers=0, queues=(12, 7), tiles=tiles, tile_queues=(0, 1)
    )
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    plans.check_plan(plan, config, batch, plans.everything)
    loads = [sum(item_cost(item, plan, config) for item in plan.queue(worker)) for worker in range(19)]
    for own in (loads[:12], loads[12:]):
        assert max(own) <= sum(own) / len(own) * 1.1 + 1
    for first in range(0, 12, 4):  # neighbours walk the heads of one tile, whatever the other queue does
        assert [item.kv_head for worker in range(first, first + 4) for item in plan.queue(worker)[:1]] == [0, 1, 2, 3]
    assert planner.stats()["queues"][0] >= 64 and planner.stats()["queues"][1] == 4 * 4 * 16


@FEW
@given(
    lengths,
    masks,
    st.integers(0, 5),
    st.one_of(
        two_queues,
        st.builds(
            lambda workers, tiles: {"num_workers": workers, "tiles": tiles},
            st.integers(1, 7),
            st.sampled_from([plans.SMALL_TILES, plans.COSTLY_TILES]),
        ),
    ),
)
def test_levels_cover_every_key_once(
    shape: list[tuple[int, int]], mask: str, shared: int, queues: dict[str, object]
) -> None:
    page_size = 4
    q_len = [q for q, _ in shape]
    kv_len = [shared * page_size + kv for _, kv in shape] or []
    batch = plans.paged_batch(q_len, kv_len, page_size)
    for pages in batch.pages[1:]:
        pages[:shared] = batch.pages[0][:shared]
    if not shape:
        return
    changes, scalars, allowed = with_mask(mask)
    limits = Limits(batch=len(shape), q_tokens=sum(q_len), kv_tokens=sum(kv_len), levels=2)
    config = plans.make_config(batch, num_qo_heads=6, limits=limits, **queues, **changes)
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=batch.qo_indptr, kv_len=kv_len, levels=plans.levels_of(batch, shared), scalars=scalars)
    plans.check_plan(planner.read(), config, batch, allowed)


@FEW
@given(st.data())
def test_gathered_levels(data: st.DataObject) -> None:
    """Token rows in any order, in several lists a level, with rows that no level names."""
    q_len = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    kv_len = [24] * len(q_len)
    batch = plans.paged_batch(q_len, kv_len, 2)
    for pages in batch.pages[1:]:
        pages[:] = batch.pages[0]
    total = sum(q_len)
    covered = data.draw(st.permutations(range(total)))[: data.draw(st.integers(0, total))]
    cut = data.draw(st.integers(0, len(covered)))
    first, second = batch.pages[0][:5], batch.pages[0][5:]
    levels = [
        Level(
            qo_indptr=[0, cut, len(covered)],
            tokens=covered,
            kv_indptr=[0, 5, 10],
            kv_indices=first * 2,
            kv_positions=[0, 2, 4, 6, 8] * 2,
            block_size=2,
        ),
        Level(
            qo_indptr=[0, len(covered)],
            tokens=sorted(covered),
            kv_indptr=[0, 7],
            kv_indices=second,
            kv_positions=list(range(10, 24, 2)),
            block_size=2,
        ),
    ]
    limits = Limits(batch=len(q_len), q_tokens=total, kv_tokens=sum(kv_len), levels=2, blocks=17)
    tiles = data.draw(st.sampled_from([plans.SMALL_TILES, plans.COSTLY_TILES]))
    config = plans.make_config(
        batch, num_qo_heads=6, limits=limits, tiles=tiles, has_mask=True, key_bounds=plans.CAUSAL
    )
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=batch.qo_indptr, kv_len=kv_len, levels=levels)
    plan = planner.read()
    requests = [b for b, count in enumerate(q_len) for _ in range(count)]
    first_pos = [24 - count for count in q_len]
    starts = batch.qo_indptr
    seen = {(row, head): 0 for row in range(total * 3) for head in range(2)}
    for item in plan.items:
        keys = plans.list_keys(plan, item)
        for offset in range(item.packed_count):
            row = plans.global_row(plan, item, offset, 3)
            b = requests[row // 3]
            pos = first_pos[b] + row // 3 - starts[b]
            seen[row, item.kv_head] += sum(position <= pos for position, _ in keys)
    for (row, _), count in seen.items():
        b = requests[row // 3]
        assert count == (first_pos[b] + row // 3 - starts[b] + 1 if row // 3 in covered else 0)
    plans.check_partials(plan, config)


@FEW
@given(st.lists(st.integers(0, 4000), min_size=1, max_size=40), st.sampled_from([(1, 7), (8, 264), (5, 264), (4, 2)]))
def test_decode_is_balanced_and_leaves_two_partials_a_worker(kv_len: list[int], shape: tuple[int, int]) -> None:
    heads, workers = shape
    batch = plans.paged_batch([1] * len(kv_len), kv_len, 16)
    tiles = (Tile(16, 64, 0.0, 1.0, 0.0),)
    config = plans.make_config(batch, num_qo_heads=heads, num_kv_heads=heads, num_workers=workers, tiles=tiles)
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    loads = [sum(item_cost(item, plan, config) for item in plan.queue(w)) for w in range(workers)]
    assert max(loads) <= sum(loads) / workers + 1
    for worker in range(workers):
        split = [i for i in plan.queue(worker) if plan.segments[i.segment_begin].merge >= 0]
        assert len(split) <= 2
    plans.check_partials(plan, config)


@FEW
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_affine_cost_stays_near_the_mean(q_len: list[int], workers: int, a: int, c: int) -> None:
    batch = plans.paged_batch(q_len, [40 * (i % 5) for i in range(len(q_len))], 4)
    tiles = (Tile(16, 4, float(a), 1.0, 0.0), Tile(64, 4, float(a), 2.0, 0.0))
    config = plans.make_config(batch, num_workers=workers, tiles=tiles)
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    loads = [sum(item_cost(item, plan, config) for item in plan.queue(w)) for w in range(workers)]
    whole = [item_cost(i, plan, config) for i in plan.items if plan.segments[i.segment_begin].merge < 0]
    slack = max([2.0 * a + 3.0, *(cost for cost in whole if cost <= sum(loads) / workers)])
    assert max(loads, default=0) <= sum(loads) / workers + slack


@FEW
@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 3000)), min_size=1, max_size=5), st.integers(1, 9), masks)
def test_batch_invariant_pieces_are_a_requests_own(shape: list[tuple[int, int]], workers: int, mask: str) -> None:
    changes, scalars, _ = with_mask(mask)
    batch = plans.paged_batch([q for q, _ in shape], [kv for _, kv in shape], 16)
    tiles = (Tile(16, 16, 1.0, 1.0, 1.0), Tile(64, 32, 1.0, 2.0, 1.0))
    config = plans.make_config(batch, num_qo_heads=4, num_workers=workers, tiles=tiles, batch_invariant=True, **changes)
    planner = plans.make_planner(config)

    def pieces(which: list[int]) -> list[set[tuple[int, ...]]]:
        part = plans.Batch(
            [batch.q_len[b] for b in which], [batch.kv_len[b] for b in which], 16, [batch.pages[b] for b in which]
        )
        planner.plan(**part.paged(), scalars=scalars)
        plan = planner.read()
        found: list[set[tuple[int, ...]]] = [set() for _ in which]
        for i in plan.items:
            begin = i.packed_begin - plan.qo_indptr[i.request] * config.group
            found[i.request].add((i.tile, i.kv_head, begin, i.packed_count, i.kv_begin, i.kv_end))
        return found

    together = pieces(list(range(len(shape))))
    for b in range(len(shape)):
        assert pieces([b]) == [together[b]]


def test_same_batch_same_bits_whatever_was_planned_before() -> None:
    batch = plans.paged_batch([1, 30, 0, 4], [300, 77, 9, 0], 8)
    small = plans.paged_batch([1], [5], 8)
    config = plans.make_config(batch, num_workers=5, tiles=plans.COSTLY_TILES)

    def image(planner: object) -> bytes:
        used = planner.plan(**batch.paged())  # type: ignore[attr-defined]
        return ctypes.string_at(planner.arena.data_ptr(), used)  # type: ignore[attr-defined]

    first, second = plans.make_planner(config), plans.make_planner(config)
    first.arena.fill_(0xA5)
    plain = image(second)
    assert _without_gaps(image(first), first) == _without_gaps(plain, second)
    first.plan(**small.paged())
    assert _without_gaps(image(first), first) == _without_gaps(plain, second)


def _without_gaps(image: bytes, planner: object) -> object:
    """The plan's values; bytes between arrays don't matter."""
    plan = planner.read()  # type: ignore[attr-defined]
    return (plan.header, plan.items, plan.segments, plan.merges, plan.levels, plan.worker, len(image))


@pytest.mark.parametrize("workers", [1, 2, 264])
def test_empty_batch(workers: int) -> None:
    config = PlanConfig(
        num_qo_heads=8,
        num_kv_heads=2,
        num_workers=workers,
        limits=Limits(batch=0, q_tokens=0, kv_tokens=0),
        tiles=plans.COSTLY_TILES,
    )
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=[0], kv_indptr=[0], kv_indices=[], kv_len=[])
    plan = planner.read()
    assert len(plan.items) == 0 and plan.worker == (0,) * (workers + 1)
    assert planner.stats()["makespan_over_mean"] == 1.0


def test_rows_without_keys_are_written() -> None:
    batch = plans.paged_batch([3, 0, 1], [0, 5, 0], 4)
    config = plans.make_config(batch)
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    assert plan.header.num_empty == len(plan.items) == 2 * config.num_kv_heads
    plans.check_plan(plan, config, batch, plans.everything)


def test_more_queries_than_keys_under_causal() -> None:
    batch = plans.paged_batch([40], [6], 4)
    config = plans.make_config(batch, has_mask=True, key_bounds=plans.CAUSAL)
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    assert planner.read().header.num_empty > 0
    plans.check_plan(planner.read(), config, batch, plans.causal)


def test_heads_of_a_tile_are_neighbours() -> None:
    batch = plans.paged_batch([1] * 4, [1024] * 4, 16)
    config = plans.make_config(
        batch, num_qo_heads=64, num_kv_heads=8, num_workers=264, tiles=(Tile(16, 64, 0.0, 1.0, 0.0),)
    )
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    for first in range(0, 264, 8):
        queues = [plan.queue(worker) for worker in range(first, first + 8)]
        assert [item.kv_head for queue in queues for item in queue[:1]] == list(range(8))[
            : len([q for q in queues if q])
        ]
        assert len({tuple((i.request, i.kv_begin, i.kv_end) for i in queue) for queue in queues}) == 1


def test_costly_merges_are_avoided() -> None:
    batch = plans.paged_batch([1], [4096], 16)
    cheap, costly = Tile(16, 64, 4.0, 1.0, 0.0), Tile(16, 64, 4.0, 1.0, 1.0)
    parts = []
    for tile in (cheap, costly):
        config = plans.make_config(batch, num_qo_heads=64, num_kv_heads=8, num_workers=264, tiles=(tile,))
        planner = plans.make_planner(config)
        planner.plan(**batch.paged())
        parts.append(planner.stats()["most_parts"])
    assert parts[0] > 16 and 6 <= parts[1] <= 10


@pytest.mark.parametrize(("requests", "length", "parts"), [(1, 4096, 8), (16, 1024, 2), (33, 1024, 0), (64, 1024, 0)])
def test_a_gpu_splits_as_far_as_it_pays(requests: int, length: int, parts: int) -> None:
    batch = plans.paged_batch([1] * requests, [length] * requests, 16)
    config = plans.make_config(
        batch, num_qo_heads=64, num_kv_heads=8, num_workers=264, tiles=(Tile(16, 64, 3.0, 1.0, 1.5),)
    )
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    assert len(plan.items) == requests * 8 * max(1, parts)
    assert {merge.part_count for merge in plan.merges} == ({parts} if parts else set())
    assert {item.kv_end - item.kv_begin for item in plan.items} == {length // max(1, parts)}


def test_mixed_batches_use_all_workers() -> None:
    batch = plans.paged_batch([256] + [1] * 16, [256] + [512] * 16, 16)
    tiles = (Tile(16, 64, 1.0, 1.0, 0.5), Tile(128, 64, 1.0, 4.0, 0.5))
    config = plans.make_config(
        batch, num_qo_heads=8, num_kv_heads=2, num_workers=24, tiles=tiles, has_mask=True, key_bounds=plans.CAUSAL
    )
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    stats = planner.stats()
    assert set(stats["tiles"]) == {"16x64", "128x64"}
    assert stats["makespan_over_mean"] < 1.25


def test_affine_storages() -> None:
    for storage, size, arguments in (
        ("ragged", 1, {"kv_indptr": [0, 5, 5, 40]}),
        ("dense", 40, {"kv_len": [5, 0, 35]}),
    ):
        batch = plans.Batch([2, 1, 3], [5, 0, 35])
        config = plans.make_config(batch, storage=storage, block_size=size)
        planner = plans.make_planner(config)
        planner.plan(qo_indptr=batch.qo_indptr, **arguments)
        plan = planner.read()
        plans.check_plan(plan, config, batch, plans.everything, slots=False)
        starts = [0, 5, 5] if storage == "ragged" else [0, 40, 80]
        for item in plan.items:
            slots = [slot for _, slot in plans.list_keys(plan, item)]
            assert slots == list(range(starts[item.request] + item.kv_begin, starts[item.request] + item.kv_end))
        assert plan.header.num_slots == (40 if storage == "ragged" else 120)


@FEW
@given(st.data())
def test_block_sparse(data: st.DataObject) -> None:
    q_len, kv_len, rows, size = 11, 37, 4, 5
    lists = [
        data.draw(
            st.lists(st.integers(0, 7), unique=True, max_size=8).map(sorted if data.draw(st.booleans()) else list)
        )
        for _ in range(3)
    ]
    indptr = [0]
    for blocks in lists:
        indptr.append(indptr[-1] + len(blocks))
    indices = [block for blocks in lists for block in blocks]
    config = PlanConfig(
        num_qo_heads=2,
        num_kv_heads=1,
        num_workers=3,
        limits=Limits(batch=1, q_tokens=q_len, kv_tokens=kv_len),
        tiles=plans.SMALL_TILES,
        storage="block_sparse",
        block_size=size,
        block_rows=rows,
        has_mask=True,
        key_bounds=plans.CAUSAL,
    )
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=[0, q_len], kv_indptr=indptr, kv_indices=indices, kv_len=[kv_len], num_blocks=8)
    plan = planner.read()
    seen: dict[tuple[int, int], int] = {}
    for item in plan.items:
        for offset in range(item.packed_count):
            q = (item.packed_begin + offset) // 2
            pos = q + kv_len - q_len
            for i, (position, slot) in enumerate(plans.list_keys(plan, item)):
                assert position == slot
                full = item.full_from <= item.kv_begin + i < item.full_to
                assert not full or position <= pos
                if position <= pos:
                    key = (item.packed_begin + offset, position)
                    seen[key] = seen.get(key, 0) + 1
    for q in range(q_len):
        for packed in (2 * q, 2 * q + 1):
            wanted = {b * size + i for b in lists[q // rows] for i in range(size)}
            wanted = {kv for kv in wanted if kv <= q + kv_len - q_len}
            assert {kv for row, kv in seen if row == packed} == wanted
            assert all(seen[packed, kv] == 1 for kv in wanted)
    plans.check_partials(plan, config)


def test_int32_and_int64_tensors_and_lists_plan_alike() -> None:
    batch = plans.paged_batch([2, 1], [33, 90], 8)
    config = plans.make_config(batch)
    images = []
    for convert in (list, lambda x: torch.tensor(x, dtype=torch.int32), lambda x: torch.tensor(x, dtype=torch.int64)):
        planner = plans.make_planner(config)
        planner.plan(**{name: convert(value) for name, value in batch.paged().items()})
        plan = planner.read()
        images.append((plan.items, plan.ints(plan.levels[0].indices, len(batch.kv_indices))))
    assert images[0] == images[1] == images[2]
    pages = [-(-length // 8) for length in batch.kv_len]
    last = [length - 8 * (count - 1) for length, count in zip(batch.kv_len, pages, strict=True)]
    arguments = batch.paged()
    del arguments["kv_len"]
    planner.plan(**arguments, last_page_len=last)
    assert planner.read().items == images[0][0]


def test_an_arena_without_a_plan_is_refused() -> None:
    batch = plans.paged_batch([1], [5], 8)
    planner = plans.make_planner(plans.make_config(batch))
    with pytest.raises(ValueError, match="holds no plan"):
        planner.read()
    planner.plan(**batch.paged())
    read_plan(planner.arena)
    with pytest.raises(ValueError, match="kv_len"):
        planner.plan(**{**batch.paged(), "kv_len": [9]})
    with pytest.raises(ValueError, match="holds no plan"):
        planner.read()
