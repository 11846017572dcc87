"""What code generation takes and gives: a kernel's configuration, its text, and its manifest.

The only part of codegen that the runtime knows; stdlib only, so that a warm start imports nothing else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

Phase: TypeAlias = Literal["plan", "run"]
APPEND_ROWS: Final = -1  # `rows` of the kernel that appends to a pool


def decode_rows(head_dim_v: int) -> tuple[int, ...]:
    """The packed query rows of a GPU's decode tiles: no warp's registers hold 32 × 256 results."""
    return (16, 32) if head_dim_v <= 192 else (16,)


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Everything besides the variant that decides a kernel's text; together they are the cache key.

    `target` is a row of `target.TARGETS` ("cpu-avx512") or `target.GPUS` ("sm90"); types are rows of dtypes.STORAGE.
    `rows` are the packed query rows of a GPU kernel's one tile, 0 on a CPU, APPEND_ROWS for a GPU's append kernel.
    """

    target: str
    head_dim: int
    head_dim_v: int
    dtype: str
    kv_dtype: str
    keys: Literal["raw", "transformed"] = "raw"
    fast_math: bool = False
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a variant, in the order of the functor's arguments (see include/attngen/functor.hpp).

    A scalar has `dims` None.  `phase` says whether it is an argument of plan() (the key bounds read it) or of run();
    `in_key`, whether the key stage reads it, so that transforming keys needs it.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None
    phase: Phase
    default: bool | int | float | None = None
    range: tuple[Any, Any] | None = None
    in_key: bool = True


@dataclass(frozen=True, slots=True)
class Tile:
    """A compiled tile: packed query rows × keys, with the planner's cost of an item: a + b·tiles + c·partials."""

    rows: int
    keys: int
    a: float
    b: float
    c: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the runtime must know of a kernel, stored beside it as JSON.

    `key_bounds` are four postfix programs (first, full_from, full_to, last) of [op, operand] pairs; the operations
    are include/attngen/bounds.hpp's.  Empty where no bounds are known: every key is visited and masked.

    A GPU kernel has one tile.  Its launch takes 32 · `warps` threads a CTA and `shared_bytes` of dynamic shared memory,
    and `ctas_per_sm` CTAs fit an SM; `registers` a thread and bytes of `spills` are what ptxas reported.
    """

    variant: str
    config: KernelConfig
    parameters: tuple[Parameter, ...]
    softmax: bool
    has_mask: bool
    has_sink: bool
    has_output: bool
    has_key: bool
    key_bounds: tuple[tuple[tuple[int, int], ...], ...]
    tiles: tuple[Tile, ...]
    logit_bound: float | None = None
    isa: tuple[str, ...] = ()  # /proc/cpuinfo flags that the code needs
    warps: int = 0
    stages: int = 0
    ctas_per_sm: int = 0
    shared_bytes: int = 0
    registers: int = 0
    spills: int = 0

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """The manifest that `to_json` wrote."""
        data = json.loads(text)
        data["config"] = KernelConfig(**data["config"])
        data["parameters"] = tuple(
            Parameter(**{**p, "dims": _tuple(p["dims"]), "range": _tuple(p["range"])}) for p in data["parameters"]
        )
        data["key_bounds"] = tuple(tuple((op, operand) for op, operand in program) for program in data["key_bounds"])
        data["tiles"] = tuple(Tile(**tile) for tile in data["tiles"])
        data["isa"] = tuple(data["isa"])
        return Manifest(**data)


def _tuple(value: list[Any] | None) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The generated files by name, the one to compile, and the compiler flags that the target adds.

    `fallbacks` are the same kernel in other tiles, best first, for where this one needs more registers than there are.
    """

    files: dict[str, str]
    main: str
    flags: tuple[str, ...]
    manifest: Manifest
    fallbacks: tuple[KernelSource, ...] = ()
