"""Attention inside torch.compile: a custom op, so that a graph holds the launch instead of breaking at it."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

_SCHEMA: Final = (
    "(int number, Tensor q, Tensor k, Tensor? v, Tensor(a!) out, Tensor(b!)? lse, bool raw,"
    " str kinds, Tensor[] tensors, int[] integers, float[] reals) -> ()"
)
_numbers: Final = itertools.count()
_handles: Final[weakref.WeakValueDictionary[int, Handle]] = weakref.WeakValueDictionary()


class Handle:
    """A launch under a number that a graph can hold; it is gone when its owner is."""

    def __init__(self, launch: Callable[..., None]) -> None:
        _register()
        self.launch = launch
        self.number = next(_numbers)
        _handles[self.number] = self


def launch(
    number: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    raw: bool,
    values: Sequence[Any],
) -> None:
    """The native launch as one node of a graph.  `values` are sorted by type, since an op's lists have one each."""
    kinds = "".join(_kind(value) for value in values)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    integers = [int(value) for value in values if isinstance(value, int)]
    reals = [value for value in values if isinstance(value, float)]
    torch.ops.attngen.run(number, q, k, v, out, lse, raw, kinds, tensors, integers, reals)


def _kind(value: Any) -> str:
    if value is None:
        return "n"
    for kind, type_ in (("t", torch.Tensor), ("b", bool), ("i", int), ("f", float)):
        if isinstance(value, type_):
            return kind
    raise ValueError(f"a parameter is a {type(value).__name__}; it needs a number or a tensor")


@functools.cache
def _register() -> None:
    op = torch.library.custom_op("attngen::run", _run, mutates_args=("out", "lse"), schema=_SCHEMA)
    op.register_fake(lambda *_: None)


def _run(
    number: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    raw: bool,
    kinds: str,
    tensors: list[torch.Tensor],
    integers: list[int],
    reals: list[float],
) -> None:
    handle = _handles.get(number)
    if handle is None:
        raise RuntimeError("the Attention that this compiled graph runs is gone; keep it as long as the graph")
    values = _unsort(kinds, iter(tensors), iter(integers), iter(reals))
    handle.launch(q, k, v, out, lse, raw, *values)


def _unsort(
    kinds: str, tensors: Iterator[torch.Tensor], integers: Iterator[int], reals: Iterator[float]
) -> Iterator[Any]:
    for kind in kinds:
        match kind:
            case "t":
                yield next(tensors)
            case "b":
                yield bool(next(integers))
            case "i":
                yield next(integers)
            case "f":
                yield next(reals)
            case _:
                yield None
