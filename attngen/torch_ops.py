"""`evaluate` on torch tensors: what the reference runs, with broadcasting over any leading axes.

A vec has the lanes as its last axis; a scalar has one axis fewer and broadcasts against other scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from attngen.ir.nodes import Base
from attngen.ir.types import LIMITS

_INTEGERS: Final[dict[Base, torch.dtype]] = {"bool": torch.bool, "i32": torch.int32, "i64": torch.int64}
_BITS: Final = {"i32": 32, "i64": 64}


class TorchOps:
    """Ops on tensors of one device; `number` is the type that f32 is computed in, float64 or float32."""

    def __init__(self, number: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> None:
        self._number, self._device = number, torch.device(device)

    def constant(self, value: bool | int | float, base: Base) -> Tensor:
        """A 0-d tensor of that type."""
        if base == "f32":
            return torch.tensor(value, dtype=torch.float32, device=self._device).to(self._number)
        return torch.tensor(value, dtype=_INTEGERS[base], device=self._device)

    def widen(self, value: Tensor) -> Tensor:
        """One more axis, of length 1."""
        return value.unsqueeze(-1)

    def unary(self, op: str, operand: Tensor, base: Base) -> Tensor:
        """`-` or `~`."""
        return -operand if op == "-" else ~operand

    def binary(self, op: str, lhs: Tensor, rhs: Tensor, base: Base) -> Tensor:
        """An arithmetic, bitwise or comparison operator."""
        if op in _COMPARE:
            return _COMPARE[op](_single(lhs), _single(rhs))
        if op in ("//", "%"):
            return self._floor_division(op, lhs, rhs, base)
        if op in ("<<", ">>"):
            count = rhs & (_BITS[base] - 1)
            return lhs << count if op == "<<" else lhs >> count
        return _ARITHMETIC[op](lhs, rhs)

    def select(self, condition: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
        """`then` where the condition holds."""
        return torch.where(condition, then, otherwise)

    def cast(self, operand: Tensor, source: Base, target: Base) -> Tensor:
        """Conversion between base types."""
        if source == target:
            return operand
        if target == "f32":
            return operand.to(torch.float32).to(self._number)
        if source == "f32" and target != "bool":
            return _saturate(_single(operand).to(torch.float64), target)
        return _single(operand) != 0 if target == "bool" else operand.to(_INTEGERS[target])

    def call(self, function: str, args: Sequence[Tensor], base: Base) -> Tensor:
        """A function of builtins.IN_IR."""
        return (FUNCTIONS if base == "f32" else INTEGER_FUNCTIONS)[function](*args)

    def load(self, tensor: Any, indices: Sequence[Tensor], base: Base) -> Tensor:
        """One element for each tuple of indices, each index clamped."""
        tensor = tensor if isinstance(tensor, Tensor) else torch.as_tensor(tensor, device=self._device)
        if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            tensor = tensor.to(torch.float32)  # torch can't index fp8
        wanted = self._number if base == "f32" else _INTEGERS[base]
        if not indices:
            return tensor.to(wanted)
        if tensor.numel() == 0:
            shape = torch.broadcast_shapes(*(index.shape for index in indices))
            return torch.zeros(shape, dtype=wanted, device=self._device)
        sizes = tensor.shape
        inside = [index.to(torch.int64).clamp(0, sizes[axis] - 1) for axis, index in enumerate(indices)]
        return tensor[tuple(inside)].to(wanted)

    def lane_sum(self, operand: Tensor, lanes: int) -> Tensor:
        """The sum over the last axis."""
        return _lanes(operand, lanes).sum(-1)

    def lane_partner(self, operand: Tensor, partner: str, lanes: int) -> Tensor:
        """The lane's partner in every lane."""
        operand = _lanes(operand, lanes)
        if partner == "half":
            return operand.roll(-(lanes // 2), -1)
        partners = torch.arange(lanes, device=operand.device) ^ 1
        there = operand[..., partners.clamp(max=lanes - 1)]
        return torch.where(partners < lanes, there, torch.zeros((), dtype=there.dtype, device=there.device))

    def lane_at(self, operand: Tensor, index: Tensor, lanes: int, *, vec: bool) -> Tensor:
        """The lane with the given number, clamped."""
        operand, index = _lanes(operand, lanes), index.to(torch.int64).clamp(0, lanes - 1)
        index = index if vec else index.unsqueeze(-1)
        shape = torch.broadcast_shapes(operand.shape[:-1], index.shape[:-1])
        found = operand.expand(*shape, lanes).gather(-1, index.expand(*shape, index.shape[-1]))
        return found if vec else found.squeeze(-1)

    def count(self, value: Tensor) -> int:
        """The number in a tensor whose elements are all the same."""
        return int(value.reshape(-1)[0])

    def _floor_division(self, op: str, lhs: Tensor, rhs: Tensor, base: Base) -> Tensor:
        if base == "f32":
            lhs, rhs = _single(lhs), _single(rhs)
            quotient = torch.where(rhs == 0, 0.0, torch.floor(lhs / rhs))
            result = quotient if op == "//" else torch.where(rhs == 0, 0.0, lhs - rhs * quotient)
            return result.to(self._number)
        # NOTE: the processor traps on a zero divisor and on the smallest integer // -1.
        safe = torch.where((rhs == 0) | (rhs == -1), 1, rhs)
        if op == "//":
            quotient = torch.where(rhs == -1, -lhs, torch.div(lhs, safe, rounding_mode="floor"))
            return torch.where(rhs == 0, 0, quotient)
        return torch.where((rhs == 0) | (rhs == -1), 0, torch.remainder(lhs, safe))


def _single(value: Tensor) -> Tensor:
    """Rounded to 32 bits where the value is a 64-bit float."""
    return value.to(torch.float32) if value.dtype == torch.float64 else value


def _lanes(operand: Tensor, lanes: int) -> Tensor:
    return operand.expand(*operand.shape[:-1], lanes) if operand.shape[-1:] != (lanes,) else operand


def _saturate(value: Tensor, target: Base) -> Tensor:
    low, high = LIMITS[target]
    inside = torch.where(torch.isnan(value) | (value <= low) | (value >= high), 0.0, value).to(torch.int64)
    result = torch.where(value >= high, high, torch.where(value <= low, low, inside))
    return result.to(_INTEGERS[target])


def _step(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A step function of the value rounded to 32 bits."""
    return lambda x: function(_single(x)).to(x.dtype)


def _sign(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def _softplus(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0.0) + torch.log1p(torch.exp(-x.abs()))


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x * 0.5**0.5))


_COMPARE: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "==": torch.eq,
    "!=": torch.ne,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
}
_ARITHMETIC: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "&": torch.bitwise_and,
    "|": torch.bitwise_or,
    "^": torch.bitwise_xor,
}
FUNCTIONS: Final[dict[str, Callable[..., Tensor]]] = {
    "min": torch.fmin,
    "max": torch.fmax,
    "abs": torch.abs,
    "clamp": lambda x, lo, hi: torch.fmin(torch.fmax(x, lo), hi),
    "sign": _step(_sign),
    "floor": _step(torch.floor),
    "ceil": _step(torch.ceil),
    "round": _step(torch.round),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": _gelu,
    "relu": lambda x: torch.fmax(x, torch.zeros((), dtype=x.dtype, device=x.device)),
    "softplus": _softplus,
    "pow": torch.pow,
}
INTEGER_FUNCTIONS: Final[dict[str, Callable[..., Tensor]]] = {
    "min": torch.minimum,
    "max": torch.maximum,
    "abs": torch.abs,
    "clamp": lambda x, lo, hi: torch.minimum(torch.maximum(x, lo), hi),
    "sign": _sign,
}
