"""How passes travel over expressions and variants.

Chains of `Let` can be thousands long after unrolling, so nothing here recurses along a chain's bodies; nesting of other
nodes is as deep as a person writes it.  Shared sub-expressions are visited once where that doesn't show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from typing_extensions import assert_never

from attngen.ir.nodes import (
    Apply,
    Binary,
    Binding,
    Call,
    Carry,
    Cast,
    Const,
    Expr,
    Function,
    Index,
    KeyBounds,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Loop,
    Reduce,
    Scalar,
    Select,
    Unary,
    Var,
    Variant,
)

STAGES: Final = ("query", "key", "value", "scale", "logits", "mask", "sink", "output")
DERIVED: Final = ("scale_log2", "value_scale")
BOUNDS: Final = ("first", "full_from", "full_to", "last")

Rewrite = Callable[[Expr], Expr]
T = TypeVar("T")


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, in evaluation order."""
    match expr:
        case Const() | Index() | Scalar() | Var():
            return ()
        case Load():
            return expr.indices
        case Unary() | Cast() | LaneSum():
            return (expr.operand,)
        case Binary():
            return (expr.lhs, expr.rhs)
        case Select():
            return (expr.condition, expr.then, expr.otherwise)
        case Call():
            return expr.args
        case LaneAt():
            return (expr.operand,) if expr.index is None else (expr.operand, expr.index)
        case Let():
            return (expr.value, expr.body)
        case Apply():
            return expr.args + tuple(e for e in (expr.pos, expr.kv) if e is not None)
        case Reduce():
            return (expr.count, expr.body)
        case Loop():
            return (expr.count, *(c.init for c in expr.carried), *(c.next for c in expr.carried))
        case _:
            assert_never(expr)


def with_children(expr: Expr, new: Sequence[Expr]) -> Expr:
    """The node over other operands; the very same node where the operands are the same objects."""
    if all(a is b for a, b in zip(children(expr), new, strict=True)):
        return expr
    match expr:
        case Const() | Index() | Scalar() | Var():
            return expr
        case Load():
            return replace(expr, indices=tuple(new))
        case Unary() | Cast() | LaneSum():
            return replace(expr, operand=new[0])
        case Binary():
            return replace(expr, lhs=new[0], rhs=new[1])
        case Select():
            return replace(expr, condition=new[0], then=new[1], otherwise=new[2])
        case Call():
            return replace(expr, args=tuple(new))
        case LaneAt():
            return replace(expr, operand=new[0], index=None if expr.index is None else new[1])
        case Let():
            return replace(expr, value=new[0], body=new[1])
        case Apply():
            rest = list(new[len(expr.args) :])
            pos = None if expr.pos is None else rest.pop(0)
            kv = None if expr.kv is None else rest.pop(0)
            return replace(expr, args=tuple(new[: len(expr.args)]), pos=pos, kv=kv)
        case Reduce():
            return replace(expr, count=new[0], body=new[1])
        case Loop():
            n = len(expr.carried)
            pairs = zip(expr.carried, new[1 : n + 1], new[n + 1 :], strict=True)
            return replace(expr, count=new[0], carried=tuple(Carry(c.name, init, nxt) for c, init, nxt in pairs))
        case _:
            assert_never(expr)


def let_spine(expr: Expr) -> tuple[list[Let], Expr]:
    """The chain of Lets at the root, outermost first, and the body under them."""
    lets: list[Let] = []
    while isinstance(expr, Let):
        lets.append(expr)
        expr = expr.body
    return lets, expr


def map_expr(expr: Expr, rewrite: Rewrite) -> Expr:
    """Rebuild bottom-up: `rewrite` sees every node after its operands; unchanged trees stay the same objects."""
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        known = memo.get(id(node))
        if known is not None:
            return known
        lets, body = let_spine(node)
        values = [visit(let.value) for let in lets]
        result = rewrite(with_children(body, [visit(child) for child in children(body)]))
        for let, value in zip(reversed(lets), reversed(values), strict=True):
            result = rewrite(with_children(let, (value, result)))
        memo[id(node)] = result
        return result

    return visit(expr)


def fold_expr(expr: Expr, combine: Callable[[Expr, Sequence[T]], T]) -> T:
    """Bottom-up value of a tree: `combine` gets each distinct node with the values of its operands."""
    memo: dict[int, T] = {}

    def visit(node: Expr) -> T:
        if id(node) in memo:
            return memo[id(node)]
        lets, body = let_spine(node)
        values = [visit(let.value) for let in lets]
        result = combine(body, [visit(child) for child in children(body)])
        for let, value in zip(reversed(lets), reversed(values), strict=True):
            result = combine(let, (value, result))
        memo[id(node)] = result
        return result

    return visit(expr)


def nodes(expr: Expr) -> Iterator[Expr]:
    """Every distinct node object, parents before operands."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(reversed(children(node)))


def size(expr: Expr) -> int:
    """How many distinct node objects an expression has."""
    return sum(1 for _ in nodes(expr))


def binders(expr: Expr) -> tuple[str, ...]:
    """The names that this node itself binds: of a Let, of a loop variable, of carried values."""
    match expr:
        case Let():
            return (expr.name,)
        case Reduce():
            return (expr.variable,)
        case Loop():
            return (expr.variable, *(c.name for c in expr.carried))
        case _:
            return ()


def free_vars(expr: Expr) -> frozenset[str]:
    """The variables that an expression reads and doesn't bind; names are unique, so this is a plain difference."""
    read = {node.name for node in nodes(expr) if isinstance(node, Var)}
    bound = {name for node in nodes(expr) for name in binders(node)}
    return frozenset(read - bound)


def index_names(expr: Expr) -> frozenset[str]:
    """The indices that an expression reads."""
    return frozenset(node.name for node in nodes(expr) if isinstance(node, Index))


