"""One table of storage types: how wide, what a load gives, and what C++ and torch call them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Base: TypeAlias = Literal["bool", "i32", "i64", "f32"]


@dataclass(frozen=True, slots=True)
class Storage:
    """`load` is the language type that an element becomes; `cxx` names a type of include/attngen/storage.hpp."""

    name: str
    bytes: int
    load: Base
    cxx: str
    torch: str


STORAGE: Final[dict[str, Storage]] = {
    row.name: row
    for row in (
        Storage("f32", 4, "f32", "float", "float32"),
        Storage("f16", 2, "f32", "attngen::f16", "float16"),
        Storage("bf16", 2, "f32", "attngen::bf16", "bfloat16"),
        Storage("e4m3", 1, "f32", "attngen::e4m3", "float8_e4m3fn"),
        Storage("e5m2", 1, "f32", "attngen::e5m2", "float8_e5m2"),
        Storage("i64", 8, "i64", "std::int64_t", "int64"),
        Storage("i32", 4, "i32", "std::int32_t", "int32"),
        Storage("i16", 2, "i32", "std::int16_t", "int16"),
        Storage("i8", 1, "i32", "std::int8_t", "int8"),
        Storage("u8", 1, "i32", "std::uint8_t", "uint8"),
        Storage("bool", 1, "bool", "bool", "bool"),
    )
}

OPERANDS: Final = ("f32", "bf16", "f16")  # types of q, k', v' and P
POOLS: Final = ("f32", "bf16", "f16", "e4m3", "e5m2")  # types of a K/V pool
GPU_OPERANDS: Final = ("bf16", "f16")  # what GPU kernels multiply
NARROW_POOLS: Final = ("e4m3", "e5m2")  # pools that they convert
