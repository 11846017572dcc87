"""Merging the states of one query set over disjoint keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from attngen.runtime import host
from attngen.runtime.arguments import check_dense, check_no_gradient
from attngen.runtime.attention import Origin, State
from attngen.runtime.merge_gpu import merge_on_gpu
from attngen.runtime.setup import thread_count


def merge(
    states: Sequence[tuple[torch.Tensor, torch.Tensor | None]], lse: Literal["natural", "log2"] = "natural"
) -> State:
    """The state over all keys, from (out, lse) pairs over disjoint parts of them; computed in fp32, in this order.

    On a GPU it is a series of torch's operations on the current stream, which a graph can capture.

    (0, -inf) is the identity, bit for bit.  `lse` is the base of the states' own.  States that `Attention.run` gave are
    refused where their variant has a sink or an output stage, or softmax off, unless they were run with raw=True; with
    softmax off they have no lse and add.  Of plain tensors nothing is known, so they are taken at their word.
    """
    if lse not in ("natural", "log2"):
        raise ValueError(f"lse is {lse!r}; it needs 'natural' or 'log2'")
    if not isinstance(states, (list, tuple)):
        raise ValueError(f"states is a {type(states).__name__}; it needs a list of (out, lse)")
    if not states:
        raise ValueError("states is empty; it needs at least one (out, lse)")
    for number, state in enumerate(states):
        _check(state, number, lse)
    added = [state[1] is None for state in states]
    if any(added) and not all(added):
        raise ValueError("some states have an lse and some have none; it needs states of one variant")
    if states[0][0].is_cuda:
        merged = State(merge_on_gpu(states, lse == "natural"))
    else:
        out = torch.empty_like(states[0][0], memory_format=torch.contiguous_format)
        merged_lse = None if all(added) else torch.empty(out.shape[:-1], dtype=torch.float32)
        tensors = [tensor for state in states for tensor in state]
        host.library().merge(out, merged_lse, lse == "natural", thread_count(), *tensors)
        merged = State((out, merged_lse))
    merged.origin = Origin(None if all(added) else lse)
    return merged


def _check(state: Any, number: int, lse: str) -> None:
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise ValueError(f"states[{number}] is a {type(state).__name__}; it needs (out, lse)")
    for part, tensor in enumerate(state):
        if not isinstance(tensor, torch.Tensor) and not (part == 1 and tensor is None):
            raise ValueError(f"states[{number}][{part}] is a {type(tensor).__name__}; it needs a tensor")
    names = (f"states[{number}][0]", f"states[{number}][1]")
    check_no_gradient(names, state)
    check_dense(names, state)
    if not isinstance(state, State):
        return
    origin = state.origin
    if origin.unmergeable:
        raise ValueError(f"states[{number}] can't be merged: {origin.unmergeable}")
    if origin.lse not in (None, lse):
        raise ValueError(f"states[{number}] has an lse of base {origin.lse!r}; merge was asked for {lse!r}")
