"""Any batch inside the limits plans in the workspace of these limits."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.codegen.source import Tile
from attngen.runtime.limits import Limits, PlanConfig, workspace_bytes
from attngen.runtime.plan import Level, Planner

from . import plans

# Tiles, and the queue of each.
TILES = st.sampled_from(
    [
        (plans.QUEUED_TILES, (0, 1)),
        (plans.QUEUED_TILES, (1, 0)),
        (plans.COSTLY_TILES, (0, 1, 1)),
        (plans.COSTLY_TILES, (0, 0, 0)),
        ((Tile(1, 1, 0.0, 1.0, 0.0),), (0,)),
        ((Tile(16, 4, 1.0, 1.0, 0.1),), (0,)),
        ((Tile(128, 16, 1.0, 1.0, 0.1),), (0,)),
        ((Tile(4, 4, 0.0, 1.0, 0.0), Tile(64, 4, 0.0, 1.0, 0.0)), (0, 0)),
    ]
)


Tiles = tuple[tuple[Tile, ...], tuple[int, ...]]


def queued(tiles: Tiles, workers: int) -> dict[str, Any]:
    """`workers` in the first queue, and some in each other."""
    queues = (workers, workers // 2 + 1)[: max(tiles[1]) + 1]
    return {"tiles": tiles[0], "tile_queues": tiles[1], "queues": queues}


def split(total: int, most: int, parts: int, rng: random.Random) -> list[int]:
    """`parts` lengths of at most `most` that sum to at most `total`, often exactly."""
    lengths = []
    for left in range(parts, 0, -1):
        fair = total if left == 1 or rng.random() < 0.3 else rng.randint(0, 2 * total // left)
        lengths.append(min(most, total, fair))
        total -= lengths[-1]
    rng.shuffle(lengths)
    return lengths


def fits(planner: Planner) -> None:
    header, config = planner.read().header, planner.config
    workspace = config.workspace(1)
    assert header.bytes <= planner.arena.numel() == workspace.arena
    assert 4 * header.num_partial_rows <= workspace.partial_lse
    assert 4 * header.num_merges <= workspace.counters


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 12), st.integers(0, 60), st.integers(0, 300), st.integers(1, 12), TILES,
    st.sampled_from([(1, 1), (6, 2), (5, 5), (64, 1)]), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_paged_batches(
    batch: int, rows: int, keys: int, workers: int, tiles: Tiles, heads: tuple[int, int],
    batch_invariant: bool, seed: int,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    limits = Limits(batch=batch, q_tokens=rows, kv_tokens=keys, q_len=rng.randint(0, rows), kv_len=rng.randint(0, keys))
    config = PlanConfig(
        num_qo_heads=heads[0], num_kv_heads=heads[1], limits=limits, **queued(tiles, workers),
        block_size=rng.choice([1, 3, 16]), batch_invariant=batch_invariant,
    )  # fmt: skip
    planner = plans.make_planner(config)
    for _ in range(3):
        many = rng.randint(0, batch)
        drawn = plans.paged_batch(
            split(rows, limits.longest_q, many, rng), split(keys, limits.longest_kv, many, rng), config.block_size
        )
        planner.plan(**drawn.paged())
        fits(planner)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 3), st.integers(1, 9), TILES, st.integers(0, 2**32))
def test_level_batches(batch: int, rows: int, levels: int, workers: int, tiles: Tiles, seed: int) -> None:
    """Lists of any token rows in any order, as many and as ragged as the limits let them be."""
    rng = random.Random(seed)
    q_len = split(rows, rows, batch, rng)
    total, page = sum(q_len), 4
    views, listed, entries = [], 0, 0
    for number in range(levels):
        chosen = rng.sample(range(total), rng.randint(0, total))
        cuts = sorted(rng.choices(range(len(chosen) + 1), k=rng.randint(0, 4)))
        indptr = [0, *cuts, len(chosen)]
        pages = [rng.randint(0, 5) for _ in indptr[1:]]
        kv_indptr = [sum(pages[:i]) for i in range(len(pages) + 1)]
        views.append(
            Level(
                qo_indptr=indptr, tokens=chosen, kv_indptr=kv_indptr, kv_indices=list(range(kv_indptr[-1])),
                kv_positions=[(number * 5 + j) * page for count in pages for j in range(count)], block_size=page,
            )
        )  # fmt: skip
        listed += len(chosen)
        entries += kv_indptr[-1]
    keys = levels * 5 * page
    limits = Limits(
        batch=batch, q_tokens=total, kv_tokens=batch * keys, levels=levels, level_rows=listed, blocks=entries
    )
    heads = rng.choice([(1, 1), (6, 2), (14, 2), (64, 1)])
    config = PlanConfig(
        num_qo_heads=heads[0], num_kv_heads=heads[1], limits=limits, **queued(tiles, workers), block_size=page
    )
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=plans.Batch(q_len, []).qo_indptr, kv_len=[keys] * batch, levels=views)
    fits(planner)
    plans.check_partials(planner.read(), config)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 6), st.integers(1, 5), TILES, st.booleans(),
       st.integers(0, 2**32))  # fmt: skip
def test_block_sparse_batches(
    batch: int, rows: int, br: int, bc: int, tiles: Tiles, batch_invariant: bool, seed: int
) -> None:
    rng = random.Random(seed)
    q_len = split(rows, rows, batch, rng)
    kv_len = [rng.randint(0, 40) for _ in q_len]
    limits = Limits(batch=batch, q_tokens=sum(q_len), kv_tokens=40 * batch, kv_len=40)
    config = PlanConfig(
        num_qo_heads=6, num_kv_heads=2, limits=limits, **queued(tiles, 5), storage="block_sparse",
        block_size=bc, block_rows=br, batch_invariant=batch_invariant,
    )  # fmt: skip
    most = -(-40 // bc)
    lists = [rng.sample(range(most), rng.randint(0, most)) for count in q_len for _ in range(-(-count // br))]
    planner = plans.make_planner(config)
    planner.plan(
        qo_indptr=plans.Batch(q_len, []).qo_indptr,
        kv_len=kv_len,
        kv_indptr=[sum(map(len, lists[:i])) for i in range(len(lists) + 1)],
        kv_indices=[block for blocks in lists for block in blocks],
        kv_positions=[block * bc for blocks in lists for block in blocks],
    )
    fits(planner)
    plans.check_partials(planner.read(), config)


def test_workspace_depends_on_limits_and_workers_alone() -> None:
    limits = Limits(batch=256, q_tokens=8192, q_len=2048, kv_tokens=4_000_000)
    tiles = (Tile(16, 64, 4.0, 1.0, 0.2), Tile(128, 128, 4.0, 8.0, 0.2))
    workspace = workspace_bytes(
        limits, num_qo_heads=32, num_kv_heads=8, head_dim_v=128, num_workers=264, tiles=tiles, block_size=16
    )
    assert workspace.partial_out == 128 * workspace.partial_lse
    assert workspace.total < 64 << 20
