"""Key bounds as data: expressions of positions and plan scalars become the postfix programs that the planner runs."""

from __future__ import annotations

from typing import Final, TypeAlias

from attngen.ir.nodes import Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Unary, Variant
from attngen.ir.passes import plan_scalars
from attngen.ir.walk import bounds_of, inline_lets

Program: TypeAlias = tuple[tuple[int, int], ...]

# The operations of include/attngen/bounds.hpp (a test compares them).
OPS: Final[dict[str, int]] = {
    "const": 0, "arg": 1, "+": 2, "-": 3, "*": 4, "//": 5, "%": 6, "min": 7, "max": 8, "negate": 9, "abs": 10,
    "<": 11, "<=": 12, "==": 13, "&": 14, "|": 15, "not": 16, "select": 17,
}  # fmt: skip
ARGUMENTS: Final = ("pos_lo", "pos_hi", "q_len", "kv_len")
_COMPLEMENT: Final = {"!=": "==", ">": "<=", ">=": "<"}


def bound_programs(variant: Variant) -> tuple[Program, ...]:
    """The programs of first, full_from, full_to and last; empty where the variant has no key bounds."""
    if variant.key_bounds is None:
        return ()
    scalars = plan_scalars(variant)
    return tuple(tuple(_postfix(inline_lets(end), scalars)) for end in bounds_of(variant.key_bounds))


def _postfix(expr: Expr, scalars: tuple[str, ...]) -> list[tuple[int, int]]:
    def of(*operands: Expr) -> list[tuple[int, int]]:
        return [step for operand in operands for step in _postfix(operand, scalars)]

    match expr:
        case Const():
            return [(OPS["const"], int(expr.value))]
        case Index() if expr.name in ARGUMENTS:
            return [(OPS["arg"], ARGUMENTS.index(expr.name))]
        case Scalar():
            return [(OPS["arg"], len(ARGUMENTS) + scalars.index(expr.name))]
        case Cast() if expr.type.base in ("i32", "i64") and expr.operand.type.base != "f32":
            return of(expr.operand)  # the planner computes in 64 bits and gives up where a value leaves 32
        case Unary() if expr.type.base == "bool":
            return [*of(expr.operand), (OPS["not"], 0)]
        case Unary() if expr.op == "-":
            return [*of(expr.operand), (OPS["negate"], 0)]
        case Binary() if expr.op in _COMPLEMENT:
            return [*of(expr.lhs, expr.rhs), (OPS[_COMPLEMENT[expr.op]], 0), (OPS["not"], 0)]
        case Binary() if expr.op in OPS and expr.lhs.type.base != "f32":
            return [*of(expr.lhs, expr.rhs), (OPS[expr.op], 0)]
        case Select():
            return [*of(expr.condition, expr.then, expr.otherwise), (OPS["select"], 0)]
        case Call(function="clamp"):
            value, low, high = expr.args
            return [*of(value, low), (OPS["max"], 0), *of(high), (OPS["min"], 0)]
        case Call() if expr.function in ("min", "max", "abs"):
            return [*of(*expr.args), (OPS[expr.function], 0)]
        case _:
            raise ValueError(f"key bounds: the planner has no operation for {expr!r}")
