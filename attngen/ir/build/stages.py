"""The stages of an attention: what each may read, what it works on, and what it must give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from attngen.dsl import ast
from attngen.ir.build import statements
from attngen.ir.build.context import Context, Place, Session
from attngen.ir.build.make import Lane
from attngen.ir.build.scope import Local, Scope
from attngen.ir.nodes import Expr, Type, Var
from attngen.ir.roots import VISIBLE
from attngen.ir.types import BOOL, F32, VEC, describe


@dataclass(frozen=True, slots=True)
class StageRule:
    """One stage: what it gives, the name of its input in the IR, and the number of its lanes."""

    gives: Type
    input: str | None = None
    lane: Lane | None = None

    @property
    def takes(self) -> Type:
        """The type of the input."""
        return VEC if self.lane else F32


STAGES: Final[dict[str, StageRule]] = {
    "query": StageRule(VEC, "x", "D"),
    "key": StageRule(VEC, "x", "D"),
    "value": StageRule(VEC, "v", "Dv"),
    "scale": StageRule(F32),
    "logits": StageRule(F32, "s"),
    "mask": StageRule(BOOL),
    "sink": StageRule(F32),
    "output": StageRule(VEC, "o", "Dv"),
}
INPUTS: Final = frozenset({"x", "v", "s", "o"})  # the names of stage inputs in the IR


def elaborate(session: Session, scope: Scope, stage: ast.Stage, softmax: bool) -> Expr:
    """The expression of a stage; `lse` exists with softmax only."""
    rule = STAGES[stage.name]
    inner = Scope(scope)
    if stage.param is not None and rule.input is not None:
        inner.entries[stage.param.id] = Local(Var(rule.input, rule.takes, span=stage.param.span))
    visible = VISIBLE[stage.name] if softmax else VISIBLE[stage.name] - {"lse"}
    ctx = Context(session, inner, Place(f"stage `{stage.name}`", visible, rule.lane))
    value = statements.single(ctx, stage.body)
    span = stage.body.result.span
    if stage.name == "mask" and value.type.base != "bool":
        ctx.fail("non-bool-mask", f"a mask must give bool, not {describe(value.type)}", span,
                 "compare: a mask is true where a key is allowed")  # fmt: skip
    return ctx.convert(value, rule.gives, f"the result of `{stage.name}`", span, "wrong-result")


def is_on(stage: ast.Stage) -> bool:
    """Whether `softmax: on` is said."""
    return isinstance(stage.body.result, ast.Name) and stage.body.result.id == "on"
