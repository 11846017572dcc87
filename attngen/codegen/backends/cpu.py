"""The CPU kernel: the template of include/attngen/cpu/kernel.hpp, instantiated with a variant's functor."""

from __future__ import annotations

from typing import Final

from attngen.codegen.functor import FILE, Functor
from attngen.codegen.render import render
from attngen.codegen.source import KernelConfig
from attngen.codegen.target import Cpu
from attngen.dtypes import OPERANDS, POOLS, STORAGE

MAIN: Final = "kernel.cpp"


def kernel_files(functor: Functor, config: KernelConfig, target: Cpu) -> dict[str, str]:
    """The generated files by name; MAIN is the one to compile."""
    tiles = target.tiles(_one_of(config.kv_dtype, POOLS, "kv_dtype"))
    if config.rows != 0:
        raise ValueError(f"rows: got {config.rows}, a CPU kernel has tiles of several heights and needs 0")
    values = {
        "functor": functor.name,
        "head_dim": config.head_dim,
        "head_dim_v": config.head_dim_v,
        "width": target.width,
        "tile_rows": max(tile.rows for tile in tiles),
        "tile_keys": max(tile.keys for tile in tiles),
        "amx": str(target.amx).lower(),
        "keys_transformed": str(config.keys == "transformed").lower(),
        "query": STORAGE[_one_of(config.dtype, OPERANDS, "dtype")].cxx,
        "pool": STORAGE[config.kv_dtype].cxx,
    }
    return {FILE: functor.text, MAIN: render("cpu_kernel.cpp.jinja", MAIN, values)}


def _one_of(name: str, known: tuple[str, ...], argument: str) -> str:
    if name not in known:
        raise ValueError(f"{argument}: got {name!r}, needs one of {', '.join(known)}")
    return name
