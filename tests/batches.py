"""Random batches over every layout of a KV cache, each with the explicit key lists that the reference reads.

Whatever no row may read is NaN or infinite: free slots, page tails, rows of q that belong to no request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import attngen
from attngen.reference import Batch, Visit
from attngen.runtime.kv import Layout

Requests = Sequence[tuple[int, int]]  # (query rows, keys)
LAYOUTS = ("paged", "shared", "ragged", "dense", "sparse", "topk")


@dataclass(frozen=True)
class Shape:
    requests: Requests
    layout: str
    num_qo_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 24
    head_dim_v: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    order: Any = "NHD"
    together: bool = False
    seed: int = 0
    page_size: int = 4


@dataclass
class Lists:
    """How a layout holds the keys: blocks of the pool, plan()'s arguments, and the keys of each row."""

    kv: Layout
    num_blocks: int
    plan: dict[str, Any]
    visits: list[Visit]
    used: list[torch.Tensor] = field(default_factory=list)  # slots that hold keys, besides those of the visits


@dataclass
class Made:
    shape: Shape
    lists: Lists
    qo_indptr: list[int]
    kv_len: list[int]
    q: torch.Tensor
    k: torch.Tensor  # NHD blocks, as the reference reads them
    v: torch.Tensor

    def to(self, device: str) -> Made:
        """The batch with its tensors on a device; what plan() takes stays here."""
        return replace(self, q=self.q.to(device), k=self.k.to(device), v=self.v.to(device))

    @property
    def pool(self) -> Any:
        """The pool as the layout wants it."""
        if isinstance(self.lists.kv, attngen.Ragged):
            pair = self.k.flatten(0, 1), self.v.flatten(0, 1)
        elif self.lists.kv.layout == "HND":
            pair = self.k.transpose(1, 2).contiguous(), self.v.transpose(1, 2).contiguous()
        else:
            pair = self.k, self.v
        return torch.stack(pair, 1) if self.shape.together else pair

    @property
    def rows(self) -> int:
        return self.qo_indptr[-1]

    def for_reference(self, params: dict[str, Any]) -> Batch:
        return Batch(self.q, self.k, self.v, self.qo_indptr, self.kv_len, self.lists.visits, params)

    def limits(self) -> attngen.Limits:
        """Limits that the batch reaches exactly."""
        levels = self.lists.plan.get("levels", [])
        listed = sum(len(level.kv_indices) for level in levels) or len(self.lists.plan.get("kv_indices", []))
        return attngen.Limits(
            batch=len(self.kv_len),
            q_tokens=self.rows,
            q_len=max(rows for rows, _ in self.shape.requests),
            kv_tokens=sum(self.kv_len),
            kv_len=max(self.kv_len),
            levels=max(1, len(levels)),
            level_rows=sum(int(level.qo_indptr[-1]) for level in levels) if levels else None,
            blocks=listed if listed else None,
        )


def make(shape: Shape) -> Made:
    chance, generator = random.Random(shape.seed), torch.Generator().manual_seed(shape.seed)
    qo_indptr = sums(rows for rows, _ in shape.requests)
    kv_len = [keys for _, keys in shape.requests]
    lists = _BUILD[shape.layout](shape, qo_indptr, kv_len, chance)
    lists.plan["qo_indptr"], lists.plan["kv_len"] = qo_indptr, kv_len
    size = lists.kv.block[1]
    free = torch.ones(lists.num_blocks * size, dtype=torch.bool)
    free[torch.cat([visit.slots for visit in lists.visits] + lists.used).long()] = False
    free = free.view(lists.num_blocks, size)
    pools = []
    for lanes, poison in ((shape.head_dim, math.nan), (shape.head_dim_v, chance.choice([math.nan, math.inf]))):
        pool = torch.randn(lists.num_blocks, size, shape.num_kv_heads, lanes, generator=generator)
        pool[free] = poison if shape.kv_dtype.itemsize > 1 else math.nan
        pools.append(pool.to(shape.kv_dtype))
    q = torch.randn(qo_indptr[-1] + 1, shape.num_qo_heads, shape.head_dim, generator=generator)
    q[-1] = math.nan
    return Made(shape, lists, qo_indptr, kv_len, q.to(shape.dtype), *pools)


def sums(counts: Any) -> list[int]:
    found = [0]
    for count in counts:
        found.append(found[-1] + count)
    return found


def shuffled(count: int, chance: random.Random) -> list[int]:
    order = list(range(count))
    chance.shuffle(order)
    return order


def _visit(qo_indptr: list[int], b: int, slots: Any, positions: Any) -> Visit:
    rows = range(qo_indptr[b], qo_indptr[b + 1])
    return Visit(rows, torch.as_tensor(slots, dtype=torch.int64), torch.as_tensor(positions, dtype=torch.int64))


