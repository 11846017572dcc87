"""The types of the language: their names, how they are called in messages, and how they promote."""

from __future__ import annotations

from typing import Final

from attngen.ir.nodes import Base, Type

BOOL: Final = Type("bool")
I32: Final = Type("i32")
I64: Final = Type("i64")
F32: Final = Type("f32")
VEC: Final = Type("f32", vec=True)

BASES: Final[dict[str, Base]] = {"bool": "bool", "i32": "i32", "i64": "i64", "f32": "f32"}
LIMITS: Final = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}

_RANK: Final[dict[Base, int]] = {"i32": 0, "i64": 1, "f32": 2}


def describe(type: Type) -> str:
    """The type as messages name it: `f32`, `vec`, `vec of i32`.

    >>> describe(Type("f32", vec=True)), describe(Type("i32", vec=True))
    ('vec', 'vec of i32')
    """
    if not type.vec:
        return type.base
    return "vec" if type.base == "f32" else f"vec of {type.base}"


def is_number(type: Type) -> bool:
    """Whether arithmetic is defined on the type (it isn't on bool)."""
    return type.base != "bool"


def is_integer(type: Type) -> bool:
    """Whether the base type is i32 or i64."""
    return type.base in ("i32", "i64")


def with_base(type: Type, base: Base) -> Type:
    """The same shape over another base type."""
    return Type(base, type.vec)


def promote(*types: Type) -> Type | None:
    """The type that operands of these types are computed in, or None where numbers and bools mix.

    >>> promote(Type("i32"), Type("f32", vec=True))
    Type(base='f32', vec=True)
    """
    vec = any(type.vec for type in types)
    bases = {type.base for type in types}
    if "bool" in bases:
        return Type("bool", vec) if len(bases) == 1 else None
    return Type(max(bases, key=_RANK.__getitem__), vec)


def fits(value: int, base: Base) -> bool:
    """Whether an integer is representable in an integer type."""
    low, high = LIMITS[base]
    return low <= value <= high


def wrap(value: int, base: Base) -> int:
    """The integer modulo the width of an integer type."""
    low, high = LIMITS[base]
    return (value - low) % (high - low + 1) + low
