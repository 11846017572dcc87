"""Random data for a variant: a ragged paged batch with shuffled pages, parameters in their declared ranges, and poison.

Everything that a kernel must not read (unused slots, page tails, extra rows, the outputs before the call) is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from attngen.dtypes import STORAGE
from attngen.ir.nodes import ScalarParam, TensorParam, Variant
from attngen.reference.batch import Batch, nhd, paged_visits

FREE_DIMENSION = 7  # the size of a dimension that only the variant knows
Size = int


@dataclass(frozen=True, slots=True)
class Shape:
    """What to make; types are rows of dtypes.STORAGE, a request is (q_len, kv_len)."""

    requests: tuple[tuple[int, int], ...]
    num_qo_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 128
    head_dim_v: int | None = None
    dtype: str = "bf16"
    kv_dtype: str | None = None
    page_size: int = 16
    layout: Literal["NHD", "HND"] = "NHD"
    seed: int = 0
    magnitude: float = 1.0  # standard deviation of q and k
    spare_pages: int = 3
    spare_rows: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes of the variant's own dimensions

    @property
    def lanes_v(self) -> int:
        """The head dimension of V."""
        return self.head_dim_v or self.head_dim


@dataclass(frozen=True, slots=True, eq=False)
class RandomBatch:
    """Tensors to call `Attention` with, and the same batch as the reference reads it."""

    shape: Shape
    q: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    qo_indptr: list[int]
    kv_indptr: list[int]
    kv_indices: list[int]
    kv_len: list[int]
    params: dict[str, Any]

    def plan_arguments(self) -> dict[str, Any]:
        """The lengths and page tables, as `Attention.plan` takes them."""
        return {
            "qo_indptr": torch.tensor(self.qo_indptr, dtype=torch.int32),
            "kv_indptr": torch.tensor(self.kv_indptr, dtype=torch.int32),
            "kv_indices": torch.tensor(self.kv_indices, dtype=torch.int32),
            "kv_len": torch.tensor(self.kv_len, dtype=torch.int32),
        }

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Poisoned `out` and `lse` for the call to fill."""
        rows, heads, device = self.q.shape[0], self.q.shape[1], self.q.device
        out = torch.full((rows, heads, self.shape.lanes_v), math.nan, dtype=self.q.dtype, device=device)
        return out, torch.full((rows, heads), math.nan, device=device)

    def to(self, device: str) -> RandomBatch:
        """The batch with its tensors on a device; what plan() takes stays here."""
        params = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in self.params.items()}
        q, k_pool, v_pool = (x.to(device) for x in (self.q, self.k_pool, self.v_pool))
        return replace(self, q=q, k_pool=k_pool, v_pool=v_pool, params=params)

    def for_reference(self) -> Batch:
        """The batch with explicit key lists."""
        layout, page_size = self.shape.layout, self.shape.page_size
        visits = paged_visits(self.qo_indptr, self.kv_indptr, self.kv_indices, self.kv_len, page_size)
        k, v = nhd(self.k_pool, layout), nhd(self.v_pool, layout)
        return Batch(self.q, k, v, self.qo_indptr, self.kv_len, visits, self.params)


