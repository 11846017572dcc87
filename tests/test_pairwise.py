"""The sampler of tests/gpu: no pair is left out, and the sample stays small."""

from __future__ import annotations

from itertools import combinations, product

from .pairwise import pairwise

FACTORS = {"a": range(7), "b": "xyz", "c": (1.5, 2.5, 3.5, 4.5), "d": (True, False)}


def test_every_pair_of_values_occurs() -> None:
    rows = pairwise(FACTORS)
    for one, other in combinations(FACTORS, 2):
        found = {(row[one], row[other]) for row in rows}
        assert found == set(product(FACTORS[one], FACTORS[other]))
    assert len(rows) <= 7 * 4 + 4
    assert rows == pairwise(FACTORS)
