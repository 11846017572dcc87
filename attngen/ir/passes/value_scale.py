"""Move factors that depend on no lane out of `value`.

They multiply the fp32 weight of the key instead of Dv values: `v * vs[slot, hk]` becomes a `value_scale` and no value
stage at all.  Looks at a chain of multiplications only, and at factors that don't read the value itself.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.ir.make import binary
from attngen.ir.nodes import Binary, Expr, LaneSum, Let, Var, Variant
from attngen.ir.walk import free_vars, nodes

_INPUT = "v"


def value_scale(variant: Variant) -> Variant:
    """The variant with the scalar factors of `value` in `value_scale`."""
    if variant.value is None or isinstance(variant.value, Let) or variant.value_scale is not None:
        return variant
    scalars: list[Expr] = []
    vectors: list[Expr] = []
    for factor in _factors(variant.value):
        (scalars if _is_scale(factor) else vectors).append(factor)
    if not scalars or not vectors:
        return variant
    rest: Expr | None = _product(vectors)
    if isinstance(rest, Var) and rest.name == _INPUT:
        rest = None
    return replace(variant, value=rest, value_scale=_product(scalars))


def _factors(expr: Expr) -> list[Expr]:
    if isinstance(expr, Binary) and expr.op == "*":
        return _factors(expr.lhs) + _factors(expr.rhs)
    return [expr]


def _is_scale(factor: Expr) -> bool:
    return not factor.type.vec and not free_vars(factor) and not any(isinstance(n, LaneSum) for n in nodes(factor))


def _product(factors: list[Expr]) -> Expr:
    result = factors[0]
    for factor in factors[1:]:
        result = binary("*", result, factor)
    return result