def scalar_names(expr: Expr) -> frozenset[str]:
    """The scalar parameters that an expression reads."""
    return frozenset(node.name for node in nodes(expr) if isinstance(node, Scalar))


def substitute(
    expr: Expr, variables: Mapping[str, Expr] | None = None, indices: Mapping[str, Expr] | None = None
) -> Expr:
    """Replace variables and indices by expressions; binders are unique in a variant, so nothing is captured."""
    variables, indices = variables or {}, indices or {}

    def swap(node: Expr) -> Expr:
        match node:
            case Var():
                return variables.get(node.name, node)
            case Index():
                return indices.get(node.name, node)
            case _:
                return node

    return map_expr(expr, swap)


def inline_lets(expr: Expr) -> Expr:
    """The same expression without Lets; repeated values become shared objects."""
    known: dict[str, Expr] = {}

    def visit(node: Expr) -> Expr:
        if isinstance(node, Let):
            return node.body
        return node

    lets = [node for node in nodes(expr) if isinstance(node, Let)]
    if not lets:
        return expr
    pending = {let.name: let.value for let in lets}

    def resolve(node: Expr) -> Expr:
        if isinstance(node, Var) and node.name in pending:
            if node.name not in known:
                known[node.name] = map_expr(map_expr(pending[node.name], visit), resolve)
            return known[node.name]
        return node

    return map_expr(map_expr(expr, visit), resolve)


class Names:
    """Gives out names that nothing in a variant uses yet."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    @staticmethod
    def of(variant: Variant) -> Names:
        """A supply for this variant."""
        taken = {scalar.name for scalar in variant.scalars} | {tensor.name for tensor in variant.tensors}
        taken |= {binding.name for binding in variant.bindings}
        for function in variant.functions:
            taken |= {function.name, *(param.name for param in function.params)}
        for expr in expressions(variant):
            for node in nodes(expr):
                taken.update(binders(node))
                if isinstance(node, Var | Index):
                    taken.add(node.name)
        return Names(frozenset(taken))

    def fresh(self, wish: str) -> str:
        """The wished name, or that with the first free number after it."""
        name, count = wish, self._next.get(wish, 0)
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._next[wish] = count
        self._taken.add(name)
        return name


def copy_expr(
    expr: Expr,
    names: Names,
    variables: Mapping[str, Expr] | None = None,
    indices: Mapping[str, Expr] | None = None,
) -> Expr:
    """Substitute into a copy whose own binders have fresh names, so that both may stand in one variant."""
    renamed: dict[str, str] = {}
    types = {node.name: node.type for node in nodes(expr) if isinstance(node, Var)}
    for node in nodes(expr):
        renamed.update((name, names.fresh(_stem(name))) for name in binders(node) if name not in renamed)
    mapping: dict[str, Expr] = {old: Var(new, types[old]) for old, new in renamed.items() if old in types}
    mapping.update(variables or {})

    def rename(node: Expr) -> Expr:
        match node:
            case Let():
                return replace(node, name=renamed[node.name])
            case Reduce():
                return replace(node, variable=renamed[node.variable])
            case Loop():
                carried = tuple(Carry(renamed[c.name], c.init, c.next) for c in node.carried)
                return replace(node, variable=renamed[node.variable], carried=carried, result=renamed[node.result])
            case Var():
                return mapping.get(node.name, node)
            case Index():
                return (indices or {}).get(node.name, node)
            case _:
                return node

    return map_expr(expr, rename)


def _stem(name: str) -> str:
    head, _, tail = name.rpartition("_")
    return head if head and tail.isdigit() else name


def stages(variant: Variant) -> Iterator[tuple[str, Expr]]:
    """The stages that a variant has, by name, in evaluation order."""
    for name in STAGES:
        expr: Expr | None = getattr(variant, name)
        if expr is not None:
            yield name, expr


def expressions(variant: Variant) -> Iterator[Expr]:
    """Every root expression: function bodies, stages, derived values, bindings and key bounds."""
    yield from (function.body for function in variant.functions)
    for name in (*STAGES, *DERIVED):
        expr: Expr | None = getattr(variant, name)
        if expr is not None:
            yield expr
    yield from (binding.value for binding in variant.bindings)
    if variant.key_bounds is not None:
        yield from (getattr(variant.key_bounds, name) for name in BOUNDS)


def map_variant(variant: Variant, rewrite: Rewrite) -> Variant:
    """Apply `rewrite` to every root expression except the key bounds; the same object where nothing changes."""
    changed: dict[str, object] = {}
    for name in (*STAGES, *DERIVED):
        expr: Expr | None = getattr(variant, name)
        if expr is not None and (new := rewrite(expr)) is not expr:
            changed[name] = new
    functions = tuple(_with_body(function, rewrite(function.body)) for function in variant.functions)
    bindings = tuple(_with_value(binding, rewrite(binding.value)) for binding in variant.bindings)
    if any(a is not b for a, b in zip(functions, variant.functions, strict=True)):
        changed["functions"] = functions
    if any(a is not b for a, b in zip(bindings, variant.bindings, strict=True)):
        changed["bindings"] = bindings
    return replace(variant, **changed) if changed else variant  # type: ignore[arg-type]


def _with_body(function: Function, body: Expr) -> Function:
    return function if body is function.body else replace(function, body=body)


def _with_value(binding: Binding, value: Expr) -> Binding:
    return binding if value is binding.value else replace(binding, value=value)


def bounds_of(bounds: KeyBounds) -> tuple[Expr, Expr, Expr, Expr]:
    """The four ends, in the order of the manifest."""
    return (bounds.first, bounds.full_from, bounds.full_to, bounds.last)
