"""The passes, each a function from a variant to an equal one, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attngen.ir.nodes import Variant
from attngen.ir.passes.bounds import bounds, plan_scalars
from attngen.ir.passes.fold import fold
from attngen.ir.passes.inline import inline
from attngen.ir.passes.log2 import log2
from attngen.ir.passes.logit_bound import logit_bound
from attngen.ir.passes.scope import scope
from attngen.ir.passes.unroll import unroll
from attngen.ir.passes.value_scale import value_scale

PASSES: Final[tuple[Callable[[Variant], Variant], ...]] = (
    inline,
    unroll,
    fold,
    bounds,
    value_scale,
    log2,
    logit_bound,
    scope,
)

__all__ = [
    "PASSES",
    "bounds",
    "fold",
    "inline",
    "log2",
    "logit_bound",
    "plan_scalars",
    "scope",
    "unroll",
    "value_scale",
]
