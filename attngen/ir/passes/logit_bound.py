"""Find a bound on |scale_log2 * logits|, so that kernels can do without a running maximum.

Provable for a soft cap, tanh, sigmoid, clamp and the like; looks at the stage alone, so that plain scores have no
bound.  NaN is left out: it poisons its row in either kind of kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from attngen.ir.interval import anything, binary_interval
from attngen.ir.intervals import Ranges
from attngen.ir.nodes import Variant

LARGEST: Final = 80.0  # exp2 of it, times a few billion keys, is still an fp32 number


def logit_bound(variant: Variant) -> Variant:
    """The variant with `logit_bound` where there is one of at most LARGEST."""
    if variant.scale_log2 is None or variant.logits is None:
        return variant
    ranges = Ranges(variant, {"s": anything("f32")})
    exponent = binary_interval("*", ranges.of(variant.scale_log2), ranges.of(variant.logits), "f32")
    bound = exponent.magnitude
    return replace(variant, logit_bound=bound) if math.isfinite(bound) and bound <= LARGEST else variant
