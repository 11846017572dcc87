"""Turn `logits` into a function of the bare dot product, and weights into powers of two.

With softmax on, a weight is exp2(scale_log2 * logits(dot)).  A positive factor of the launch leaves the stage for
scale_log2: all of a plain scale, the c of c * f(s).  Something added to the score is divided by that factor where it is
a number, on what is known earliest, so that a bias costs one fused multiply-add; otherwise it makes scale_log2 1.  With
softmax off, `scale` moves into `logits` and nothing else changes.  Afterwards `scale` is None: it has been used.

Not bit-exact.  Doesn't take factors out of conditionals, nor out of Lets that read the score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from attngen.ir.algebra import simplified
from attngen.ir.intervals import Ranges
from attngen.ir.make import binary, f32, negative
from attngen.ir.nodes import Binary, Const, Expr, Unary, Var, Variant
from attngen.ir.numbers import round_f32
from attngen.ir.passes.fold import fold_expression
from attngen.ir.scopes import Dependence, dependence
from attngen.ir.types import F32
from attngen.ir.walk import free_vars, let_spine, map_expr

_LOG2_E: Final = math.log2(math.e)
_LEAST_DIVISOR: Final = 2.0**-10  # a bias divided by less might become infinite
_ONE: Final = f32(1.0)
_S: Final = Var("s", F32)


def log2(variant: Variant) -> Variant:
    """The variant with `scale` folded into `logits` and `scale_log2`."""
    assert variant.scale is not None, "specialise gives a variant its scale"
    logits = variant.logits if variant.logits is not None else _S
    if not variant.softmax:
        return replace(variant, logits=fold_expression(_of_dot(logits, variant.scale)), scale=None)
    stage, factor = _Splitter(variant, variant.scale).split(logits)
    stage = fold_expression(stage)
    return replace(variant, logits=None if stage == _S else stage, scale_log2=simplified(factor), scale=None)


@dataclass(frozen=True)
class _Form:
    """factor * core + offset; neither factor nor offset reads the score."""

    factor: Expr
    core: Expr
    offset: Expr | None = None


class _Splitter:
    def __init__(self, variant: Variant, scale: Expr) -> None:
        self._ranges, self._scale = Ranges(variant), scale
        self._reading = {"s"}  # names whose values depend on the score

    def split(self, logits: Expr) -> tuple[Expr, Expr]:
        """The stage as a function of the dot product, and scale_log2."""
        lets, body = let_spine(logits)
        for let in lets:
            if self._reads(let.value):
                self._reading.add(let.name)
        form = self._form(body)
        if form.core == _S:
            form = replace(form, factor=_times(form.factor, self._scale))
        else:
            form = replace(form, core=_of_dot(form.core, self._scale))
        stage, factor = self._assemble(form)
        for let in reversed(lets):
            stage = replace(let, value=_of_dot(let.value, self._scale), body=stage)
        return stage, factor

    def _assemble(self, form: _Form) -> tuple[Expr, Expr]:
        if form.offset is not None:
            factor = float(form.factor.value) if isinstance(form.factor, Const) else 0.0
            if factor >= _LEAST_DIVISOR:
                return binary("+", form.core, _scaled(form.offset, 1.0 / factor)), _scaled(form.factor, _LOG2_E)
            slope = _scaled(form.factor, _LOG2_E)
            return binary("+", _times(form.core, slope), _scaled(form.offset, _LOG2_E)), _ONE
        if dependence(form.factor) == Dependence.NOTHING and self._ranges.is_positive(form.factor):
            return form.core, _scaled(form.factor, _LOG2_E)
        return _times(form.core, form.factor), f32(round_f32(_LOG2_E))

    def _reads(self, expr: Expr) -> bool:
        return not self._reading.isdisjoint(free_vars(expr))

    def _form(self, expr: Expr) -> _Form:
        """An expression that reads the score, taken apart from the outside in."""
        match expr:
            case Unary(op="-"):
                return _multiplied(self._form(expr.operand), f32(-1.0))
            case Binary(op="*" | "+" | "-" | "/") if not (self._reads(expr.lhs) and self._reads(expr.rhs)):
                if self._reads(expr.lhs):
                    return self._right(expr.op, self._form(expr.lhs), expr.rhs)
                if self._reads(expr.rhs) and expr.op != "/":
                    form = self._form(expr.rhs)
                    form = _multiplied(form, f32(-1.0)) if expr.op == "-" else form
                    return _multiplied(form, expr.lhs) if expr.op == "*" else _plus(form, expr.lhs)
        return _Form(_ONE, expr)

    def _right(self, op: str, form: _Form, operand: Expr) -> _Form:
        """`form op operand`."""
        match op:
            case "*":
                return _multiplied(form, operand)
            case "/":
                return _multiplied(form, simplified(binary("/", _ONE, operand)))
            case "-":
                return _plus(form, simplified(negative(operand)))
            case _:
                return _plus(form, operand)


def _multiplied(form: _Form, by: Expr) -> _Form:
    offset = None if form.offset is None else _times(form.offset, by)
    return _Form(_times(form.factor, by), form.core, offset)


def _plus(form: _Form, term: Expr) -> _Form:
    return replace(form, offset=term if form.offset is None else binary("+", form.offset, term))


def _of_dot(expr: Expr, scale: Expr) -> Expr:
    """The expression with the score as dot * scale; what scales the score scales `scale` instead."""

    def rewrite(node: Expr) -> Expr:
        match node:
            case Var(name="s"):
                return binary("*", _S, scale)
            case Binary(op="*" | "/", lhs=Binary(op="*", lhs=Var(name="s"), rhs=slope)) if "s" not in free_vars(
                node.rhs
            ):
                factor = node.rhs if node.op == "*" else simplified(binary("/", _ONE, node.rhs))
                return replace(node, op="*", lhs=_S, rhs=_times(slope, factor))
            case Binary(op="*", rhs=Binary(op="*", lhs=Var(name="s"), rhs=slope)) if "s" not in free_vars(node.lhs):
                return replace(node, lhs=_S, rhs=_times(slope, node.lhs))
            case _:
                return node

    return map_expr(expr, rewrite)


def _times(a: Expr, b: Expr) -> Expr:
    """a * b, with a constant multiplied into one that is there already."""
    if isinstance(b, Const):
        return _scaled(a, float(b.value))
    if isinstance(a, Const):
        return _scaled(b, float(a.value))
    return binary("*", a, b)


def _scaled(expr: Expr, factor: float) -> Expr:
    """The expression times a constant, rounded to 32 bits once, on the part that depends on the fewest things."""
    if factor == 1.0:
        return expr
    match expr:
        case Const():
            return f32(round_f32(float(expr.value) * factor))
        case Unary(op="-"):
            return replace(expr, operand=_scaled(expr.operand, factor))
        case Binary(op="*"):
            if _frequency(expr.rhs) <= _frequency(expr.lhs):
                return replace(expr, rhs=_scaled(expr.rhs, factor))
            return replace(expr, lhs=_scaled(expr.lhs, factor))
        case Binary(op="/"):
            return replace(expr, lhs=_scaled(expr.lhs, factor))
        case _:
            return binary("*", expr, f32(round_f32(factor)))


def _frequency(expr: Expr) -> tuple[int, bool]:
    """How many kinds of things a value depends on, and whether it is computed at all."""
    return dependence(expr).value.bit_count(), not isinstance(expr, Const)
