"""Prefix trees: shared pages once, every key once, and plans over them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.runtime.limits import Limits
from attngen.runtime.plan import Level
from attngen.runtime.prefix_tree import prefix_tree

from . import plans


def shared_batch(paths: list[list[int]], q_len: list[int], tails: list[int], page_size: int) -> plans.Batch:
    """Page lists that follow a path each in a tree (an edge is a page), then own pages for the last keys."""
    numbers: dict[tuple[int, ...], int] = {}
    fresh = iter(range(1000, 100000))
    pages = []
    for path, tail in zip(paths, tails, strict=True):
        own = [numbers.setdefault(tuple(path[: i + 1]), len(numbers)) for i in range(len(path))]
        pages.append(own + [next(fresh) for _ in range(-(-tail // page_size))])
    kv_len = [len(path) * page_size + tail for path, tail in zip(paths, tails, strict=True)]
    return plans.Batch(q_len, kv_len, page_size, pages)


def tree_of(batch: plans.Batch, **options: float) -> list[Level]:
    return prefix_tree(**batch.paged(), page_size=batch.page_size, **options)  # type: ignore[arg-type]


def visited(levels: list[Level]) -> dict[int, list[tuple[int, int]]]:
    """(position, slot) of every key that the levels list for each token row."""
    found: dict[int, list[tuple[int, int]]] = {}
    for level in levels:
        rows, lists = level.qo_indptr.tolist(), level.kv_indptr.tolist()  # type: ignore[union-attr]
        tokens = list(range(rows[-1])) if level.tokens is None else level.tokens.tolist()  # type: ignore[union-attr]
        assert len(set(tokens)) == len(tokens)
        for i in range(len(rows) - 1):
            size = level.block_size
            blocks = level.kv_indices[lists[i] : lists[i + 1]].tolist()  # type: ignore[union-attr]
            places = level.kv_positions[lists[i] : lists[i + 1]].tolist()  # type: ignore[union-attr,index]
            keys = [(p + k, b * size + k) for b, p in zip(blocks, places, strict=True) for k in range(size)]
            for token in tokens[rows[i] : rows[i + 1]]:
                found.setdefault(token, []).extend(keys[: level.kv_len[i]])  # type: ignore[index]
    return found


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=6), st.integers(0, 3), st.integers(0, 9)), min_size=0, max_size=8
)


@settings(max_examples=80, deadline=None)
@given(requests, st.sampled_from([1, 4]), st.sampled_from([0.0, 2.0, 14.0]), st.integers(1, 5))
def test_every_key_once_over_all_levels(
    shape: list[tuple[list[int], int, int]], page_size: int, partial_keys: float, levels: int
) -> None:
    batch = shared_batch([p for p, _, _ in shape], [q for _, q, _ in shape], [t for _, _, t in shape], page_size)
    tree = tree_of(batch, partial_keys=partial_keys, levels=levels)
    assert 1 <= len(tree) <= levels
    found = visited(tree)
    for b, count in enumerate(batch.q_len):
        for q in range(count):
            keys = sorted(found.pop(batch.qo_indptr[b] + q, []))
            assert keys == [(kv, batch.slot(b, kv)) for kv in range(batch.kv_len[b])]
    assert not found
    rows = sum(batch.q_len)
    limits = Limits(
        batch=len(shape), q_tokens=rows, kv_tokens=sum(batch.kv_len), levels=levels, level_rows=levels * rows
    )
    config = plans.make_config(
        batch, num_qo_heads=4, limits=limits, tiles=plans.COSTLY_TILES, has_mask=True, key_bounds=plans.CAUSAL
    )
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=batch.qo_indptr, kv_len=batch.kv_len, levels=tree)
    plans.check_plan(planner.read(), config, batch, plans.causal)


def test_a_long_prefix_is_listed_once() -> None:
    batch = shared_batch([[0] * 64] * 16, [1] * 16, [128] * 16, 16)
    tree = tree_of(batch)
    assert len(tree) == 2
    assert tree[0].kv_indices.tolist() == batch.pages[0][:64]  # type: ignore[union-attr]
    assert tree[0].qo_indptr.tolist() == [0, 16]  # type: ignore[union-attr]
    assert tree[0].tokens is None and tree[1].tokens is None


def test_sharing_that_does_not_pay_is_dropped() -> None:
    batch = shared_batch([[0]] * 2, [1] * 2, [100] * 2, 16)
    assert len(tree_of(batch)) == 1
    assert len(tree_of(batch, partial_keys=1.0)) == 2


def test_nested_prefixes_and_scattered_rows() -> None:
    paths = [[0] * 8 + [1] * 8, [7] * 8, [0] * 8 + [1] * 8, [0] * 8 + [2] * 8]
    batch = shared_batch(paths, [1, 2, 1, 1], [16] * 4, 16)
    tree = tree_of(batch)
    assert len(tree) == 3
    assert tree[0].tokens.tolist() == [0, 3, 4, 1, 2]  # type: ignore[union-attr]
    assert tree[1].tokens.tolist() == [0, 3, 4]  # type: ignore[union-attr]


def test_last_page_len_is_another_way_to_say_kv_len() -> None:
    batch = shared_batch([[0, 0], [0, 1], [0, 0]], [1, 1, 1], [3, 0, 4], 4)
    arguments = batch.paged()
    by_length = prefix_tree(**arguments, page_size=4, partial_keys=0.0)  # type: ignore[arg-type]
    del arguments["kv_len"]
    last = [3, 4, 4]
    by_tail = prefix_tree(**arguments, last_page_len=last, page_size=4, partial_keys=0.0)  # type: ignore[arg-type]
    for one, other in zip(by_length, by_tail, strict=True):
        assert torch.equal(one.kv_len, other.kv_len) and torch.equal(one.kv_indices, other.kv_indices)  # type: ignore[arg-type]


def test_wrong_lengths_are_refused() -> None:
    batch = shared_batch([[0]], [1], [3], 4)
    with pytest.raises(ValueError, match=r"kv_len\[0\] is 9, need 0 to 8"):
        prefix_tree(**{**batch.paged(), "kv_len": [9]}, page_size=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exactly one"):
        prefix_tree(qo_indptr=[0], kv_indptr=[0], kv_indices=[], page_size=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "page_size is 0, need at least 1"),
        ({"levels": 0}, "levels is 0, need at least 1"),
        ({"kv_len": [9, 1]}, r"kv_len has 2 entries, need 1 \(requests\)"),
        ({"kv_len": None, "last_page_len": [5]}, r"last_page_len\[0\] is 5, need 1 to 4 \(3 pages\)"),
        ({"kv_len": None, "last_page_len": [-1]}, r"last_page_len\[0\] is -1, need 1 to 4 \(3 pages\)"),
        ({"kv_indices": [0, 1]}, r"kv_indices has 2 entries, need kv_indptr\[-1\] = 3"),
        ({"kv_indices": torch.zeros(3)}, r"kv_indices is torch.float32\[3\], need 1 dimension of int32 or int64"),
        ({"kv_indices": None}, "kv_indices is missing"),
        ({"qo_indptr": [0, 3, 1], "kv_indptr": [0, 3, 3]}, "qo_indptr is .* need an indptr that starts at 0"),
        ({"qo_indptr": []}, "qo_indptr is .* need an indptr that starts at 0"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"qo_indptr": [0, 1], "kv_indptr": [0, 3], "kv_indices": [0, 1, 2], "kv_len": [9], "page_size": 4}
    with pytest.raises(ValueError, match=message):
        prefix_tree(**{**arguments, **changes})
