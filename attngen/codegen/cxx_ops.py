"""How the operations of the IR are spelt in C++: tables, so that a missing row is found by a test and not by nvcc."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from attngen.ir.nodes import Base

# Precedence of C++ operators, where more binds tighter.
ATOM: Final = 100
UNARY: Final = 90
MULTIPLY: Final = 80
ADD: Final = 70
RELATION: Final = 60
EQUALITY: Final = 55
BIT_AND: Final = 50
BIT_XOR: Final = 45
BIT_OR: Final = 40


@dataclass(frozen=True, slots=True)
class Infix:
    """A C++ operator; `wrap` is the function to call instead where a signed result might overflow."""

    symbol: str
    precedence: int
    wrap: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A C++ function."""

    name: str


Spelling = Infix | Function

_COMPARE: Final = {
    "==": Infix("==", EQUALITY),
    "!=": Infix("!=", EQUALITY),
    "<": Infix("<", RELATION),
    "<=": Infix("<=", RELATION),
    ">": Infix(">", RELATION),
    ">=": Infix(">=", RELATION),
}
_BITS: Final = {"&": Infix("&", BIT_AND), "^": Infix("^", BIT_XOR), "|": Infix("|", BIT_OR)}
_INTEGER: Final[dict[str, Spelling]] = {
    **_COMPARE,
    **_BITS,
    "+": Infix("+", ADD, wrap="math::wrap_add"),
    "-": Infix("-", ADD, wrap="math::wrap_sub"),
    "*": Infix("*", MULTIPLY, wrap="math::wrap_mul"),
    "//": Function("math::floor_div"),
    "%": Function("math::floor_mod"),
    "<<": Function("math::shift_left"),
    ">>": Function("math::shift_right"),
}
_FLOAT: Final[dict[str, Spelling]] = {
    **_COMPARE,
    "+": Infix("+", ADD),
    "-": Infix("-", ADD),
    "*": Infix("*", MULTIPLY),
    "/": Infix("/", MULTIPLY),
    "//": Function("math::floor_quotient"),
    "%": Function("math::floor_remainder"),
}
BINARY: Final[dict[Base, dict[str, Spelling]]] = {
    "bool": {**_BITS, "==": _COMPARE["=="], "!=": _COMPARE["!="]},
    "i32": _INTEGER,
    "i64": _INTEGER,
    "f32": _FLOAT,
}
UNARY_OPS: Final[dict[Base, dict[str, Infix]]] = {
    "bool": {"~": Infix("!", UNARY)},
    "i32": {"-": Infix("-", UNARY, wrap="math::wrap_neg"), "~": Infix("~", UNARY)},
    "i64": {"-": Infix("-", UNARY, wrap="math::wrap_neg"), "~": Infix("~", UNARY)},
    "f32": {"-": Infix("-", UNARY)},
}
FUNCTIONS: Final[dict[str, str]] = {
    name: f"math::{name}"
    for name in (
        "min", "max", "abs", "clamp", "sign", "floor", "ceil", "round", "exp", "exp2", "log", "log2", "log1p", "sqrt",
        "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "silu", "gelu", "relu", "softplus", "pow",
    )
}  # fmt: skip
CASTS: Final[dict[Base, str]] = {"i32": "math::to_i32", "i64": "math::to_i64", "f32": "math::to_f32"}

# A value of each base type: the same in all lanes, or one a lane for a hook's number type F.
UNIFORM_TYPES: Final[dict[Base, str]] = {"bool": "bool", "i32": "std::int32_t", "i64": "std::int64_t", "f32": "float"}
VARYING_TYPES: Final[dict[Base, str]] = {"bool": "simd::Mask<F>", "i32": "I", "i64": "simd::Long<F>", "f32": "F"}

KEYWORDS: Final = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char",
    "char8_t", "char16_t", "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr", "constinit",
    "const_cast", "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete", "do", "double",
    "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or",
    "or_eq", "private", "protected", "public", "register", "reinterpret_cast", "requires", "return", "short",
    "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
    "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual",
    "void", "volatile", "wchar_t", "while", "xor", "xor_eq",
})  # fmt: skip


def literal(value: bool | int | float, base: Base) -> tuple[str, int]:
    """The C++ text of a constant, exact, and its precedence.

    >>> literal(0.1, "f32"), literal(-(2**31), "i32"), literal(True, "bool")
    (('0.1f', 100), ('-2147483647 - 1', 70), ('true', 100))
    """
    if base == "bool":
        return ("true" if value else "false"), ATOM
    if base == "f32":
        return _float_literal(float(value))
    suffix, least = ("L", -(2**63)) if base == "i64" else ("", -(2**31))
    if value == least:
        return f"-{-least - 1}{suffix} - 1", ADD
    return f"{int(value)}{suffix}", ATOM if value >= 0 else UNARY


def _float_literal(value: float) -> tuple[str, int]:
    if value != value:
        return "math::kNaN", ATOM
    if value in (float("inf"), float("-inf")):
        return ("math::kInfinity", ATOM) if value > 0 else ("-math::kInfinity", UNARY)
    wanted = struct.pack("f", value)
    exact = struct.unpack("f", wanted)[0]
    text = next(t for t in (f"{exact:.{digits}g}" for digits in range(1, 10)) if struct.pack("f", float(t)) == wanted)
    if "." not in text and "e" not in text:
        text += ".0"
    return f"{text}f", UNARY if text.startswith("-") else ATOM
