"""Other tiles than the ladder's, for exploring: `--tiles 128:64,4,2,2` is rows:keys,warps,stages,CTAs an SM.

A forced tile takes part in the cache key, so that tries neither meet each other nor real kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attngen.codegen import tiles
from attngen.loading import LoadedVariant


@dataclass(frozen=True)
class Forced:
    """One shape for every kernel of that many packed rows."""

    text: str
    rows: int
    shape: tiles.Shape


def parse(text: str) -> Forced:
    """ValueError where the text is no tile."""
    rows, separator, shape = text.partition(":")
    numbers = [int(part) for part in shape.split(",")] if separator else []
    if len(numbers) != 4:
        raise ValueError(f"--tiles: got {text!r}, needs rows:keys,warps,stages,ctas like 128:64,4,2,2")
    return Forced(text, int(rows), tiles.Shape(*numbers))


@contextmanager
def forced(tile: Forced | None) -> Iterator[None]:
    """Kernels made inside have that tile, or fail where it doesn't fit; None changes nothing."""
    if tile is None:
        yield
        return
    ladder, key = tiles._ladder, LoadedVariant.key

    def only(config: Any) -> tuple[tiles.Shape, ...]:
        return (tile.shape,) if config.rows == tile.rows else ladder(config)

    def named(variant: LoadedVariant, config: Any) -> str:
        plain = key(variant, config)
        return f"{plain[:24]}{abs(hash(tile.shape)) % 16**8:08x}" if config.rows == tile.rows else plain

    tiles._ladder, LoadedVariant.key = only, named  # type: ignore[assignment]
    try:
        yield
    finally:
        tiles._ladder, LoadedVariant.key = ladder, key  # type: ignore[method-assign]
