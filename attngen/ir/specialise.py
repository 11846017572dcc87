"""Fix the head dimensions of a variant.

Replaces D and Dv by constants and the default scale by its value.  Doesn't touch Hq, Hk and group: they stay values of
the launch.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attngen.ir.make import f32, i32
from attngen.ir.nodes import Variant
from attngen.ir.numbers import round_f32
from attngen.ir.walk import map_variant, substitute


def specialise(variant: Variant, head_dim: int, head_dim_v: int) -> Variant:
    """The variant for heads of `head_dim` lanes in q and k and `head_dim_v` in v."""
    sizes = {"D": i32(head_dim), "Dv": i32(head_dim_v)}
    fixed = map_variant(variant, lambda expr: substitute(expr, indices=sizes))
    if fixed.scale is None:
        fixed = replace(fixed, scale=f32(round_f32(1.0 / math.sqrt(head_dim))))
    return fixed
