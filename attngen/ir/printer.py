"""The IR as compact, readable text: what `attngen show --stage ir` prints and golden files compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from typing_extensions import assert_never

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
from attngen.ir.numbers import round_f32
from attngen.ir.walk import BOUNDS, STAGES, let_spine

_BINDING: Final = {
    op: strength
    for strength, ops in enumerate(
        (("==", "!=", "<", "<=", ">", ">="), ("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "//", "%")), 2
    )
    for op in ops
}
_UNARY, _ATOM, _SELECT, _COMPARISON = 9, 10, 1, 2
_INPUTS: Final = {"query": "x", "key": "x", "value": "v", "logits": "s", "output": "o"}


def print_variant(variant: Variant) -> str:
    """A variant, one line a declaration, stage, Let and binding.

    >>> from attngen.ir.make import binary, i32
    >>> from attngen.ir.nodes import Index, ScalarParam, Scalar
    >>> kv, pos, n = Index("kv", Type("i32")), Index("pos", Type("i32")), Scalar("n", Type("i32"))
    >>> window = binary("<", binary("-", pos, kv), n)
    >>> print(print_variant(Variant("local", None, (ScalarParam("n", "i32", 4096),), (), mask=window)))
    attention local:
        scalar n: i32 = 4096
        mask: pos - kv < n
    """
    lines = [f"attention {variant.name}:", *_declarations(variant)]
    for function in variant.functions:
        params = ", ".join(f"{p.name}: {print_type(p.type)}" for p in function.params)
        lines += _definition(f"def {function.name}({params})", function.body)
    for binding in variant.bindings:
        lines += _definition(f"{binding.scope} {binding.name}", binding.value)
    for stage in STAGES:
        expr: Expr | None = getattr(variant, stage)
        if expr is not None:
            parameter = f"({_INPUTS[stage]})" if stage in _INPUTS else ""
            lines += _definition(f"{stage}{parameter}", expr)
    return "\n".join(lines + _derived(variant))


def _declarations(variant: Variant) -> list[str]:
    lines = []
    for scalar in variant.scalars:
        default = "" if scalar.default is None else f" = {_number(scalar.default)}"
        lines.append(f"    scalar {scalar.name}: {scalar.type}{_range(scalar.range)}{default}")
    for tensor in variant.tensors:
        dims = ", ".join(str(dim) for dim in tensor.dims)
        lines.append(f"    tensor {tensor.name}: {tensor.dtype}[{dims}]{_range(tensor.range)}")
    return lines


def _derived(variant: Variant) -> list[str]:
    lines = [] if variant.softmax else ["    softmax: off"]
    if variant.value_scale is not None:
        lines += _definition("value_scale", variant.value_scale)
    if variant.scale_log2 is not None:
        lines += _definition("scale_log2", variant.scale_log2)
    if variant.logit_bound is not None:
        lines.append(f"    logit_bound: {_number(variant.logit_bound)}")
    if variant.key_bounds is not None:
        for name in BOUNDS:
            lines += _definition(f"keys.{name}", getattr(variant.key_bounds, name))
    return lines


def _definition(head: str, expr: Expr) -> list[str]:
    lets, body = let_spine(expr)
    if not lets:
        return [f"    {head}: {print_expr(body)}"]
    inner = [f"        {let.name} = {print_expr(let.value)}" for let in lets]
    return [f"    {head}:", *inner, f"        {print_expr(body)}"]


def _range(bounds: tuple[int | float | str, int | float | str] | None) -> str:
    if bounds is None:
        return ""
    low, high = (end if isinstance(end, str) else _number(end) for end in bounds)
    return f" in {low}..{high}"


def print_type(type: Type) -> str:
    """The type as source text spells it, `vec<i32>` for a vec of something else."""
    if not type.vec:
        return type.base
    return "vec" if type.base == "f32" else f"vec<{type.base}>"


def print_expr(expr: Expr) -> str:
    """An expression in the language's own notation where it has one.

    >>> from attngen.ir.make import binary, i32
    >>> from attngen.ir.nodes import Index
    >>> pos = Index("pos", Type("i32"))
    >>> print_expr(binary("*", binary("-", pos, i32(1)), binary("//", pos, i32(2))))
    '(pos - 1) * (pos // 2)'
    """
    return _expr(expr, 0)


def _expr(expr: Expr, strength: int) -> str:
    """The text, in parentheses where the context binds stronger than the expression does."""
    text, own = _text(expr)
    return f"({text})" if own < strength else text


def _text(expr: Expr) -> tuple[str, int]:
    match expr:
        case Const():
            text = _number(expr.value)
            return text, _UNARY if text.startswith("-") else _ATOM
        case Index() | Scalar() | Var():
            return expr.name, _ATOM
        case Load():
            return f"{expr.tensor}[{_list(expr.indices)}]", _ATOM
        case Unary():
            return f"{expr.op}{_expr(expr.operand, _UNARY + 1)}", _UNARY
        case Binary():
            own = _BINDING[expr.op]
            lhs = _expr(expr.lhs, own + (own == _COMPARISON))  # a chain of comparisons would mean something else
            return f"{lhs} {expr.op} {_expr(expr.rhs, own + 1)}", own
        case Select():
            then, condition = _expr(expr.then, _SELECT + 1), _expr(expr.condition, _SELECT + 1)
            return f"{then} if {condition} else {_expr(expr.otherwise, _SELECT)}", _SELECT
        case Cast():
            return f"{expr.type.base}({_expr(expr.operand, 0)})", _ATOM
        case Call():
            return f"{expr.function}({_list(expr.args)})", _ATOM
        case LaneSum():
            return f"sum({_expr(expr.operand, 0)})", _ATOM
        case LaneAt():
            index = expr.partner if expr.index is None else _expr(expr.index, 0)
            return f"{_expr(expr.operand, _ATOM)}[{index}]", _ATOM
        case Let():
            lets, body = let_spine(expr)
            inner = "; ".join(f"{let.name} = {_expr(let.value, 0)}" for let in lets)
            return f"{{{inner}; {_expr(body, 0)}}}", _ATOM
        case Apply():
            bound = [f"{name}={_expr(e, 0)}" for name, e in (("pos", expr.pos), ("kv", expr.kv)) if e is not None]
            return f"{expr.function}({', '.join([*(_expr(arg, 0) for arg in expr.args), *bound])})", _ATOM
        case Reduce():
            return f"{expr.op}({_expr(expr.body, 0)} for {expr.variable} in range({_expr(expr.count, 0)}))", _ATOM
        case Loop():
            return _loop(expr), _ATOM
        case _:
            assert_never(expr)


def _loop(expr: Loop) -> str:
    carried = "; ".join(f"{c.name} = {_expr(c.init, 0)} then {_expr(c.next, 0)}" for c in expr.carried)
    return f"{{for {expr.variable} in range({_expr(expr.count, 0)}): {carried}; {expr.result}}}"


def _list(exprs: Sequence[Expr]) -> str:
    return ", ".join(_expr(expr, 0) for expr in exprs)


def _number(value: bool | int | float) -> str:
    """The shortest text that gives the same value (as a 32-bit float where it is one)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and round_f32(value) == value:
        texts = (repr(float(f"{value:.{digits}g}")) for digits in range(1, 10))
        return next(text for text in texts if round_f32(float(text)) == value)
    return repr(value)
