"""Tiles of GPU kernels: what to try for a configuration, best first, and the shared memory that a tile takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from attngen.codegen.source import KernelConfig, Tile, decode_rows
from attngen.codegen.target import Gpu
from attngen.dtypes import STORAGE

ROWS: Final = (16, 32, 64, 128)
DECODE_ROWS: Final = (16, 32)
WIDEST: Final = 256  # head dimension

_WIDE: Final = 128  # above it a warp's accumulators leave room for 16 rows only
_RESERVED: Final = 1024  # bytes of an SM's shared memory that each CTA takes besides its own


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile's keys, its CTA's warps and stages of the ring, and the CTAs that share an SM."""

    keys: int
    warps: int
    stages: int
    ctas_per_sm: int


@dataclass(frozen=True, slots=True)
class Extras:
    """What a functor wants of shared memory: lane tables, values of rows, room where lanes are read by index, slots."""

    tables: int
    row_values: int
    lane_at: bool
    slot: bool


# Each warp of a decode kernel has 16 of a tile's keys, each of a prefill kernel 16 or 32 of its rows.  What comes first
# was fastest on an H200; what comes last fits a GPU with 100 KiB an SM at any head dimension.
_DECODE: Final = (
    Shape(128, 8, 2, 1), Shape(64, 4, 3, 2), Shape(64, 4, 2, 2), Shape(64, 4, 4, 1), Shape(64, 4, 3, 1),
    Shape(64, 4, 2, 1), Shape(32, 2, 3, 1), Shape(32, 2, 2, 1), Shape(16, 1, 2, 1),
)  # fmt: skip
_PREFILL_64: Final = (
    Shape(64, 4, 2, 2), Shape(32, 4, 2, 2), Shape(64, 4, 2, 1), Shape(32, 4, 2, 1), Shape(16, 4, 2, 1),
    Shape(16, 4, 1, 1),
)  # fmt: skip
_PREFILL_128: Final = (
    Shape(64, 4, 2, 2), Shape(32, 4, 2, 2), Shape(64, 8, 2, 1), Shape(32, 8, 2, 1), Shape(16, 8, 2, 1),
)  # fmt: skip
_PREFILL_128_WIDE: Final = (
    Shape(64, 8, 2, 1), Shape(32, 8, 2, 1), Shape(64, 8, 1, 1), Shape(32, 8, 1, 1), Shape(16, 8, 1, 1),
)  # fmt: skip

# Costs of an item, of a tile of 64 keys and of a partial, in units of a 16 × 64 tile.  Estimates.
_COSTS: Final = {16: (3.0, 1.0, 1.5), 32: (3.0, 1.1, 1.5), 64: (4.0, 2.5, 1.5), 128: (6.0, 4.5, 1.5)}


def shapes(config: KernelConfig, gpu: Gpu, extras: Extras) -> tuple[Shape, ...]:
    """What fits the GPU's shared memory, best first; raises ValueError where nothing does.

    Of those that ask the same of the registers only the first: the others spill where it does.
    """
    fitting: dict[tuple[int, int], Shape] = {}
    for shape in _fitting(config, gpu, extras):
        fitting.setdefault((shape.keys, shape.warps), shape)
    if not fitting:
        raise ValueError(
            f"rows: got {config.rows}; with head dimensions {config.head_dim} and {config.head_dim_v} and a "
            f"{config.kv_dtype} pool, {gpu.name} needs fewer"
        )
    return tuple(fitting.values())


def _fitting(config: KernelConfig, gpu: Gpu, extras: Extras) -> Iterator[Shape]:
    for shape in _ladder(config):
        taken = shared_bytes(config, shape, extras)
        if taken <= gpu.shared_block and shape.ctas_per_sm * (taken + _RESERVED) <= gpu.shared_sm:
            yield shape


def _ladder(config: KernelConfig) -> tuple[Shape, ...]:
    if config.rows in DECODE_ROWS:
        return _DECODE if config.rows in decode_rows(config.head_dim_v) else ()
    if config.rows == 64:
        return _PREFILL_64
    return _PREFILL_128_WIDE if max(config.head_dim, config.head_dim_v) > _WIDE else _PREFILL_128


def tile(config: KernelConfig, shape: Shape) -> Tile:
    """The planner's view of a shape."""
    a, b, c = _COSTS[config.rows]
    return Tile(config.rows, shape.keys, a, b * shape.keys / 64, c)


def shared_bytes(config: KernelConfig, shape: Shape, extras: Extras) -> int:
    """Dynamic shared memory of a CTA, in bytes; include/attngen/fa2/ asserts that its layout fits."""
    dims = (config.head_dim, config.head_dim_v)
    tables = 4 * _round_up(max(dims)) * extras.tables
    odd = any(n % 16 for n in dims)  # a lane doesn't hold both halves of such a vector
    room = 2048 * shape.warps if extras.lane_at or odd else 0
    return _tile_bytes(config, shape) + _book_bytes(config, shape, extras) + tables + room


def _tile_bytes(config: KernelConfig, shape: Shape) -> int:
    """Queries, the ring of keys and values, and what rows leave through in their place."""
    dims = (config.head_dim, config.head_dim_v)
    operands = sum(_pitch16(n) for n in dims)
    narrow = STORAGE[config.kv_dtype].bytes == 1
    stage = shape.keys * (sum(_pitch8(n) for n in dims) if narrow else operands)
    queries = config.rows * _pitch16(config.head_dim)
    ring = shape.stages * stage + (shape.keys * operands if narrow else 0)
    out_row = 4 * _round_up(config.head_dim_v) + 16
    if config.rows not in DECODE_ROWS:
        return max(queries + ring, shape.warps * 8 * out_row)  # eight rows a warp leave at once
    held = config.rows // 16 * (_round_up(config.head_dim) // 16) <= 8  # in registers, by way of the ring
    if held and shape.stages > 1 and queries <= stage:
        queries = 0
    return queries + max(ring, shape.warps * config.rows * out_row)  # warps merge in the ring's place


def _book_bytes(config: KernelConfig, shape: Shape, extras: Extras) -> int:
    """Lists of a stage's keys, the rows and their state, the item, its source and what else Books has once."""
    lists = shape.stages * shape.keys * (16 if extras.slot else 12)
    rows = config.rows * (36 + 4 * extras.row_values)
    if config.rows in DECODE_ROWS:
        state = (8 * shape.warps + 4) * config.rows
    elif config.rows // shape.warps * _round_up(config.head_dim_v) >= 4096:  # accumulators leave no registers for it
        state = 512 * shape.warps + 4 * config.rows
    else:
        state = 12 * config.rows
    return 560 + lists + rows + state


def _round_up(n: int) -> int:
    return -(-n // 16) * 16


def _pitch16(n: int) -> int:
    return 2 * _round_up(n)


def _pitch8(n: int) -> int:
    return _round_up(n)
