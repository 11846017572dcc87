"""How large a batch may become, and the fixed workspace that holds the plan of any batch inside these limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, TypeAlias

from attngen.codegen.source import Tile

Storage: TypeAlias = Literal["paged", "ragged", "dense", "block_sparse"]

DECODE_ROWS: Final = 32  # native/plan.hpp's kDecodeRows
CHUNK_TILES: Final = 8  # of the smallest chunk of keys with batch_invariant
MAX_CHUNKS: Final = 64  # a request's tiles are cut into at most this many pieces with batch_invariant
_INT32_MAX: Final = 2**31 - 1

# Records of include/attngen/work.hpp.
WORKERS_AT: Final = 256
WORKER_BYTES: Final = 128
LEVEL_BYTES: Final = 32
SCALAR_BYTES: Final = 8
ITEM_BYTES: Final = 80
SEGMENT_BYTES: Final = 16
MERGE_BYTES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest batch: requests, query rows, keys; sizes the workspace once.

    `q_tokens` and `kv_tokens` are sums over the batch (of q_len and kv_len, not of the pool); `q_len` and `kv_len`,
    one request's, default to them.  `levels` counts the views of plan(levels=...), and `level_rows` the token rows
    that they list together (default: none for one level, else all rows in each).  `blocks` bounds the entries of
    kv_indices over all lists (default: what kv_len needs, where the rows of a request share its list).
    """

    batch: int
    q_tokens: int
    kv_tokens: int
    q_len: int | None = None
    kv_len: int | None = None
    levels: int = 1
    level_rows: int | None = None
    blocks: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "levels" else 0
            if value is None and field.default is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _INT32_MAX:
                raise ValueError(f"limits.{field.name} is {value!r}, need an integer from {least} to {_INT32_MAX}")
        for one, all_ in (("q_len", "q_tokens"), ("kv_len", "kv_tokens")):
            if (value := getattr(self, one)) is not None and value > getattr(self, all_):
                raise ValueError(f"limits.{one} is {value}, need at most limits.{all_} = {getattr(self, all_)}")

    @property
    def longest_q(self) -> int:
        """Most query rows of one request."""
        return self.q_tokens if self.q_len is None else self.q_len

    @property
    def longest_kv(self) -> int:
        """Most keys of one request."""
        return self.kv_tokens if self.kv_len is None else self.kv_len

    @property
    def all_level_rows(self) -> int:
        """Most token rows over all levels; 0 where plans have no levels."""
        if self.level_rows is not None:
            return self.level_rows
        return self.q_tokens * self.levels if self.levels > 1 else 0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes by purpose; `total` is what is allocated."""

    arena: int
    partial_out: int
    partial_lse: int
    counters: int

    @property
    def total(self) -> int:
        """All bytes of the workspace."""
        return self.arena + self.partial_out + self.partial_lse + self.counters


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most records that a plan inside the limits can hold."""

    items: int
    segments: int
    merges: int
    partial_rows: int
    blocks: int

    def larger(self, other: Capacity) -> Capacity:
        """The larger of the two in every respect."""
        return Capacity(*(max(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What stays the same over all plans of one Attention.

    `queues` counts the workers of each queue, and `tile_queues` says which queue each tile belongs to; with
    `num_workers` instead there is one queue.  `block_size` is the page size, the capacity of a request for Dense, bc
    for BlockSparse; `block_rows` is its br.  `scalars` names the plan scalars in the order in which `key_bounds`
    numbers them.
    """

    num_qo_heads: int
    num_kv_heads: int
    limits: Limits
    tiles: tuple[Tile, ...]
    num_workers: int = 0
    queues: tuple[int, ...] = ()
    tile_queues: tuple[int, ...] = ()
    storage: Storage = "paged"
    block_size: int = 1
    block_rows: int = 1
    key_bounds: tuple[tuple[tuple[int, int], ...], ...] = ()
    has_mask: bool = False
    scalars: tuple[str, ...] = ()
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if not self.queues:
            object.__setattr__(self, "queues", (self.num_workers,))
        elif not self.num_workers:
            object.__setattr__(self, "num_workers", sum(self.queues))
        if not self.tile_queues:
            object.__setattr__(self, "tile_queues", (0,) * len(self.tiles))
        for name in ("num_qo_heads", "num_kv_heads", "num_workers", "block_size", "block_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, need at least 1")
        if self.num_qo_heads % self.num_kv_heads:
            raise ValueError(
                f"num_qo_heads is {self.num_qo_heads}, need a multiple of num_kv_heads {self.num_kv_heads}"
            )
        for tile in self.tiles:
            if tile.rows < 1 or tile.keys < 1 or tile.b <= 0 or tile.a < 0 or tile.c < 0:
                raise ValueError(f"tiles has {tile}, need positive sizes, b > 0, a and c not negative")
        if not self.tiles:
            raise ValueError("tiles is empty, need at least one")
        self._check_queues()

    def _check_queues(self) -> None:
        if min(self.queues) < 1 or sum(self.queues) != self.num_workers:
            raise ValueError(
                f"queues is {self.queues}, need at least 1 worker in each and num_workers = {self.num_workers} in all"
            )
        if len(self.tile_queues) != len(self.tiles) or set(self.tile_queues) != set(range(len(self.queues))):
            raise ValueError(
                f"tile_queues is {self.tile_queues}, need the queue of each of {len(self.tiles)} tiles, and a tile in "
                f"each of {len(self.queues)} queues"
            )

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def first_workers(self) -> tuple[int, ...]:
        """The first worker of each queue."""
        return tuple(sum(self.queues[:queue]) for queue in range(len(self.queues)))

    @property
    def levels_at(self) -> int:
        """Where levels lie in the arena, behind the worker records."""
        return WORKERS_AT + WORKER_BYTES * self.num_workers

    @property
    def scalars_at(self) -> int:
        """Where the words of plan scalars lie in the arena, behind as many levels as the limits allow."""
        return self.levels_at + LEVEL_BYTES * (self.limits.levels + 1)

    def workspace(self, head_dim_v: int) -> Workspace:
        """The workspace that every plan of this configuration fits."""
        most, limits, levels = capacity(self), self.limits, self.limits.levels + 1
        arena = (
            self.scalars_at
            + SCALAR_BYTES * len(self.scalars)
            + 4 * (limits.batch + 1 + limits.batch + limits.q_tokens)
            + 4 * (2 * most.blocks + limits.all_level_rows)
            + ITEM_BYTES * most.items
            + SEGMENT_BYTES * most.segments
            + MERGE_BYTES * most.merges
            + 64 * (10 + 3 * levels)  # each array starts at a multiple of at most 64
        )
        return Workspace(
            arena=-(-arena // 256) * 256,
            partial_out=4 * head_dim_v * most.partial_rows,
            partial_lse=4 * most.partial_rows,
            counters=4 * most.merges,
        )


def workspace_bytes(
    limits: Limits,
    *,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim_v: int,
    num_workers: int,
    tiles: Sequence[Tile],
    storage: Storage = "paged",
    block_size: int = 1,
    block_rows: int = 1,
    batch_invariant: bool = False,
) -> Workspace:
    """The workspace that any batch inside the limits plans in; a function of limits and workers only."""
    config = PlanConfig(
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        num_workers=num_workers,
        limits=limits,
        tiles=tuple(tiles),
        storage=storage,
        block_size=block_size,
        block_rows=block_rows,
        batch_invariant=batch_invariant,
    )
    return config.workspace(head_dim_v)


def capacity(config: PlanConfig) -> Capacity:
    """Bounds on a plan's records.

    Why they hold (T: rows of the largest tile, G: head group, H: KV heads; of a queue, t: rows of its largest tile, W:
    its workers):

    - A list's p packed rows make one task where p <= T, else ceil(p / T); so `lists` lists with r token rows in all
      make at most lists + r·G // T tasks.  Each task makes one piece a KV head, and one more wherever it is cut.
    - A task's pieces stay in its tile's queue.  A worker ends at most one piece early, so a queue has at most W cuts; a
      split task with n pieces has n - 1 of them, and n <= 2 (n - 1): at most 2 W pieces of a queue are partial, of at
      most min(t, q_len·G) rows, in at most W merges.
    """
    limits, heads, workers = config.limits, config.num_kv_heads, config.num_workers
    rows = max(tile.rows for tile in config.tiles)
    sparse = config.storage == "block_sparse"
    lists = limits.batch + (limits.q_tokens // config.block_rows if sparse else 0)
    tasks = lists + limits.q_tokens * config.group // rows
    blocks = _blocks(limits, config.storage, config.block_size, lists)
    if config.batch_invariant:
        return _chunked(config, tasks, blocks)
    plain = Capacity(
        items=heads * tasks + workers,
        segments=heads * tasks + workers,
        merges=workers,
        partial_rows=sum(2 * own * min(most, limits.longest_q * config.group) for own, most in _queues(config)),
        blocks=blocks,
    )
    return plain if limits.all_level_rows == 0 else plain.larger(_shared(config, rows))


def _queues(config: PlanConfig) -> list[tuple[int, int]]:
    """Workers, and rows of the largest tile, of each queue."""
    most = [0] * len(config.queues)
    for tile, queue in zip(config.tiles, config.tile_queues, strict=True):
        most[queue] = max(most[queue], tile.rows)
    return list(zip(config.queues, most, strict=True))


def _shared(config: PlanConfig, rows: int) -> Capacity:
    """Bounds with levels that list R token rows.

    - A list of r >= 1 rows makes at most r + r·G // T tasks, also where each request gets its own.
    - Rows are cut at requests and at both ends of each run of consecutive rows inside a task; a run ends at a gap or
      at a task's end, so there are at most R + tasks of them.  A unit lies between two cuts.
    - Rows of a unit without keys make tasks of at most T rows: one a unit, and one more every T rows.
    - A level lists a row at most once, so its tasks name each unit at most once; a cut, of which a queue has at most W,
      repeats one task's units, at most one a row.
    """
    limits, group, heads = config.limits, config.group, config.num_kv_heads
    repeated = sum(own * most for own, most in _queues(config))
    listed = limits.all_level_rows
    tasks = listed + listed * group // rows
    cuts = limits.batch + 1 + 2 * (listed + tasks)
    extra = cuts + limits.q_tokens * group // rows
    segments = heads * (limits.levels * cuts + extra) + repeated
    return Capacity(
        items=heads * (tasks + extra) + config.num_workers,
        segments=segments,
        merges=heads * cuts,
        partial_rows=heads * listed * group + repeated,
        blocks=0,
    )


def _chunked(config: PlanConfig, tasks: int, blocks: int) -> Capacity:
    """Bounds with batch_invariant.

    A request of n tasks is cut into at most max(1, MAX_CHUNKS // n) chunks (prefill tiles: // (n·H)), so where it is
    cut at all it makes at most MAX_CHUNKS pieces a KV head (prefill: over all heads).  A request of one task makes no
    more pieces than its keys hold smallest chunks.
    """
    limits, heads, tiles = config.limits, config.num_kv_heads, config.tiles
    packed = limits.longest_q * config.group
    small = [min(tile.rows, packed) for tile in tiles if tile.rows <= DECODE_ROWS]
    large = [min(tile.rows, packed) for tile in tiles if tile.rows > DECODE_ROWS]
    pieces = MAX_CHUNKS * limits.batch
    if config.storage != "block_sparse" and packed <= max(tile.rows for tile in tiles):
        chunk = CHUNK_TILES * min(tile.keys for tile in tiles)
        pieces = min(pieces, limits.kv_tokens // chunk + limits.batch)
    over_all_heads = min(MAX_CHUNKS * limits.batch, heads * pieces)
    partial = heads * pieces + over_all_heads
    return Capacity(
        items=heads * tasks + partial,
        segments=heads * tasks + partial,
        merges=partial // 2,
        partial_rows=heads * pieces * max(small, default=0) + over_all_heads * max(large, default=0),
        blocks=blocks,
    )


def _blocks(limits: Limits, storage: Storage, block_size: int, lists: int) -> int:
    """Entries of kv_indices: what the longest lists need, unless the limits say."""
    if limits.blocks is not None:
        return limits.blocks
    if storage == "block_sparse":
        return lists * -(-limits.longest_kv // block_size)
    listed = limits.all_level_rows
    unit = block_size if storage == "paged" else 1
    plain = limits.kv_tokens // unit + limits.batch if storage == "paged" else 0
    return max(plain, limits.kv_tokens // unit + listed if listed else 0)
