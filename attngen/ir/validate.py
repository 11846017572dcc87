"""What every variant must obey, whichever pass made it: rules as data, checked between passes under tests.

A broken rule is a mistake of attngen, never of a user: it raises `InvalidIR` with the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from attngen.dtypes import STORAGE
from attngen.ir import typing_rules
from attngen.ir.nodes import (
    Apply,
    Expr,
    Function,
    Index,
    LaneAt,
    LaneSum,
    Loop,
    Reduce,
    ScalarParam,
    TensorParam,
    Type,
    Var,
    Variant,
)
from attngen.ir.printer import print_expr
from attngen.ir.roots import roots
from attngen.ir.types import I32
from attngen.ir.walk import binders, children, index_names, let_spine, nodes

LEVELS: Final = (
    "build", "specialise", "inline", "unroll", "fold", "bounds", "value_scale", "log2", "logit_bound", "scope"
)  # fmt: skip

Problem: TypeAlias = tuple[str, Expr | None, str]  # where, the node if there is one, what is wrong
Rule: TypeAlias = Callable[[Variant, int], Iterator[Problem]]


class InvalidIR(AssertionError):
    """A pass made a variant that breaks a rule; the message names the rule and prints the node."""


def validate(variant: Variant, stage: str = "build") -> None:
    """Raise `InvalidIR` unless the variant obeys every rule; `stage` is the pass that ran last."""
    if stage not in LEVELS:
        raise ValueError(f"stage must be one of {', '.join(LEVELS)}, not {stage!r}")
    for rule in RULES:
        for where, node, message in rule(variant, LEVELS.index(stage)):
            lines = [f"{variant.name} after {stage} breaks `{rule.__name__}`: in {where}, {message}"]
            if node is not None:
                lines += [f"  {print_expr(node)}", f"  from {node.span.file}:{node.span.line}:{node.span.column}"]
            raise InvalidIR("\n".join(lines))


# Rules ------------------------------------------------------------------------------------------


def parameters_are_declared_once(variant: Variant, level: int) -> Iterator[Problem]:
    """Scalars and tensors have distinct names, known types and ranges that hold something."""
    params: tuple[ScalarParam | TensorParam, ...] = (*variant.scalars, *variant.tensors)
    seen: set[str] = set()
    for param in params:
        if param.name in seen:
            yield "the parameters", None, f"`{param.name}` is declared twice"
        seen.add(param.name)
        if param.range is not None:
            low, high = param.range
            if not isinstance(low, str) and not isinstance(high, str) and low >= high:
                yield "the parameters", None, f"the range of `{param.name}` is empty"
    for tensor in variant.tensors:
        if tensor.dtype not in STORAGE:
            yield "the parameters", None, f"`{tensor.name}` has no storage type `{tensor.dtype}`"
        if any(isinstance(dim, int) and dim < 1 for dim in tensor.dims):
            yield "the parameters", None, f"`{tensor.name}` has a dimension below 1"


def nodes_have_their_types(variant: Variant, level: int) -> Iterator[Problem]:
    """Operands agree in type, and each node has the type that its operation gives."""
    declared = typing_rules.Declarations(variant)
    for root in roots(variant):
        for node in nodes(root.expr):
            message = typing_rules.problem(node, declared)
            if message is not None:
                yield root.title, node, message


def names_are_unique(variant: Variant, level: int) -> Iterator[Problem]:
    """No two binders of the variant give one name; key bounds are a world of their own."""
    owners: dict[str, Expr | Function] = {}
    for function in variant.functions:
        for param in function.params:
            if param.name in owners:
                yield f"function `{function.name}`", param, "another binder has the name of this parameter"
            owners[param.name] = function
    for root in roots(variant):
        if root.is_bounds:
            continue
        for node in nodes(root.expr):
            for name in binders(node):
                if owners.setdefault(name, node) is not node:
                    yield root.title, node, f"`{name}` is bound elsewhere too"


def variables_are_bound(variant: Variant, level: int) -> Iterator[Problem]:
    """Every variable is an input, a parameter, a hoisted value that this scope may read, or bound around it."""
    for root in roots(variant):
        yield from ((root.title, node, message) for node, message in _unbound(root.expr, root.variables, set()))


def _unbound(expr: Expr, bound: Mapping[str, Type], seen: set[int]) -> Iterator[tuple[Expr, str]]:
    if id(expr) in seen:
        return
    seen.add(id(expr))
    lets, body = let_spine(expr)
    if lets:
        inside = dict(bound)
        bound = inside
        for let in lets:
            yield from _unbound(let.value, bound, seen)
            inside[let.name] = let.value.type
    match body:
        case Var():
            if body.name not in bound:
                yield body, f"`{body.name}` is not bound"
            elif bound[body.name] != body.type:
                yield body, f"`{body.name}` is bound with another type"
        case Reduce():
            yield from _unbound(body.count, bound, seen)
            yield from _unbound(body.body, {**bound, body.variable: I32}, seen)
        case Loop():
            for outside in (body.count, *(carry.init for carry in body.carried)):
                yield from _unbound(outside, bound, seen)
            carried = {carry.name: carry.init.type for carry in body.carried}
            for carry in body.carried:
                yield from _unbound(carry.next, {**bound, body.variable: I32, **carried}, seen)
        case _:
            for child in children(body):
                yield from _unbound(child, bound, seen)


def calls_have_targets(variant: Variant, level: int) -> Iterator[Problem]:
    """Functions exist before they are called, so calls form no circle."""
    known: set[str] = set()
    for function in variant.functions:
        for node in nodes(function.body):
            if isinstance(node, Apply) and node.function not in known:
                yield f"function `{function.name}`", node, f"`{node.function}` isn't declared before it"
        if function.name in known:
            yield f"function `{function.name}`", None, "another function has its name"
        known.add(function.name)
    for root in roots(variant):
        for node in nodes(root.expr):
            if isinstance(node, Apply) and node.function not in known:
                yield root.title, node, f"there is no function `{node.function}`"


def passes_keep_their_promise(variant: Variant, level: int) -> Iterator[Problem]:
    """No D or Dv after specialise, no call after inline, no loop after unroll, nothing derived before its pass."""
    done = frozenset(LEVELS[: level + 1])
    if "inline" in done and variant.functions:
        yield "the functions", None, "functions are left after inline"
    for root in roots(variant):
        for node in nodes(root.expr):
            if "specialise" in done and isinstance(node, Index) and node.name in ("D", "Dv"):
                yield root.title, node, "a head dimension is left after specialise"
            if "inline" in done and isinstance(node, Apply):
                yield root.title, node, "a call is left after inline"
            if "unroll" in done and isinstance(node, Reduce | Loop):
                yield root.title, node, "a loop is left after unroll"
    for made, by in (
        ("key_bounds", "bounds"),
        ("value_scale", "value_scale"),
        ("scale_log2", "log2"),
        ("bindings", "scope"),
    ):
        if getattr(variant, made) and by not in done:
            yield made, None, f"it is there before {by}"


def indices_are_visible(variant: Variant, level: int) -> Iterator[Problem]:
    """A root reads only the indices that are defined where it runs, directly and through its calls."""
    reads: dict[str, frozenset[str]] = {}
    for function in variant.functions:
        reads[function.name] = _reads(function.body, reads)
    for root in roots(variant):
        if root.visible is None:
            continue
        hidden = _reads(root.expr, reads) - root.visible
        if hidden:
            yield root.title, root.expr, f"{', '.join(sorted(hidden))} can't be seen"


def _reads(expr: Expr, functions: dict[str, frozenset[str]]) -> frozenset[str]:
    found = set(index_names(expr))
    for node in nodes(expr):
        if isinstance(node, Apply):
            inside = functions.get(node.function, frozenset())
            found |= inside - ({"pos", "kv"} if node.pos is not None else set())
    return frozenset(found)


def lanes_stay_in_vector_stages(variant: Variant, level: int) -> Iterator[Problem]:
    """LaneAt, LaneSum and vecs occur only where there are lanes."""
    for root in roots(variant):
        if root.lanes:
            continue
        for node in nodes(root.expr):
            if isinstance(node, LaneAt | LaneSum) or node.type.vec:
                yield root.title, node, "there are no lanes here"


def results_have_their_types(variant: Variant, level: int) -> Iterator[Problem]:
    """A mask gives bool, bounds give integers, everything else f32; scalar roots give scalars."""
    for root in roots(variant):
        if root.gives is not None and (root.expr.type.base not in root.gives):
            yield root.title, root.expr, f"it must give {' or '.join(root.gives)}"


def softmax_rules_hold(variant: Variant, level: int) -> Iterator[Problem]:
    """Without softmax there is no denominator for a sink and no log-2 domain."""
    if not variant.softmax and variant.sink is not None:
        yield "stage `sink`", variant.sink, "softmax is off"
    if not variant.softmax and variant.scale_log2 is not None:
        yield "scale_log2", variant.scale_log2, "softmax is off"
    if not variant.softmax and variant.output is not None and "lse" in index_names(variant.output):
        yield "stage `output`", variant.output, "there is no lse: softmax is off"
    if variant.logit_bound is not None and not variant.logit_bound >= 0:
        yield "logit_bound", None, f"it is {variant.logit_bound}"


RULES: Final[tuple[Rule, ...]] = (
    parameters_are_declared_once,
    nodes_have_their_types,
    names_are_unique,
    variables_are_bound,
    calls_have_targets,
    passes_keep_their_promise,
    indices_are_visible,
    lanes_stay_in_vector_stages,
    results_have_their_types,
    softmax_rules_hold,
)
