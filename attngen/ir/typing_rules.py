"""The type of every node as a function of its operands' types: what `validate` holds passes to."""

from __future__ import annotations

from typing import Final

from typing_extensions import assert_never

from attngen.dtypes import STORAGE
from attngen.ir.builtins import BUILTINS
from attngen.ir.nodes import (
    Apply,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Loop,
    Reduce,
    Scalar,
    Select,
    Type,
    Unary,
    Var,
    Variant,
)
from attngen.ir.types import F32, I32, fits, is_integer, is_number

_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_INDEX_TYPES: Final = {"d": Type("i32", vec=True), "lse": F32}


class Declarations:
    """The parameters and functions of a variant, by name."""

    def __init__(self, variant: Variant) -> None:
        self.scalars = {param.name: param for param in variant.scalars}
        self.tensors = {param.name: param for param in variant.tensors}
        self.functions = {function.name: function for function in variant.functions}


def problem(node: Expr, declared: Declarations) -> str | None:
    """What is wrong with the types of a node, or None."""
    match node:
        case Const():
            return _const(node)
        case Index():
            expected = _INDEX_TYPES.get(node.name, I32)
            return None if node.type == expected else f"index `{node.name}` must have type {expected}"
        case Scalar():
            scalar = declared.scalars.get(node.name)
            return None if scalar and Type(scalar.type) == node.type else "no such scalar of this type"
        case Var():
            return None
        case Load():
            return _load(node, declared)
        case Unary():
            wanted = is_number(node.type) if node.op == "-" else node.type.base != "f32"
            return None if wanted and node.operand.type == node.type else "the operand has the wrong type"
        case Binary():
            return _binary(node)
        case Select():
            return _select(node)
        case Cast():
            return None if node.type.vec == node.operand.type.vec else "a cast keeps lanes"
        case Call():
            return _call(node)
        case LaneSum():
            return None if node.operand.type.base == "f32" and node.type == F32 else "it sums f32 lanes to an f32"
        case LaneAt():
            return _lane_at(node)
        case Let():
            return None if node.type == node.body.type else "a let has the type of its body"
        case Apply():
            return _apply(node, declared)
        case Reduce() | Loop():
            return _loop(node)
        case _:
            assert_never(node)


def _const(node: Const) -> str | None:
    match node.type.base:
        case "bool":
            right = isinstance(node.value, bool)
        case "f32":
            right = isinstance(node.value, float)
        case base:
            right = isinstance(node.value, int) and not isinstance(node.value, bool) and fits(node.value, base)
    return None if right else f"{node.value!r} is no {node.type.base}"


def _load(node: Load, declared: Declarations) -> str | None:
    tensor = declared.tensors.get(node.tensor)
    if tensor is None:
        return f"there is no tensor `{node.tensor}`"
    if len(node.indices) != len(tensor.dims):
        return f"`{node.tensor}` has {len(tensor.dims)} dimensions"
    if not all(is_integer(index.type) for index in node.indices):
        return "an index is no integer"
    return _typed(node, Type(STORAGE[tensor.dtype].load, any(index.type.vec for index in node.indices)))


def _typed(node: Expr, wanted: Type) -> str | None:
    """A node may be a vec although no operand is one; never the reverse."""
    if node.type.base != wanted.base or (wanted.vec and not node.type.vec):
        return f"its type must be {wanted}, not {node.type}"
    return None


def _binary(node: Binary) -> str | None:
    lhs, rhs = node.lhs.type, node.rhs.type
    if lhs.base != rhs.base:
        return f"operands are {lhs.base} and {rhs.base}"
    if node.op in _COMPARISONS:
        allowed = is_number(lhs)
    elif node.op in ("&", "|", "^"):
        allowed = lhs.base != "f32"
    elif node.op in ("<<", ">>"):
        allowed = is_integer(lhs)
    else:
        allowed = lhs.base == "f32" if node.op == "/" else is_number(lhs)
    if not allowed:
        return f"`{node.op}` isn't defined on {lhs.base}"
    return _typed(node, Type("bool" if node.op in _COMPARISONS else lhs.base, lhs.vec or rhs.vec))


def _select(node: Select) -> str | None:
    condition, then, otherwise = node.condition.type, node.then.type, node.otherwise.type
    if condition.base != "bool" or then.base != otherwise.base:
        return "the condition must be bool, and both sides of one type"
    return _typed(node, Type(then.base, condition.vec or then.vec or otherwise.vec))


def _call(node: Call) -> str | None:
    row = BUILTINS.get(node.function)
    if row is None or not row.in_ir:
        return f"`{node.function}` is no function of the IR"
    if len(node.args) != len(row.params):
        return f"`{node.function}` takes {len(row.params)} arguments"
    bases = {arg.type.base for arg in node.args}
    if len(bases) > 1 or "bool" in bases or (row.domain == "f32" and bases != {"f32"}):
        return f"`{node.function}` doesn't take {', '.join(sorted(bases))}"
    return _typed(node, Type(node.args[0].type.base, any(arg.type.vec for arg in node.args)))


def _lane_at(node: LaneAt) -> str | None:
    if (node.index is None) != (node.partner != "index"):
        return "an index goes with partner `index` alone"
    if node.index is not None and not is_integer(node.index.type):
        return "the index is no integer"
    return _typed(node, Type(node.operand.type.base, node.index.type.vec if node.index else node.operand.type.vec))


def _apply(node: Apply, declared: Declarations) -> str | None:
    function = declared.functions.get(node.function)
    if function is None or len(function.params) != len(node.args):
        return f"there is no function `{node.function}` of {len(node.args)} arguments"
    for param, arg in zip(function.params, node.args, strict=True):
        if param.type.base != arg.type.base or (arg.type.vec and not param.type.vec):
            return f"argument `{param.name}` must be {param.type}"
    if (node.pos is None) != (node.kv is None):
        return "pos and kv are re-bound together"
    if any(index is not None and index.type != I32 for index in (node.pos, node.kv)):
        return "positions must be i32"
    return _typed(node, function.body.type)


def _loop(node: Reduce | Loop) -> str | None:
    if node.count.type != I32:
        return "the count must be an i32"
    if isinstance(node, Reduce):
        if (node.op in ("any", "all")) != (node.body.type.base == "bool"):
            return f"`{node.op}` doesn't go over {node.body.type.base}"
        return _typed(node, node.body.type)
    for carry in node.carried:
        if carry.init.type != carry.next.type:
            return f"`{carry.name}` changes its type"
        if carry.name == node.result and carry.init.type != node.type:
            return "it must have the type of its result"
    return None if any(carry.name == node.result for carry in node.carried) else "its result isn't carried"
