"""Loads, rows of tensors by partial index, and lanes of a vec."""

from __future__ import annotations

from attngen.dsl import ast
from attngen.dtypes import STORAGE
from attngen.errors import Span
from attngen.ir.build import constants, routines
from attngen.ir.build.context import Context
from attngen.ir.build.make import Lane
from attngen.ir.build.scope import Routine, Rows, Value
from attngen.ir.nodes import Binary, Call, Cast, Const, Expr, Index, LaneAt, Load, Select, TensorParam, Type, Unary, Var
from attngen.ir.types import describe, is_integer
from attngen.ir.walk import nodes

# Loads ------------------------------------------------------------------------------------------


def subscript(ctx: Context, node: ast.Subscript) -> Value:
    """`base[indices]`: a load, a row of a tensor, a lane of a vec, or a mask with its mask arguments."""
    if isinstance(node.base, ast.Name):
        entry = ctx.scope.lookup(node.base.id)
        if isinstance(entry, Routine):
            return routines.apply(ctx, entry, node, node.indices, (), ())
        if isinstance(entry, Rows):
            return load(ctx, entry, tuple(ctx.singles(node.indices)), node.span)
    value = ctx.value(node.base)
    indices = tuple(ctx.singles(node.indices))
    if isinstance(value, Rows):
        return load(ctx, value, indices, node.span)
    base = ctx.single(node.base)
    if not base.type.vec:
        ctx.fail("not-a-function", f"a single {describe(base.type)} can't be indexed", node.span,
                 "index tensors, and in vector stages a vec")  # fmt: skip
    if len(indices) != 1:
        ctx.fail("wrong-rank", f"a vec takes one index, not {len(indices)}", node.span)
    return _lane(ctx, base, indices[0], node.span)


def load(ctx: Context, rows: Rows, indices: tuple[Expr, ...], span: Span) -> Value:
    """The element of a tensor, or its rows while indices are missing."""
    tensor = rows.tensor
    ctx.at_run_time(f"tensor `{tensor.name}`", span)
    if len(indices) > rows.rank:
        given, rank = len(rows.prefix) + len(indices), len(tensor.dims)
        ctx.fail("wrong-rank", f"`{tensor.name}` takes {rank} ind{'ex' if rank == 1 else 'ices'}, not {given}", span,
                 f"its dimensions are [{', '.join(map(str, tensor.dims))}]")  # fmt: skip
    for index, dim in zip(indices, tensor.dims[len(rows.prefix) :], strict=False):
        _check_index(ctx, tensor, index, dim)
    everything = rows.prefix + indices
    if len(everything) < len(tensor.dims):
        return Rows(tensor, everything)
    type = Type(STORAGE[tensor.dtype].load, vec=any(index.type.vec for index in everything))
    return Load(tensor.name, everything, type, span=span)


def _check_index(ctx: Context, tensor: TensorParam, index: Expr, dim: int | str) -> None:
    if not is_integer(index.type):
        ctx.fail("wrong-type", f"an index must be an integer, not {describe(index.type)}", index.span,
                 "convert with `i32(...)`")  # fmt: skip
    steps = ctx.session.steps.get(index.name, 0) if isinstance(index, Var) else 0
    if isinstance(dim, int) and steps > dim:
        ctx.fail("index-out-of-range", f"this index reaches {steps - 1}, but dimension `{dim}` of `{tensor.name}` ends "
                 f"at {dim - 1}", index.span, f"take {dim} steps, or write `min(..., {dim - 1})`")  # fmt: skip
    value = constants.evaluate(index, ctx.session.functions)
    if value is None:
        return
    if value < 0 or (isinstance(dim, int) and value >= dim):
        ctx.fail("index-out-of-range", f"index {value} is outside dimension `{dim}` of `{tensor.name}`", index.span,
                 "indices count from 0, up to the size less 1")  # fmt: skip


# Lanes ------------------------------------------------------------------------------------------


def _lane(ctx: Context, base: Expr, index: Expr, span: Span) -> Expr:
    lane = ctx.lane(span)
    if not is_integer(index.type) or not all(map(_is_fixed, nodes(index))):
        ctx.fail("lane-index", "a lane is chosen by constants, sizes and `d` alone", index.span,
                 "write `x[0]`, `x[(d + D // 2) % D]` or `x[d ^ 1]`")  # fmt: skip
    value = constants.evaluate(index, ctx.session.functions)
    if value is not None and value < 0:
        ctx.fail("index-out-of-range", f"lane {value} doesn't exist", index.span, "lanes count from 0")
    if _is_half(index, lane):
        return LaneAt(base, "half", None, base.type, span=span)
    if _is_pair(index):
        return LaneAt(base, "pair", None, base.type, span=span)
    return LaneAt(base, "index", index, Type(base.type.base, index.type.vec), span=span)


def _is_fixed(node: Expr) -> bool:
    """Whether a part of an index is the same for every row and key."""
    match node:
        case Index(name):
            return name in ("d", "D", "Dv")
        case Const() | Binary() | Unary() | Select() | Call() | Cast():
            return True
        case _:
            return False


def _is_half(index: Expr, lane: Lane) -> bool:
    """Whether an index is `(d + n // 2) % n`."""
    match index:
        case Binary("%", Binary("+", a, b), Index(size)) if size == lane:
            return any(_is_d(x) and _is_half_size(y, lane) for x, y in ((a, b), (b, a)))
        case _:
            return False


def _is_half_size(expr: Expr, lane: Lane) -> bool:
    match expr:
        case Binary("//", Index(size), Const(2)):
            return size == lane
        case _:
            return False


def _is_pair(index: Expr) -> bool:
    """Whether an index is `d ^ 1`."""
    match index:
        case Binary("^", a, b):
            return any(_is_d(x) and isinstance(y, Const) and y.value == 1 for x, y in ((a, b), (b, a)))
        case _:
            return False


def _is_d(expr: Expr) -> bool:
    return isinstance(expr, Index) and expr.name == "d"
