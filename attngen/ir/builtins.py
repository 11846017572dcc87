"""One table of built-in functions: what they take, what they give, and whether they survive into the IR.

`build` checks calls against it, `evaluate` and `codegen` implement the rows that survive (a test compares the three),
and the language reference prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

# What the arguments must be, and what comes out:
#   numeric  i32, i64 or f32, promoted to one type, which is also the result
#   f32      any numbers, computed and returned in f32; elementwise on a vec
#   cast     one number or bool; the result is the type of the function's name
#   lanes    vecs; gives one f32 for the whole head dimension
#   vec      a vec; gives a vec whose lanes are other lanes of it
Domain: TypeAlias = Literal["numeric", "f32", "cast", "lanes", "vec"]


@dataclass(frozen=True, slots=True)
class Builtin:
    """A function of the language; `in_ir` says whether `nodes.Call` holds it, else `build` lowers it."""

    name: str
    params: tuple[str, ...]
    domain: Domain
    doc: str
    in_ir: bool = True
    variadic: bool = False  # takes two or more arguments; the IR call takes exactly two

    @property
    def signature(self) -> str:
        """How the documentation spells the call: `clamp(x, lo, hi)`."""
        return f"{self.name}({', '.join(self.params)}{', …' if self.variadic else ''})"


_ROWS: Final = (
    Builtin("min", ("a", "b"), "numeric", "the smallest argument", variadic=True),
    Builtin("max", ("a", "b"), "numeric", "the largest argument", variadic=True),
    Builtin("abs", ("x",), "numeric", "the magnitude; wraps for the smallest integer"),
    Builtin("clamp", ("x", "lo", "hi"), "numeric", "min(max(x, lo), hi)"),
    Builtin("sign", ("x",), "numeric", "-1, 0 or 1, in the type of x"),
    Builtin("floor", ("x",), "f32", "the largest whole number that is at most x, as f32"),
    Builtin("ceil", ("x",), "f32", "the smallest whole number that is at least x, as f32"),
    Builtin("round", ("x",), "f32", "the nearest whole number, ties to even, as f32"),
    Builtin("exp", ("x",), "f32", "e to the power x"),
    Builtin("exp2", ("x",), "f32", "2 to the power x"),
    Builtin("log", ("x",), "f32", "the natural logarithm"),
    Builtin("log2", ("x",), "f32", "the logarithm to base 2"),
    Builtin("log1p", ("x",), "f32", "log(1 + x), exact near 0"),
    Builtin("sqrt", ("x",), "f32", "the square root"),
    Builtin("rsqrt", ("x",), "f32", "1 / sqrt(x)"),
    Builtin("sin", ("x",), "f32", "the sine of x radians"),
    Builtin("cos", ("x",), "f32", "the cosine of x radians"),
    Builtin("tanh", ("x",), "f32", "the hyperbolic tangent"),
    Builtin("sigmoid", ("x",), "f32", "1 / (1 + exp(-x))"),
    Builtin("erf", ("x",), "f32", "the error function"),
    Builtin("silu", ("x",), "f32", "x · sigmoid(x)"),
    Builtin("gelu", ("x",), "f32", "x · (1 + erf(x / √2)) / 2"),
    Builtin("relu", ("x",), "f32", "max(x, 0)"),
    Builtin("softplus", ("x",), "f32", "log(1 + exp(x)), without overflow"),
    Builtin("pow", ("x", "y"), "f32", "x to the power y, also spelt x ** y"),
    Builtin("bool", ("x",), "cast", "true where x is not 0", in_ir=False),
    Builtin("i32", ("x",), "cast", "truncates and saturates a float (NaN gives 0), wraps an i64", in_ir=False),
    Builtin("i64", ("x",), "cast", "truncates and saturates a float (NaN gives 0)", in_ir=False),
    Builtin("f32", ("x",), "cast", "the nearest float; a bool gives 0.0 or 1.0", in_ir=False),
    Builtin("sum", ("x",), "lanes", "the sum over the lanes of x", in_ir=False),
    Builtin("mean", ("x",), "lanes", "the sum over the lanes of x, divided by their number", in_ir=False),
    Builtin("dot", ("x", "y"), "lanes", "the sum over the lanes of x * y", in_ir=False),
    Builtin("rotate_half", ("x",), "vec", "concat(-x[n/2:], x[:n/2])", in_ir=False),
    Builtin("rotate_pairs", ("x",), "vec", "(-x[1], x[0], -x[3], x[2], …)", in_ir=False),
)

BUILTINS: Final[dict[str, Builtin]] = {row.name: row for row in _ROWS}
IN_IR: Final = frozenset(row.name for row in _ROWS if row.in_ir)  # the functions that a nodes.Call may name
REDUCTIONS: Final = ("any", "all", "sum", "max", "min")  # `op(body for j in range(n))`
