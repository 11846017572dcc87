"""The oracle: what attention over a batch must give, from the IR itself.

exact = reference(variant, batch)                       # fp64
plain = rounded(variant, batch, torch.bfloat16)         # fp32 sums, operands rounded as kernels round them
verdict = judge(out, lse, exact, plain)
"""

from __future__ import annotations

import torch

from attngen.ir.nodes import Variant
from attngen.ir.passes import fold, inline, unroll, value_scale
from attngen.reference.batch import Batch, Visit, affine_visits, nhd, paged_visits
from attngen.reference.bound import Verdict, judge
from attngen.reference.dense import EXACT, Arithmetic, State, attend

__all__ = [
    "Arithmetic",
    "Batch",
    "State",
    "Verdict",
    "Visit",
    "affine_visits",
    "judge",
    "nhd",
    "paged_visits",
    "reference",
    "rounded",
]


def reference(variant: Variant, batch: Batch, *, raw: bool = False) -> State:
    """The exact result: everything in fp64, casts and comparisons as in fp32."""
    return attend(variant, batch, EXACT, raw=raw)


def rounded(variant: Variant, batch: Batch, dtype: torch.dtype, *, raw: bool = False) -> State:
    """The plain algorithm with a kernel's roundings: fp32 sums; q', k', v', P and the output rounded to `dtype`.

    A factor of `value` that depends on no lane multiplies P before its rounding, as docs/language.md says.
    """
    for rewrite in (inline, unroll, fold, value_scale):
        variant = rewrite(variant)
    operand = None if dtype == torch.float32 else dtype
    return attend(variant, batch, Arithmetic(torch.float32, operand, operand), raw=raw)
