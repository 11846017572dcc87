"""Common prefixes of page lists, as levels that plan() visits once for all requests that share them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import torch

from attngen.runtime.plan import Ints, Level, host_ints

# What one more partial costs a row, in keys that could be read meanwhile (0.22 tiles of 64, measured).
PARTIAL_KEYS: Final = 14.0


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests whose first `common` pages agree, of which `start` are placed at levels above `level`."""

    requests: list[int]
    start: int
    common: int
    level: int


@dataclass(slots=True)
class _Nodes:
    """The block rows of one level."""

    requests: list[list[int]] = field(default_factory=list)
    pages: list[list[int]] = field(default_factory=list)
    first_page: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    def add(self, requests: list[int], pages: list[int], first_page: int, keys: int) -> None:
        self.requests.append(requests)
        self.pages.append(pages)
        self.first_page.append(first_page)
        self.keys.append(keys)


def prefix_tree(
    *,
    qo_indptr: Ints,
    kv_indptr: Ints,
    kv_indices: Ints,
    page_size: int,
    kv_len: Ints | None = None,
    last_page_len: Ints | None = None,
    levels: int = 8,
    partial_keys: float = PARTIAL_KEYS,
) -> list[Level]:
    """Levels for plan(levels=...) that visit each key once for all requests whose page lists start alike.

    At most `levels` of them.  R requests share n keys where that saves more reading than it costs in partials:
    (R - 1) · n > partial_keys · R.  Linear in the pages, of which each is looked at once a request.
    """
    for name, value in (("levels", levels), ("page_size", page_size)):
        if value < 1:
            raise ValueError(f"{name} is {value}, need at least 1")
    rows, indptr = _indptr(qo_indptr, "qo_indptr"), _indptr(kv_indptr, "kv_indptr")
    batch = len(rows) - 1
    if len(indptr) != batch + 1:
        raise ValueError(f"kv_indptr has {len(indptr)} entries, need {batch + 1} (requests + 1)")
    indices = _numbers(kv_indices, "kv_indices")
    if len(indices) < indptr[-1]:
        raise ValueError(f"kv_indices has {len(indices)} entries, need kv_indptr[-1] = {indptr[-1]}")
    pages = [indices[begin:end] for begin, end in pairwise(indptr)]
    lengths = _lengths(pages, page_size, kv_len, last_page_len)
    found = _share([b for b in range(batch) if rows[b] < rows[b + 1]], pages, lengths, page_size, levels, partial_keys)
    return [_level(nodes, rows, page_size) for nodes in found] or [_level(_Nodes(), rows, page_size)]


def _lengths(pages: list[list[int]], page_size: int, kv_len: Ints | None, last_page_len: Ints | None) -> list[int]:
    """The number of keys of each request, from whichever of the two is given."""
    if (kv_len is None) == (last_page_len is None):
        raise ValueError("kv_len and last_page_len: need exactly one of them")
    name = "last_page_len" if kv_len is None else "kv_len"
    given = _numbers(last_page_len if kv_len is None else kv_len, name)
    if len(given) != len(pages):
        raise ValueError(f"{name} has {len(given)} entries, need {len(pages)} (requests)")
    lengths = []
    for b, (own, number) in enumerate(zip(pages, given, strict=True)):
        room = len(own) * page_size
        least, most = (0, room) if kv_len is not None else (1, page_size) if own else (0, 0)
        if not least <= number <= most:
            raise ValueError(f"{name}[{b}] is {number}, need {least} to {most} ({len(own)} pages)")
        lengths.append(number if kv_len is not None else room - page_size + number if own else 0)
    return lengths


def _share(
    requests: list[int], pages: list[list[int]], lengths: list[int], page_size: int, levels: int, partial_keys: float
) -> list[_Nodes]:
    """Walk the trie of whole pages from its root, a group of requests at a time."""
    nodes: dict[int, _Nodes] = defaultdict(_Nodes)
    whole = [length // page_size for length in lengths]
    stack = [_Group(requests, 0, 0, 0)] if requests else []
    while stack:
        group = stack.pop()
        if len(group.requests) == 1 or group.level == levels - 1:
            for b in group.requests:
                if (keys := lengths[b] - group.start * page_size) > 0:
                    nodes[group.level].add([b], pages[b][group.start : -(-lengths[b] // page_size)], group.start, keys)
            continue
        first, start, level = group.requests[0], group.start, group.level
        common = min(_agree(pages[first], pages[b], group.common, min(whole[first], whole[b])) for b in group.requests)
        keys, sharing = (common - start) * page_size, len(group.requests)
        if (sharing - 1) * keys > partial_keys * sharing:
            nodes[level].add(group.requests, pages[first][start:common], start, keys)
            start, level = common, level + 1
        children: dict[int, list[int]] = defaultdict(list)
        for b in group.requests:
            # A request without a further whole page is on its own.
            children[pages[b][common] if common < whole[b] else -1 - b].append(b)
        stack.extend(_Group(members, start, common, level) for members in reversed(children.values()))
    return [nodes[level] for level in range(max(nodes, default=-1) + 1)]


def _agree(a: list[int], b: list[int], begin: int, end: int) -> int:
    """How far two lists agree, up to `end`, given that they do up to `begin`."""
    step = 64
    while begin < end and a[begin : min(begin + step, end)] == b[begin : min(begin + step, end)]:
        begin = min(begin + step, end)
    while begin < end and a[begin] == b[begin]:
        begin += 1
    return begin


def _level(nodes: _Nodes, rows: list[int], page_size: int) -> Level:
    order = sorted(range(len(nodes.requests)), key=lambda i: nodes.requests[i][0])
    tokens = [row for i in order for b in nodes.requests[i] for row in range(rows[b], rows[b + 1])]
    row_counts = [sum(rows[b + 1] - rows[b] for b in nodes.requests[i]) for i in order]
    return Level(
        qo_indptr=_tensor(_sums(row_counts)),
        tokens=None if tokens == list(range(len(tokens))) else _tensor(tokens),
        kv_indptr=_tensor(_sums(len(nodes.pages[i]) for i in order)),
        kv_indices=_tensor(page for i in order for page in nodes.pages[i]),
        kv_len=_tensor(nodes.keys[i] for i in order),
        kv_positions=_tensor((nodes.first_page[i] + j) * page_size for i in order for j in range(len(nodes.pages[i]))),
        block_size=page_size,
    )


def _sums(counts: Iterable[int]) -> list[int]:
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return sums


def _numbers(values: Ints | None, name: str) -> list[int]:
    tensor = host_ints(values, name)
    if tensor is None:
        raise ValueError(f"{name} is missing")
    if tensor.ndim != 1 or tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} is {tensor.dtype}{list(tensor.shape)}, need 1 dimension of int32 or int64")
    numbers: list[int] = tensor.tolist()
    return numbers


def _indptr(values: Ints, name: str) -> list[int]:
    numbers = _numbers(values, name)
    if not numbers or numbers[0] != 0 or any(end < begin for begin, end in pairwise(numbers)):
        raise ValueError(f"{name} is {numbers[:8]}…, need an indptr that starts at 0 and never decreases")
    return numbers


def _tensor(values: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
