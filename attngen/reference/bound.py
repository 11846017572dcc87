"""How far a kernel may be from the exact result: 1.1 times the error of the plain algorithm with its roundings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attngen.reference.dense import State

FACTOR = 1.1
EPSILON = 2.0**-23  # of fp32


@dataclass(frozen=True, slots=True)
class Verdict:
    """Errors beside their bounds: `error` is the largest absolute one, `relative` the L2 norm over the exact norm."""

    error: float
    bound: float
    relative: float
    relative_bound: float
    lse_error: float
    lse_bound: float

    @property
    def ok(self) -> bool:
        """Whether every error is within its bound (NaN never is)."""
        return self.error <= self.bound and self.relative <= self.relative_bound and self.lse_error <= self.lse_bound


def judge(out: torch.Tensor, lse: torch.Tensor | None, exact: State, rounded: State) -> Verdict:
    """Compare a kernel's `out` and natural `lse` with the exact result.

    With E the error of `rounded` against `exact`, max-abs or L2-relative, a bound is `1.1 * E + floor`.

    - The floor is what no algorithm in fp32 can promise, relative to the largest output: `2^-23 * (2 + condition)`,
      twice a rounding for the sums, and `State.condition` since an error in a logit moves its weight by as much.  It
      matters for fp32 outputs alone.
    - Whose worst element lies nearest to a tie of the output type is luck.  So the max-abs bound is at least
      1.1 times the error of `rounded` before that rounding, plus half a unit in the last place of the largest output.
    - Elements whose exact value isn't finite must match it: NaN for NaN, and an infinity of the same sign.
    """
    few = EPSILON * (2.0 + exact.condition)
    rows = exact.out.shape[0]
    error, relative, size = _distance(out[:rows], exact.out)
    plain, plain_relative, _ = _distance(rounded.out, exact.out)
    before, _, _ = _distance(rounded.unrounded, exact.out)
    half_ulp = size * torch.finfo(out.dtype).eps / 2
    lse_error = lse_bound = 0.0
    if lse is not None and exact.lse is not None and rounded.lse is not None:
        lse_error, _, _ = _distance(lse[:rows], exact.lse)
        lse_bound = FACTOR * _distance(rounded.lse, exact.lse)[0] + few
    return Verdict(
        error=error,
        bound=max(FACTOR * plain, FACTOR * before + half_ulp) + few * size,
        relative=relative,
        relative_bound=FACTOR * plain_relative + few,
        lse_error=lse_error,
        lse_bound=lse_bound,
    )


def _distance(actual: torch.Tensor, exact: torch.Tensor) -> tuple[float, float, float]:
    """Largest error, relative L2 error, and the largest exact magnitude, over the finite elements of `exact`.

    All errors are infinite where one of the two is finite and the other is not.
    """
    actual, exact = actual.to(torch.float64), exact.to(torch.float64)
    finite = exact.isfinite()
    same = torch.where(exact.isnan(), actual.isnan(), actual == exact)
    if not bool(torch.all(torch.where(finite, actual.isfinite(), same))):
        return math.inf, math.inf, 1.0
    if not bool(finite.any()):
        return 0.0, 0.0, 0.0
    difference, magnitude = (actual - exact)[finite], exact[finite]
    norm = float(magnitude.norm())
    return (
        float(difference.abs().max()),
        float(difference.norm()) / norm if norm else float(difference.norm()),
        float(magnitude.abs().max()),
    )
