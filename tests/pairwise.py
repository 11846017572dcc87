"""A small sample of a large grid in which every pair of values of two factors occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations, product
from typing import TypeAlias

Value: TypeAlias = tuple[str, Hashable]  # of a factor


def pairwise(factors: Mapping[str, Sequence[Hashable]]) -> list[dict[str, Hashable]]:
    """Rows of one value a factor, the same on every call; about as many as the two longest factors have pairs."""
    values = {name: [(name, each) for each in dict.fromkeys(given)] for name, given in factors.items()}
    missing = dict.fromkeys(
        frozenset(pair)
        for one, other in combinations(sorted(values, key=lambda name: -len(values[name])), 2)
        for pair in product(values[one], values[other])
    )
    used: Counter[Value] = Counter()
    rows = []
    while missing:
        row = list(next(iter(missing)))
        taken = {name for name, _ in row}
        for name in values:
            if name not in taken:
                row.append(max(values[name], key=lambda value: (_new(value, row, missing), -used[value])))
        for pair in combinations(row, 2):
            missing.pop(frozenset(pair), None)
        used.update(row)
        chosen = dict(row)
        rows.append({name: chosen[name] for name in factors})
    return rows


def _new(value: Value, row: Sequence[Value], missing: Mapping[frozenset[Value], None]) -> int:
    """How many missing pairs the value would add to the row."""
    return sum(frozenset((value, other)) in missing for other in row)