def _paged(shape: Shape, qo_indptr: list[int], kv_len: list[int], chance: random.Random) -> Lists:
    """Shuffled pages, sometimes one more than a request needs; "shared" gives neighbours common prefixes."""
    page = shape.page_size
    indptr = sums(-(-keys // page) + chance.randint(0, 1) for keys in kv_len)
    pages = shuffled(indptr[-1] + 3, chance)
    plan: dict[str, Any] = {"kv_indptr": indptr, "kv_indices": pages[: indptr[-1]]}
    if shape.layout == "shared":
        for b in range(1, len(kv_len)):
            common = chance.randint(0, min(kv_len[b], kv_len[b - 1]) // page)
            pages[indptr[b] : indptr[b] + common] = pages[indptr[b - 1] : indptr[b - 1] + common]
        table = {"qo_indptr": qo_indptr, "kv_indptr": indptr, "kv_indices": pages[: indptr[-1]], "kv_len": kv_len}
        plan = {"levels": attngen.prefix_tree(**table, page_size=page, partial_keys=1.0)}
    visits = []
    for b, keys in enumerate(kv_len):
        slots = [pages[indptr[b] + j // page] * page + j % page for j in range(keys)]
        visits.append(_visit(qo_indptr, b, slots, range(keys)))
    return Lists(attngen.Paged(page, shape.order), indptr[-1] + 3, plan, visits)


def _ragged(shape: Shape, qo_indptr: list[int], kv_len: list[int], chance: random.Random) -> Lists:
    indptr = sums(keys + chance.randint(0, 3) for keys in kv_len)
    visits = [_visit(qo_indptr, b, indptr[b] + torch.arange(keys), range(keys)) for b, keys in enumerate(kv_len)]
    return Lists(attngen.Ragged(), indptr[-1] + 2, {"kv_indptr": indptr}, visits)


def _dense(shape: Shape, qo_indptr: list[int], kv_len: list[int], chance: random.Random) -> Lists:
    room = max(kv_len) + 1
    visits = [_visit(qo_indptr, b, b * room + torch.arange(keys), range(keys)) for b, keys in enumerate(kv_len)]
    return Lists(attngen.Dense(room, shape.order), len(kv_len) + 1, {}, visits)


def _sparse(shape: Shape, qo_indptr: list[int], kv_len: list[int], chance: random.Random) -> Lists:
    """Blocks of 3 rows, each with some of its request's blocks, in any order."""
    page, rows_each = shape.page_size, 3
    first = sums(-(-keys // page) for keys in kv_len)
    blocks = shuffled(first[-1] + 2, chance)
    plan: dict[str, Any] = {"kv_indptr": [0], "kv_indices": [], "kv_positions": []}
    visits, used = [], []
    for b, keys in enumerate(kv_len):
        count = first[b + 1] - first[b]
        used += [torch.tensor([blocks[first[b] + p // page] * page + p % page for p in range(keys)])]
        for begin in range(qo_indptr[b], qo_indptr[b + 1], rows_each):
            chosen = [j for j in shuffled(count, chance) if chance.random() < 0.6]
            plan["kv_indices"] += [blocks[first[b] + j] for j in chosen]
            plan["kv_positions"] += [j * page for j in chosen]
            plan["kv_indptr"].append(len(plan["kv_indices"]))
            positions = torch.tensor([j * page + t for j in chosen for t in range(page)], dtype=torch.int64)
            positions = positions[positions < keys]
            numbers = torch.tensor(blocks[first[b] : first[b + 1]], dtype=torch.int64)
            slots = numbers[positions // page] * page + positions % page if len(positions) else positions
            visits.append(Visit(range(begin, min(begin + rows_each, qo_indptr[b + 1])), slots, positions))
    return Lists(attngen.BlockSparse(rows_each, page, shape.order), len(blocks), plan, visits, used)


def _topk(shape: Shape, qo_indptr: list[int], kv_len: list[int], chance: random.Random) -> Lists:
    """Half of each request's keys, in any order, as pages of one token with positions."""
    first = sums(kv_len)
    slots = shuffled(first[-1] + 3, chance)
    plan: dict[str, Any] = {"kv_indptr": [0], "kv_indices": [], "kv_positions": []}
    visits = []
    for b, keys in enumerate(kv_len):
        chosen = shuffled(keys, chance)[: (keys + 1) // 2]
        plan["kv_indices"] += [slots[first[b] + p] for p in chosen]
        plan["kv_positions"] += chosen
        plan["kv_indptr"].append(len(plan["kv_indices"]))
        visits.append(_visit(qo_indptr, b, [slots[first[b] + p] for p in chosen], chosen))
    return Lists(attngen.Paged(1, shape.order), len(slots), plan, visits)


_BUILD = {"paged": _paged, "shared": _paged, "ragged": _ragged, "dense": _dense, "sparse": _sparse, "topk": _topk}
