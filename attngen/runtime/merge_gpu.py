"""What native/merge.cpp does, for states on a GPU: the same sums in the same order, as torch's operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)
Pair = tuple[torch.Tensor, torch.Tensor | None]


def merge_on_gpu(states: Sequence[Pair], natural: bool) -> Pair:
    """The merged out, of the states' type, and lse; with softmax off, when no state has an lse, the sum and None."""
    _check(states)
    first = states[0][0]
    lses = [lse for _, lse in states if lse is not None]
    if not lses:
        total = first.float()
        for out, _ in states[1:]:
            total = total + out.float()
        return total.to(first.dtype), None
    largest = torch.full(first.shape[:-1], -torch.inf, device=first.device)
    for lse in lses:
        largest = torch.fmax(largest, lse)
    weight_sum, started = torch.zeros_like(largest), torch.zeros_like(largest, dtype=torch.bool)
    total = torch.zeros(first.shape, device=first.device)
    for (out, _), lse in zip(states, lses, strict=True):
        live = lse != -torch.inf  # otherwise whatever its output holds has no effect
        weight = (torch.exp if natural else torch.exp2)(lse - largest).where(live, 0.0)
        weight_sum = weight_sum + weight
        term = weight[..., None] * out.float()
        # NOTE: 0 + x would turn -0 into 0.
        sums = torch.where(started[..., None], total + term, term)
        total = torch.where(live[..., None], sums, total)
        started = started | live
    merged = total / weight_sum.where(started, 1.0)[..., None]
    log = torch.log(weight_sum) if natural else torch.log2(weight_sum)
    return merged.to(first.dtype), (largest + log).where(started, -torch.inf)


def _check(states: Sequence[Pair]) -> None:
    """Refuse what native/merge.cpp refuses, in its words."""
    first = states[0][0]
    if first.ndim != 3:
        raise ValueError(f"states[0][0] is {_describe(first)}; it needs a float tensor [rows, heads, lanes]")
    if first.dtype not in _FLOATS:
        raise ValueError(f"states[0][0] holds {_name(first.dtype)}; it needs a float type")
    rows, heads, lanes = first.shape
    for number, (out, lse) in enumerate(states):
        wanted = f"{_name(first.dtype)}[rows = {rows}, heads = {heads}, lanes = {lanes}]"
        _check_one(f"states[{number}][0]", out, first, first.dtype, (rows, heads, lanes), wanted)
        if lse is not None:
            wanted = f"f32[rows = {rows}, heads = {heads}]"
            _check_one(f"states[{number}][1]", lse, first, torch.float32, (rows, heads), wanted)


def _check_one(
    name: str, tensor: torch.Tensor, first: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], wanted: str
) -> None:
    if tensor.device != first.device or tensor.dtype != dtype or tensor.shape != shape:
        raise ValueError(f"{name} is {_describe(tensor)}; it needs {wanted} on {first.device}")


def _describe(tensor: Any) -> str:
    return f"{_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device}"


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "i32"}.get(
        dtype, str(dtype).removeprefix("torch.")
    )