def random_batch(variant: Variant, shape: Shape) -> RandomBatch:
    """A batch of that shape; the same seed gives the same batch."""
    random = torch.Generator().manual_seed(shape.seed)
    qo_indptr, kv_indptr = [0], [0]
    for rows, keys in shape.requests:
        qo_indptr.append(qo_indptr[-1] + rows)
        kv_indptr.append(kv_indptr[-1] + -(-keys // shape.page_size))
    num_pages = kv_indptr[-1] + shape.spare_pages
    pages = torch.randperm(num_pages, generator=random)[: kv_indptr[-1]].tolist()
    kv_len = [kv for _, kv in shape.requests]
    used = _used_slots(kv_indptr, pages, kv_len, shape.page_size, num_pages)
    q = _normal((qo_indptr[-1] + shape.spare_rows, shape.num_qo_heads, shape.head_dim), shape.magnitude, random)
    q[qo_indptr[-1] :] = math.nan
    k_pool = _pool(used, shape, shape.head_dim, shape.magnitude, random)
    v_pool = _pool(used, shape, shape.lanes_v, 1.0, random)
    sizes = _sizes(shape, num_pages * shape.page_size, qo_indptr[-1])
    params = random_parameters(variant, sizes, random)
    dtype = getattr(torch, STORAGE[shape.dtype].torch)
    return RandomBatch(shape, q.to(dtype), k_pool, v_pool, qo_indptr, kv_indptr, pages, kv_len, params)


def random_parameters(variant: Variant, sizes: dict[str, Size], random: torch.Generator) -> dict[str, Any]:
    """A value for every parameter, inside its declared range; scalars with a default keep it.

    `sizes` gives the named dimensions and learns those that the variant introduces.
    """
    params: dict[str, Any] = {}
    for scalar in variant.scalars:
        params[scalar.name] = _scalar(scalar, random)
    for tensor in variant.tensors:
        params[tensor.name] = _tensor(tensor, sizes, random)
    return params


def ragged_requests(total: int, longest: int, seed: int = 0) -> tuple[tuple[int, int], ...]:
    """A mixed batch: an empty cache, decode steps, appends and prefills, with lengths from 0 to `longest`."""
    random = torch.Generator().manual_seed(seed)
    fixed = [(1, 0), (1, 1), (1, longest), (0, 5), (3, 2), (16, 16)]
    while len(fixed) < total:
        kv_len = int(torch.randint(1, longest + 1, (), generator=random))
        fixed.append((1 if len(fixed) % 2 else min(kv_len, 17), kv_len))
    return tuple(fixed[:total])


def _sizes(shape: Shape, slots: int, rows: int) -> dict[str, Size]:
    sizes = {"Hq": shape.num_qo_heads, "Hk": shape.num_kv_heads, "D": shape.head_dim, "Dv": shape.lanes_v}
    longest_q = max((q for q, _ in shape.requests), default=0)
    longest_kv = max((kv for _, kv in shape.requests), default=0)
    at_least = {"B": len(shape.requests), "Rows": rows, "Slots": slots, "Q": longest_q, "KV": longest_kv}
    return sizes | {name: max(1, size) for name, size in at_least.items()} | dict(shape.dims)


def _normal(size: tuple[int, ...], deviation: float, random: torch.Generator) -> torch.Tensor:
    return torch.randn(size, generator=random) * deviation


def _used_slots(
    kv_indptr: list[int], pages: list[int], kv_len: list[int], page_size: int, num_pages: int
) -> torch.Tensor:
    """bool[num_pages, page_size]: the slots that hold a key."""
    used = torch.zeros(num_pages, page_size, dtype=torch.bool)
    for request, length in enumerate(kv_len):
        for number in range(kv_indptr[request], kv_indptr[request + 1]):
            filled = length - (number - kv_indptr[request]) * page_size
            used[pages[number], :filled] = True
    return used


def _pool(used: torch.Tensor, shape: Shape, lanes: int, deviation: float, random: torch.Generator) -> torch.Tensor:
    """A K or V pool whose unused slots are NaN, in the layout asked for."""
    pool = _normal((*used.shape, shape.num_kv_heads, lanes), deviation, random)
    pool[~used] = math.nan
    dtype = getattr(torch, STORAGE[shape.kv_dtype or shape.dtype].torch)
    return (pool if shape.layout == "NHD" else pool.transpose(1, 2).contiguous()).to(dtype)


def _scalar(scalar: ScalarParam, random: torch.Generator) -> bool | int | float:
    if scalar.default is not None:
        return scalar.default
    if scalar.type == "bool":
        return True
    if scalar.type == "f32":
        low, high = (float(end) for end in scalar.range) if scalar.range else (0.25, 1.0)
        return low + (high - low) * float(torch.rand((), generator=random))
    first, last = (int(end) for end in scalar.range) if scalar.range else (1, 65)
    return int(torch.randint(first, last, (), generator=random))


def _tensor(tensor: TensorParam, sizes: dict[str, Size], random: torch.Generator) -> torch.Tensor:
    """Uniform in the declared range; otherwise small normal floats, small integers, or coin tosses."""
    names = (dim for dim in (*tensor.dims, *_range_names(tensor)) if isinstance(dim, str))
    for name in names:
        sizes.setdefault(name, FREE_DIMENSION)
    dims = [sizes[dim] if isinstance(dim, str) else int(dim) for dim in tensor.dims]
    storage = STORAGE[tensor.dtype]
    dtype = getattr(torch, storage.torch)
    if storage.load == "bool":
        return torch.rand(dims, generator=random) < 0.5
    ends = [sizes[end] if isinstance(end, str) else end for end in tensor.range] if tensor.range else None
    if storage.load == "f32":
        low, high = (float(end) for end in ends) if ends else (-0.5, 0.5)
        return (low + (high - low) * torch.rand(dims, generator=random)).to(dtype)
    first, last = (int(end) for end in ends) if ends else (0, FREE_DIMENSION)
    return torch.randint(first, max(first + 1, last), dims, generator=random).to(dtype)


def _range_names(tensor: TensorParam) -> Iterator[str]:
    yield from (end for end in tensor.range or () if isinstance(end, str))
