"""The typed IR: `build` makes it from a syntax tree, `specialise` fixes head dimensions, `PASSES` rewrite it.

Read nodes.py first (all of the IR on one screen), then evaluate.py (what each node means).  `validate` holds every
variant to the rules that passes rely on.
"""

from attngen.ir.build import build, build_all
from attngen.ir.depth import limited_depth
from attngen.ir.nodes import Variant
from attngen.ir.passes import PASSES
from attngen.ir.specialise import specialise
from attngen.ir.validate import InvalidIR, validate

__all__ = ["PASSES", "InvalidIR", "Variant", "build", "build_all", "limited_depth", "specialise", "validate"]
