"""The GPU kernel of any architecture: the templates of include/attngen/fa2/, instantiated with a variant's functor."""

from __future__ import annotations

from typing import Final

from attngen.codegen import tiles
from attngen.codegen.functor import FILE, Functor
from attngen.codegen.render import render
from attngen.codegen.source import KernelConfig
from attngen.codegen.target import Gpu
from attngen.codegen.tiles import Extras, Shape
from attngen.dtypes import GPU_OPERANDS, NARROW_POOLS, STORAGE

MAIN: Final = "kernel.cu"


def candidates(config: KernelConfig, gpu: Gpu, functor: Functor) -> tuple[Shape, ...]:
    """The shapes to try, best first; raises ValueError, which names the argument, for what no GPU kernel can do."""
    _check(config)
    return tiles.shapes(config, gpu, extras(functor))


def extras(functor: Functor) -> Extras:
    """What the functor wants of shared memory."""
    return Extras(functor.tables, functor.row_values, functor.lane_at, functor.slot)


def kernel_files(functor: Functor, config: KernelConfig, shape: Shape) -> dict[str, str]:
    """The generated files by name; MAIN is the one to compile."""
    values = {
        "functor": functor.name,
        "template": "decode" if config.rows in tiles.DECODE_ROWS else "prefill",
        "words": max(1, functor.words),
        "head_dim": config.head_dim,
        "head_dim_v": config.head_dim_v,
        "rows": config.rows,
        "shape": shape,
        "shared_bytes": tiles.shared_bytes(config, shape, extras(functor)),
        "keys_transformed": str(config.keys == "transformed").lower(),
        "operand": STORAGE[config.dtype].cxx,
        "pool": STORAGE[config.kv_dtype].cxx,
    }
    return {FILE: functor.text, MAIN: render("fa2_kernel.cu.jinja", MAIN, values)}


def _check(config: KernelConfig) -> None:
    if config.dtype not in GPU_OPERANDS:
        raise ValueError(f"dtype: got {config.dtype!r}, a GPU needs one of {', '.join(GPU_OPERANDS)}")
    if config.kv_dtype not in (config.dtype, *NARROW_POOLS):
        known = ", ".join((config.dtype, *NARROW_POOLS))
        raise ValueError(f"kv_dtype: got {config.kv_dtype!r}, a GPU with dtype {config.dtype} needs one of {known}")
    if config.rows not in tiles.ROWS:
        raise ValueError(f"rows: got {config.rows}, a GPU needs one of {', '.join(map(str, tiles.ROWS))}")
    for name, value in (("head_dim", config.head_dim), ("head_dim_v", config.head_dim_v)):
        if value % 8 != 0 or not 8 <= value <= tiles.WIDEST:
            raise ValueError(f"{name}: got {value}, a GPU needs a multiple of 8 from 8 to {tiles.WIDEST}")
