"""The typed IR: `build` makes it from a syntax tree, `validate` holds it to its rules, `PASSES` rewrite it.

Read nodes.py first (all of the IR on one screen), then evaluate.py (what each node means).
"""

from attngen.ir.build import build, build_all
from attngen.ir.nodes import Variant
from attngen.ir.validate import InvalidIR, validate

__all__ = ["InvalidIR", "Variant", "build", "build_all", "validate"]
