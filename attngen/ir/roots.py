"""Where the expressions of a variant stand: which indices and variables each may read, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from attngen.ir.nodes import Base, Expr, Scope, Type, Variant
from attngen.ir.types import F32, VEC
from attngen.ir.walk import BOUNDS, DERIVED, STAGES

SIZES: Final = frozenset({"group", "D", "Dv", "Hq", "Hk"})
ROW: Final = frozenset({"b", "h", "hk", "q", "pos", "row", "q_len", "kv_len"}) | SIZES
COLUMN: Final = frozenset({"hk", "kv", "slot"}) | SIZES
VISIBLE: Final[dict[str, frozenset[str]]] = {
    "query": ROW | {"d"},
    "key": COLUMN | {"d"},
    "value": COLUMN | {"d"},
    "scale": SIZES | {"h", "hk"},
    "logits": ROW | COLUMN,
    "mask": ROW | COLUMN,
    "sink": ROW,
    "output": ROW | {"d", "lse"},
    "scale_log2": SIZES,
    "value_scale": COLUMN,
}
INPUTS: Final[dict[str, dict[str, Type]]] = {
    "query": {"x": VEC},
    "key": {"x": VEC},
    "value": {"v": VEC},
    "logits": {"s": F32},
    "output": {"o": VEC},
}
# Hoisted values that a root may read.
READS: Final[dict[str, tuple[Scope, ...]]] = {
    "query": ("launch", "lane", "row"),
    "key": ("launch", "lane", "column"),
    "value": ("launch", "lane", "column"),
    "scale": ("launch",),
    "logits": ("launch", "row", "column"),
    "mask": ("launch", "row", "column"),
    "sink": ("launch", "row"),
    "output": ("launch", "lane", "row"),
    "scale_log2": ("launch",),
    "value_scale": ("launch", "column"),
}
SCOPES: Final[dict[Scope, tuple[frozenset[str], tuple[Scope, ...]]]] = {
    "launch": (SIZES, ("launch",)),
    "lane": (SIZES | {"d"}, ("launch", "lane")),
    "row": (ROW, ("launch", "row")),
    "column": (COLUMN, ("launch", "column")),
}
_VECTOR_STAGES: Final = ("query", "key", "value", "output")
_BOUND_READS: Final = frozenset({"pos_lo", "pos_hi", "q_len", "kv_len"}) | SIZES
_SCALARS: Final[tuple[Base, ...]] = ("bool", "i32", "i64", "f32")


@dataclass(frozen=True, slots=True)
class Root:
    """One root expression; `visible` is None in a function, whose callers answer for what it reads."""

    title: str
    expr: Expr
    visible: frozenset[str] | None
    variables: Mapping[str, Type]
    lanes: bool
    gives: tuple[Base, ...] | None
    is_bounds: bool = False


def roots(variant: Variant) -> Iterator[Root]:
    """Every root expression of the variant."""
    for function in variant.functions:
        params = {param.name: param.type for param in function.params}
        yield Root(f"function `{function.name}`", function.body, None, params, True, None)
    hoisted: dict[str, tuple[Scope, Type]] = {}

    def visible_values(scopes: tuple[Scope, ...]) -> dict[str, Type]:
        return {name: type for name, (scope, type) in hoisted.items() if scope in scopes}

    for binding in variant.bindings:
        visible, reads = SCOPES[binding.scope]
        lanes = binding.scope == "lane"
        gives: tuple[Base, ...] = ("f32",) if lanes else _SCALARS
        title = f"binding `{binding.name}`"
        yield Root(title, binding.value, visible, visible_values(reads), lanes, gives)
        hoisted[binding.name] = (binding.scope, binding.value.type)
    for name in (*STAGES, *DERIVED):
        expr: Expr | None = getattr(variant, name)
        if expr is not None:
            variables = {**visible_values(READS[name]), **INPUTS.get(name, {})}
            result: Base = "bool" if name == "mask" else "f32"
            title = f"stage `{name}`" if name in STAGES else name
            yield Root(title, expr, VISIBLE[name], variables, name in _VECTOR_STAGES, (result,))
    if variant.key_bounds is not None:
        for name in BOUNDS:
            expr = getattr(variant.key_bounds, name)
            assert expr is not None
            yield Root(f"key bound `{name}`", expr, _BOUND_READS, {}, False, ("i32", "i64"), is_bounds=True)
