"""Loads that depend on the lane and the launch alone, such as a norm's weights, become tables of the functor.

A table is filled once a launch and read contiguously, where a strided tensor of any type would be gathered for every
row and key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from attngen.ir.nodes import Binding, Expr, Load, Type, Var, Variant
from attngen.ir.scopes import Dependence, dependence
from attngen.ir.walk import map_expr

_STAGES: Final = ("query", "key", "value", "output")


def tabulate(variant: Variant) -> Variant:
    """The variant with a binding of lane scope for every such load of a float."""
    launch = {binding.name: Dependence.NOTHING for binding in variant.bindings if binding.scope == "launch"}
    first = sum(binding.scope == "lane" for binding in variant.bindings)
    found: dict[Expr, Var] = {}

    def swap(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.type != Type("f32", vec=True):
            return node
        if dependence(node, launch) != Dependence.LANE:
            return node
        if node not in found:
            found[node] = Var(f"lane{first + len(found)}", node.type, span=node.span)
        return found[node]

    stages = {name: getattr(variant, name) for name in _STAGES}
    swapped = {name: map_expr(stage, swap) for name, stage in stages.items() if stage is not None}
    tables = tuple(Binding("lane", table.name, load) for load, table in found.items())
    return replace(variant, bindings=(*variant.bindings, *tables), **swapped)  # type: ignore[arg-type]
