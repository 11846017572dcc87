"""A variant's parameters as the host library checks them (native/arguments.hpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from attngen.codegen.source import Manifest, Parameter
from attngen.dtypes import STORAGE

TYPES: Final = {name: code for code, name in enumerate(STORAGE)}  # native Type
_EXACT, _AT_LEAST, _BOUND = range(3)  # native Dim::Kind
_EXTENTS: Final = {"B": 0, "Rows": 1, "Slots": 2, "Q": 3, "KV": 4}  # native Extents


def specification(manifest: Manifest, heads: tuple[int, int], *, for_append: bool = False) -> list[list[Any]]:
    """A row a parameter, in the manifest's order; `heads` are the numbers of query and KV heads.

    For appending, only what the key stage reads is needed, and nothing is held from a plan.
    """
    config = manifest.config
    exact = {"Hq": heads[0], "Hk": heads[1], "D": config.head_dim, "Dv": config.head_dim_v}
    bound: dict[str, int] = {}
    for parameter in manifest.parameters:
        for dim in parameter.dims or ():
            if isinstance(dim, str) and dim not in exact and dim not in _EXTENTS:
                bound.setdefault(dim, len(bound))
    rows = []
    for parameter in manifest.parameters:
        planned = parameter.phase == "plan" and not for_append
        needed = parameter.in_key if for_append else True
        row = [parameter.name, TYPES[parameter.dtype], int(parameter.dims is None), int(planned), int(needed)]
        row += [len(parameter.dims or ()), *(part for dim in parameter.dims or () for part in _dim(dim, exact, bound))]
        low, high = parameter.range or (None, None)
        rows.append([*row, *_limit(low, exact, bound), *_limit(high, exact, bound)])
    return rows


def _dim(dim: int | str, exact: Mapping[str, int], bound: Mapping[str, int]) -> tuple[str, int, int]:
    if isinstance(dim, int):
        return "", _EXACT, dim
    if dim in exact:
        return dim, _EXACT, exact[dim]
    if dim in _EXTENTS:
        return dim, _AT_LEAST, _EXTENTS[dim]
    return dim, _BOUND, bound[dim]


def _limit(limit: Any, exact: Mapping[str, int], bound: Mapping[str, int]) -> tuple[int, float, int]:
    if isinstance(limit, str):
        if limit in bound:
            return 1, 0.0, bound[limit]
        return (1, float(exact[limit]), -1) if limit in exact else (0, 0.0, -1)
    return (0, 0.0, -1) if limit is None else (1, float(limit), -1)


def check_no_gradient(names: Sequence[str], values: Sequence[Any]) -> None:
    """Refuse tensors that autograd follows: nothing here has a backward pass, so gradients would silently be lost."""
    if not torch.is_grad_enabled():
        return
    for value in values:
        if value is not None and getattr(value, "requires_grad", False):
            name = next(name for name, own in zip(names, values, strict=True) if own is value)
            raise ValueError(
                f"argument `{name}` requires a gradient, and attngen computes none; call it under torch.no_grad()"
            )


def check_dense(names: Sequence[str], values: Sequence[Any], device: str = "cpu") -> None:
    """Refuse tensors without memory that the host library could read; for when it has failed."""
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor) and (value.is_meta or value.layout != torch.strided):
            what = "on meta" if value.is_meta else f"a {str(value.layout).removeprefix('torch.')} tensor"
            raise ValueError(f"argument `{name}` is {what}; it needs a strided tensor on {device}")


class Slots:
    """Named arguments of a call in the manifest's places: defaults filled in, what the call doesn't take left None."""

    def __init__(self, manifest: Manifest, takes: Callable[[Parameter], bool], otherwise: str) -> None:
        """`otherwise` ends the sentence that refuses a parameter which the call doesn't take."""
        self.names = tuple(p.name for p in manifest.parameters)
        self._places = {p.name: place for place, p in enumerate(manifest.parameters) if takes(p)}
        self._defaults = tuple(p.default if takes(p) else None for p in manifest.parameters)
        self._others = {p.name for p in manifest.parameters if not takes(p)}
        self._otherwise = otherwise
        self._variant = manifest.variant

    def place(self, given: Mapping[str, Any]) -> Sequence[Any]:
        """The arguments, one a parameter of the variant."""
        if not given:
            return self._defaults
        values = list(self._defaults)
        places = self._places
        for name, value in given.items():
            place = places.get(name)
            if place is None:
                raise ValueError(self._refusal(name))
            values[place] = value
        return values

    def _refusal(self, name: str) -> str:
        if name in self._others:
            return f"argument `{name}` {self._otherwise}"
        known = ", ".join(f"`{known}`" for known in self._places) or "none"
        return f"unknown argument `{name}`: of the parameters of `{self._variant}`, this call takes {known}"
