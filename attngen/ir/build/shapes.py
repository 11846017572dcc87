"""Declared types: dimensions, element types and ranges of tensors, types of parameters."""

from __future__ import annotations

from typing import Final, TypeAlias

from attngen.dsl import ast
from attngen.dtypes import STORAGE
from attngen.errors import Span
from attngen.ir.build import constants
from attngen.ir.build.context import Context, as_index
from attngen.ir.build.scope import Constant, Routine, RunTimeScalar, nearest
from attngen.ir.nodes import Base, TensorParam, Type
from attngen.ir.types import BASES, LIMITS

DIMENSIONS: Final = frozenset({"B", "Rows", "Slots", "Q", "KV", "Hq", "Hk", "D", "Dv"})
Number: TypeAlias = int | float


def declare(ctx: Context, node: ast.Tensor, dimensions: frozenset[str]) -> TensorParam:
    """The tensor parameter of a declaration; `dimensions` are all names of dimensions in its attention."""
    dtype = storage(ctx, node.type)
    dims = shape(ctx, node.type)
    bounds = None
    if node.range is not None:
        if STORAGE[dtype].load == "bool":
            ctx.fail("wrong-range", "a bool has no range", node.range.span, "remove `in ...`")
        low, high = _end(ctx, node.range.lo, dimensions), _end(ctx, node.range.hi, dimensions)
        check_range(ctx, low, high, STORAGE[dtype].load, node.range.span)
        bounds = (low, high)
    return TensorParam(node.name, dtype, dims, bounds, span=node.span)


def storage(ctx: Context, type: ast.TypeRef) -> str:
    """The storage type that a declaration names."""
    if type.base not in STORAGE:
        help = nearest(type.base, STORAGE) or f"tensors store {', '.join(STORAGE)}"
        ctx.fail("unknown-type", f"tensors have no element type `{type.base}`", type.span, help)
    return type.base


def shape(ctx: Context, type: ast.TypeRef) -> tuple[int | str, ...]:
    """The dimensions that a declaration names."""
    return tuple(_dimension(ctx, dim) for dim in type.dims or ())


def _dimension(ctx: Context, node: ast.Expr) -> int | str:
    if isinstance(node, ast.Name):
        entry = ctx.scope.lookup(node.id)
        if entry is None or isinstance(entry, Routine):
            if node.id not in DIMENSIONS and as_index(node.id) is not None:
                ctx.fail("wrong-dimension", f"`{node.id}` is an index, not the size of a dimension", node.span,
                         "write an integer, a `const`, B Rows Slots Q KV Hq Hk D Dv, or a new name")  # fmt: skip
            return node.id
        if isinstance(entry, RunTimeScalar):
            ctx.fail("not-constant", f"scalar `{node.id}` is known only at run time, but a dimension is needed when "
                     "the kernel is built", node.span, "use a new name, which takes the tensor's size")  # fmt: skip
    value = constants.constant(ctx, node, "a dimension")
    if value.type.base not in ("i32", "i64") or value.value < 1:
        ctx.fail("wrong-dimension", f"a dimension must be a positive integer, not {value.value}", node.span)
    return int(value.value)


def _end(ctx: Context, node: ast.Expr, dimensions: frozenset[str]) -> Number | str:
    if isinstance(node, ast.Name) and node.id in dimensions and not isinstance(ctx.scope.lookup(node.id), Constant):
        return node.id
    return number(ctx, node)


def number(ctx: Context, node: ast.Expr) -> Number:
    """One end of a range."""
    value = constants.constant(ctx, node, "the end of a range")
    if value.type.base == "bool":
        ctx.fail("wrong-range", "the end of a range must be a number, not bool", node.span)
    return value.value


def check_range(ctx: Context, low: Number | str, high: Number | str, base: Base, span: Span) -> None:
    """Complain about a range that holds nothing, or that values of its type can't have."""
    if base in LIMITS:
        lowest, highest = LIMITS[base]
        for end in (low, high):
            if isinstance(end, float) or (isinstance(end, int) and not lowest <= end <= highest + 1):
                ctx.fail("wrong-range", f"{end} can't be the end of a range of {base}", span,
                         f"write whole numbers from {lowest} to {highest + 1}")  # fmt: skip
    if not isinstance(low, str) and not isinstance(high, str) and low >= high:
        ctx.fail("wrong-range", f"the range {low}..{high} is empty", span, "the upper end is outside: write `in 0..n`")


def base_type(ctx: Context, type: ast.TypeRef) -> Type:
    """The type of a value parameter, result or scalar."""
    if type.base == "vec":
        return Type("f32", vec=True)
    if type.base not in BASES:
        help = nearest(type.base, [*BASES, "vec"]) or "values are bool, i32, i64, f32 or vec"
        ctx.fail("unknown-type", f"there is no type `{type.base}`", type.span, help)
    return Type(BASES[type.base])
