"""Hoist what doesn't need the element loop into bindings.

Every maximal sub-expression that depends on the launch, the row or the column alone becomes a Binding, shared by all
stages that need it; a function of the lane and the launch becomes a table if that is cheaper than computing it.
Names and constants stay where they are.  Doesn't hoist what reads a stage's input, `lse`, or all lanes of a vec, and
doesn't look for common sub-expressions among what remains.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from attngen.ir.algebra import is_leaf
from attngen.ir.nodes import Binary, Binding, Call, Const, Expr, Let, Scope, Var, Variant
from attngen.ir.scopes import OF_SCOPE, Dependence, Placement, join, placement
from attngen.ir.walk import DERIVED, STAGES, Names, children, let_spine, nodes, substitute, with_children

_ORDER: Final[tuple[Scope, ...]] = ("launch", "lane", "row", "column")
_COLUMN_STAGES: Final = ("key", "value", "value_scale")
_TABLE_COST: Final = 5  # what a load from a table costs, in multiplications
_CHEAP: Final = ("abs", "min", "max", "clamp", "sign", "floor", "ceil", "round", "relu")
_NATURAL: Final[dict[str, Placement]] = {"sink": "row", "value_scale": "column", "scale_log2": "launch", "scale": "row"}


def scope(variant: Variant) -> Variant:
    """The variant with its bindings, in dependency order, and stages that read them."""
    hoister = _Hoister(Names.of(variant))
    changed = {}
    for name in (*STAGES, *DERIVED):
        expr: Expr | None = getattr(variant, name)
        if expr is not None:
            changed[name] = hoister.stage(name, expr)
    return replace(variant, **changed, bindings=hoister.bindings())  # type: ignore[arg-type]


class _Hoister:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._found: dict[Scope, list[Binding]] = {scope: [] for scope in _ORDER}
        self._known: dict[tuple[Scope, str], Var] = {}
        self._of_variable: dict[str, Dependence] = {}
        self._count: Counter[str] = Counter()
        self._of_column = False

    def bindings(self) -> tuple[Binding, ...]:
        """All bindings, launch first."""
        return tuple(binding for scope in _ORDER for binding in self._found[scope])

    def stage(self, name: str, expr: Expr) -> Expr:
        """The stage over bindings."""
        self._of_column = name in _COLUMN_STAGES
        lets, body = let_spine(expr)
        kept: list[Let] = []
        replaced: dict[str, Expr] = {}
        for let in lets:
            value, found = self._narrow(substitute(let.value, replaced))
            where = placement(found, of_column=self._of_column)
            if where == "element":
                kept.append(replace(let, value=value))
            else:  # a cheap function of the lane may be repeated, so that a table can hold what is made of it
                replaced[let.name] = self._hoist(value, where) if self._worthwhile(value, where) else value
        body, found = self._narrow(substitute(body, replaced))
        where = placement(found, of_column=self._of_column)
        if where != _NATURAL.get(name, "element") and self._worthwhile(body, where):
            body = self._hoist(body, where)
        for let in reversed(kept):
            body = replace(let, body=body)
        return body

    def _narrow(self, expr: Expr) -> tuple[Expr, Dependence]:
        """The expression with everything narrower than itself hoisted, and what it depends on."""
        return self._visit(expr, {})

    def _visit(self, expr: Expr, memo: dict[int, tuple[Expr, Dependence]]) -> tuple[Expr, Dependence]:
        if id(expr) in memo:
            return memo[id(expr)]
        visited = [self._visit(child, memo) for child in children(expr)]
        found = join(expr, [dependence for _, dependence in visited], self._of_variable)
        own = placement(found, of_column=self._of_column)
        of_column = self._of_column or own == "column"  # a column can't read what is kept for rows
        operands = []
        for operand, dependence in visited:
            where = placement(dependence, of_column=of_column)
            hoisted = where != own and self._worthwhile(operand, where)
            operands.append(self._hoist(operand, where) if hoisted else operand)
        memo[id(expr)] = with_children(expr, operands), found
        return memo[id(expr)]

    def _worthwhile(self, expr: Expr, where: Placement) -> bool:
        """Whether to hoist: not names, and only tables that save more than they cost to load."""
        if where == "element" or is_leaf(expr):
            return False
        if where == "lane":
            return expr.type.base == "f32" and expr.type.vec and _cost(expr) >= _TABLE_COST
        return not expr.type.vec

    def _hoist(self, expr: Expr, where: Placement) -> Var:
        assert where != "element"
        key = (where, repr(expr))  # NOTE: not the node, since 0.0 == -0.0
        if key not in self._known:
            name = self._names.fresh(f"{where}{self._count[where]}")
            self._count[where] += 1
            self._known[key] = Var(name, expr.type, span=expr.span)
            self._of_variable[name] = OF_SCOPE[where]
            self._found[where].append(Binding(where, name, expr))
        return self._known[key]


def _cost(expr: Expr) -> int:
    """Roughly how many multiplications an expression is worth."""
    return sum(_cost_of(node) for node in nodes(expr))


def _cost_of(node: Expr) -> int:
    match node:
        case Call():
            return 1 if node.function in _CHEAP else 10
        case Binary(op="/" | "//" | "%"):
            return 0 if isinstance(node.rhs, Const) and isinstance(node.rhs.value, int) else 5
        case _:
            return 0 if is_leaf(node) else 1
