"""Replace every call of a helper by its body.

Arguments and re-bound positions become Lets, and each copy of a body has its own names.  Doesn't simplify: trivial
Lets are left for `fold`.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.ir.nodes import Apply, Expr, Function, Index, LaneAt, LaneSum, Let, Type, Var, Variant
from attngen.ir.walk import Names, children, copy_expr, map_expr, map_variant, nodes


def inline(variant: Variant) -> Variant:
    """The variant without `Apply` nodes and functions."""
    if not variant.functions:
        return variant
    inliner = _Inliner(Names.of(variant), {function.name: function for function in variant.functions})
    return map_variant(replace(variant, functions=()), inliner.expand)


class _Inliner:
    def __init__(self, names: Names, functions: dict[str, Function]) -> None:
        self._names, self._functions = names, functions
        self._expanded: dict[str, Expr] = {}

    def expand(self, expr: Expr) -> Expr:
        if not any(isinstance(node, Apply) for node in nodes(expr)):
            return expr
        return map_expr(expr, lambda node: self._call(node) if isinstance(node, Apply) else node)

    def _body(self, name: str) -> Expr:
        if name not in self._expanded:
            self._expanded[name] = self.expand(self._functions[name].body)
        return self._expanded[name]

    def _call(self, call: Apply) -> Expr:
        function = self._functions[call.function]
        lets: list[tuple[str, Expr]] = []
        variables: dict[str, Expr] = {}
        for param, arg in zip(function.params, call.args, strict=True):
            variables[param.name] = self._bind(param.name, arg, lets)
        narrowed = any(p.type.vec and not arg.type.vec for p, arg in zip(function.params, call.args, strict=True))
        indices: dict[str, Expr] = {}
        for name, index in (("pos", call.pos), ("kv", call.kv)):
            if index is not None:
                indices[name] = self._bind(f"{name}_in_{function.name}", index, lets)
        result = copy_expr(self._body(call.function), self._names, variables, indices)
        if narrowed:
            result = map_expr(result, _retype)
        for name, value in reversed(lets):
            result = Let(name, value, result, result.type, span=call.span)
        return result

    def _bind(self, wish: str, value: Expr, lets: list[tuple[str, Expr]]) -> Expr:
        """The value itself where it is a name, otherwise a variable that a new Let gives it to."""
        if isinstance(value, Var | Index):
            return value
        name = self._names.fresh(wish)
        lets.append((name, value))
        return Var(name, value.type, span=value.span)


def _retype(node: Expr) -> Expr:
    """A node as a scalar where a vec parameter got a scalar argument and no operand is a vec any more."""
    operands = children(node)
    if not node.type.vec or not operands or isinstance(node, LaneSum | LaneAt):
        return node
    if isinstance(node, Let):
        operands = (node.body,)
    return node if any(operand.type.vec for operand in operands) else replace(node, type=Type(node.type.base))
