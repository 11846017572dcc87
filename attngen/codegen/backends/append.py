"""The GPU kernel that appends to a pool: include/attngen/fa2/append.hpp, with the variant's key stage if it has one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from attngen.codegen.functor import FILE, Functor
from attngen.codegen.render import render
from attngen.codegen.source import APPEND_ROWS, KernelSource, Manifest, Tile
from attngen.codegen.target import Gpu
from attngen.dtypes import STORAGE

MAIN: Final = "kernel.cu"
_WARPS: Final = 4


def is_append(known: Manifest) -> bool:
    """Whether the kernel that is asked for appends."""
    return known.config.rows == APPEND_ROWS


def kernel_source(functor: Functor, known: Manifest, gpu: Gpu, flags: tuple[str, ...]) -> KernelSource:
    """The append kernel; a pool of raw keys needs no functor."""
    config = known.config
    transforms = config.keys == "transformed" and known.has_key
    values = {
        "functor": functor.name if transforms else "",
        "head_dim": config.head_dim,
        "head_dim_v": config.head_dim_v,
        "warps": _WARPS,
        "words": max(1, functor.words),
        "pool": STORAGE[config.kv_dtype].cxx,
    }
    files = {FILE: functor.text} if transforms else {}
    return KernelSource(
        files={**files, MAIN: render("append_kernel.cu.jinja", MAIN, values)},
        main=MAIN,
        flags=(*gpu.flags, *flags),
        manifest=replace(known, tiles=(Tile(0, 0, 0.0, 0.0, 0.0),), warps=_WARPS),
    )
