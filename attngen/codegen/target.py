"""What can be compiled for: one row a target, with the compiler flags and what the machine offers a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from attngen.codegen.source import Tile


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU: `isa` are the /proc/cpuinfo flags that its code needs, `width` the f32 lanes of a vector.

    `amx` says that bf16 operands are multiplied on AMX tiles; all others are on vectors.
    """

    name: str
    width: int
    amx: bool
    flags: tuple[str, ...]
    isa: tuple[str, ...]

    def tiles(self, pool: str) -> tuple[Tile, ...]:
        """The tiles of a kernel whose pool has that storage type."""
        return _TILES_AMX if self.amx and pool == "bf16" else _TILES_FMA


# Rows: few for decode, many for prefill, since packing a tile of keys is paid once for all rows of an item.  Keys: a
# tile's keys, values and scores stay in L2.  Costs are in units of one decode tile.
_SMALL: Final = Tile(rows=32, keys=128, a=0.4, b=1.0, c=0.1)
_TILES_AMX: Final = (
    _SMALL,
    Tile(rows=128, keys=256, a=1.0, b=5.5, c=0.5),
    Tile(rows=512, keys=256, a=4.0, b=19.0, c=2.0),
)
_TILES_FMA: Final = (
    _SMALL,
    Tile(rows=128, keys=128, a=1.0, b=4.8, c=0.5),
    Tile(rows=512, keys=128, a=4.0, b=18.0, c=2.0),
)
_AVX2: Final = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_AVX512: Final = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
_AMX: Final = (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16")
_ISA_AVX2: Final = ("avx2", "fma", "f16c", "bmi2")
_ISA_AVX512: Final = (*_ISA_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_ISA_AMX: Final = (*_ISA_AVX512, "avx512_bf16", "amx_tile", "amx_bf16")

# The best first: "cpu" is the first that a machine can run.
TARGETS: Final[dict[str, Cpu]] = {
    row.name: row
    for row in (
        Cpu("cpu-amx", 16, True, _AMX, _ISA_AMX),
        Cpu("cpu-avx512", 16, False, _AVX512, _ISA_AVX512),
        Cpu("cpu-avx2", 8, False, _AVX2, _ISA_AVX2),
    )
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: the architecture that its code is for, and its shared memory in bytes, of an SM and of the largest CTA."""

    name: str
    arch: str
    shared_sm: int
    shared_block: int

    @property
    def flags(self) -> tuple[str, ...]:
        """What the compiler is told of it; nvcc and NVRTC both know this spelling."""
        return (f"-arch={self.arch}",)


_KIB: Final = 1024

# NOTE: an `a` architecture's code runs on that very compute capability only, plain code on later minor versions too.
GPUS: Final[dict[str, Gpu]] = {
    row.name: row
    for row in (
        Gpu("sm80", "sm_80", 164 * _KIB, 163 * _KIB),
        Gpu("sm86", "sm_86", 100 * _KIB, 99 * _KIB),
        Gpu("sm89", "sm_89", 100 * _KIB, 99 * _KIB),
        Gpu("sm90", "sm_90a", 228 * _KIB, 227 * _KIB),
        Gpu("sm100", "sm_100a", 228 * _KIB, 227 * _KIB),
        Gpu("sm120", "sm_120a", 100 * _KIB, 99 * _KIB),
    )
}


def find_target(name: str) -> Cpu | Gpu:
    """The row of that name, or a ValueError that lists the known ones."""
    row = TARGETS.get(name) or GPUS.get(name)
    if row is None:
        raise ValueError(f"target: got {name!r}, needs one of {', '.join((*TARGETS, *GPUS))}")
    return row
