"""Random expressions whose value is the same to the bit wherever it is computed.

They hold every operation that IEEE or the language defines exactly; functions with a tolerance are tested by
test_math.py.  A seed gives the same expressions on every run.
"""

from __future__ import annotations

import random
from typing import Final

from attngen.ir.make import COMPARISONS, binary, call, cast, inverted, negative, select
from attngen.ir.nodes import Base, Const, Expr, Index, Let, Load, Scalar, ScalarParam, TensorParam, Type, Var

SCALARS: Final = (
    ScalarParam("n", "i32"),
    ScalarParam("wide", "i64"),
    ScalarParam("t", "f32"),
    ScalarParam("flag", "bool"),
)
TENSORS: Final = (
    TensorParam("doc", "i32", (3, 7)),
    TensorParam("far", "i64", (5,)),
    TensorParam("small", "i8", (9,)),
    TensorParam("hot", "bool", (6,)),
    TensorParam("bias", "bf16", (2, 5)),
    TensorParam("half", "f16", (8,)),
    TensorParam("level", "f32", ()),
    TensorParam("none", "f32", (0,)),
)
LOADED: Final[dict[Base, tuple[str, ...]]] = {
    "i32": ("doc", "small"), "i64": ("far",), "bool": ("hot",), "f32": ("bias", "half", "level", "none")
}  # fmt: skip
ROW: Final = ("b", "h", "hk", "q", "pos", "row", "q_len", "kv_len")
COLUMN: Final = ("kv", "slot", "hk")
CONSTANTS: Final[dict[Base, tuple[bool | int | float, ...]]] = {
    "bool": (True, False),
    "i32": (0, 1, -1, 2, 3, 7, 16, 31, 33, -5, 1000003, 2**31 - 1, -(2**31)),
    "i64": (0, 1, -1, 3, 64, -7, 2**40, 2**63 - 1, -(2**63)),
    "f32": (0.0, 1.0, -1.0, 0.1, 2.5, -7.25, 3e9, -1e30, 1e-3, float("inf"), float("nan")),
}
_BASES: Final[tuple[Base, ...]] = ("bool", "i32", "i64", "f32")
_OPERATORS: Final[dict[Base, tuple[str, ...]]] = {
    "i32": ("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"),
    "i64": ("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"),
    "f32": ("+", "-", "*", "/", "//", "%"),
}
_CALLS: Final = (("min", 2), ("max", 2), ("abs", 1), ("sign", 1), ("clamp", 3))
_FLOAT_CALLS: Final = (*_CALLS, ("floor", 1), ("ceil", 1), ("round", 1), ("sqrt", 1), ("relu", 1))


class Grower:
    """Grows expressions over some indices; `input` names a stage's f32 variable."""

    def __init__(self, seed: int, indices: tuple[str, ...], input: str | None = None) -> None:
        self.random = random.Random(seed)
        self.indices = indices
        self.input = input
        self.lets = 0

    def grow(self, base: Base, depth: int, scope: tuple[Var, ...] = ()) -> Expr:
        """An expression of at most that depth."""
        if depth == 0 or self.random.random() < 0.08:
            return self.leaf(base, scope)
        kind = self.random.choice(
            ["operator", "operator", "operator", "call", "select", "load", "cast", "unary", "let"]
        )
        match kind:
            case "operator":
                return self.operator(base, depth, scope)
            case "call" if base != "bool":
                function, count = self.random.choice(_FLOAT_CALLS if base == "f32" else _CALLS)
                return call(function, *(self.grow(base, depth - 1, scope) for _ in range(count)))
            case "select":
                condition = self.grow("bool", depth - 1, scope)
                return select(condition, self.grow(base, depth - 1, scope), self.grow(base, depth - 1, scope))
            case "load":
                return self.load(base, depth, scope)
            case "cast":
                source = self.random.choice([b for b in _BASES if b != base])
                return cast(self.grow(source, depth - 1, scope), base)
            case "unary":
                operand = self.grow(base, depth - 1, scope)
                return inverted(operand) if base == "bool" or (base != "f32" and depth % 2) else negative(operand)
            case _:
                kind_of = Type(self.random.choice(_BASES))
                self.lets += 1
                var = Var(f"a{self.lets}", kind_of)
                value = self.grow(kind_of.base, depth - 1, scope)
                return Let(var.name, value, self.grow(base, depth - 1, (*scope, var, var)), Type(base))

    def leaf(self, base: Base, scope: tuple[Var, ...]) -> Expr:
        choices: list[Expr] = [var for var in scope if var.type.base == base]
        choices += [Scalar(s.name, Type(base)) for s in SCALARS if s.type == base]
        choices.append(Const(self.random.choice(CONSTANTS[base]), Type(base)))
        if base == "i32":
            choices += [Index(name, Type("i32")) for name in self.indices]  # type: ignore[arg-type]
        elif base == "f32" and self.input is not None:
            choices += [Var(self.input, Type("f32"))] * 3
        return self.random.choice(choices)

    def operator(self, base: Base, depth: int, scope: tuple[Var, ...]) -> Expr:
        if base != "bool":
            op = self.random.choice(_OPERATORS[base])
            return binary(op, self.grow(base, depth - 1, scope), self.grow(base, depth - 1, scope))  # type: ignore[arg-type]
        operands = self.random.choice(_BASES)
        ops = ("&", "|", "^", "==", "!=") if operands == "bool" else COMPARISONS
        lhs, rhs = (self.grow(operands, depth - 1, scope) for _ in range(2))
        return binary(self.random.choice(ops), lhs, rhs)

    def load(self, base: Base, depth: int, scope: tuple[Var, ...]) -> Expr:
        name = self.random.choice(LOADED[base])
        dims = next(tensor.dims for tensor in TENSORS if tensor.name == name)
        kinds = [self.random.choice(["i32", "i32", "i64"]) for _ in dims]
        return Load(name, tuple(self.grow(kind, depth - 1, scope) for kind in kinds), Type(base))  # type: ignore[arg-type]
