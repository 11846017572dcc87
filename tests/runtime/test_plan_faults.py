"""Wrong input is a ValueError that names the argument, what it got and what it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attngen.codegen.source import Tile
from attngen.runtime.limits import Limits, PlanConfig
from attngen.runtime.plan import Level, Planner

from . import plans

LIMITS = Limits(batch=3, q_tokens=10, q_len=6, kv_tokens=60, kv_len=40, levels=2, blocks=12)


def planner(**changes: Any) -> Planner:
    base: dict[str, Any] = {
        "num_qo_heads": 4,
        "num_kv_heads": 2,
        "num_workers": 3,
        "tiles": plans.SMALL_TILES,
        "block_size": 8,
        "limits": LIMITS,
    }
    return plans.make_planner(PlanConfig(**{**base, **changes}))


GOOD: dict[str, Any] = {
    "qo_indptr": [0, 2, 3],
    "kv_indptr": [0, 2, 3],
    "kv_indices": [4, 0, 7],
    "kv_len": [11, 8],
    "num_blocks": 8,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qo_indptr": [1, 2, 3]}, r"qo_indptr\[0\] is 1, need 0"),
        ({"qo_indptr": [0, 3, 2]}, r"qo_indptr\[2\] is 2 after 3, need an indptr that never decreases"),
        ({"qo_indptr": []}, r"qo_indptr is empty"),
        ({"qo_indptr": torch.zeros(3)}, r"qo_indptr has type float32, need int32 or int64"),
        ({"qo_indptr": torch.zeros((3, 1), dtype=torch.int32)}, r"qo_indptr has 2 dimensions, need 1"),
        ({"qo_indptr": torch.zeros(6, dtype=torch.int32)[::2]}, r"qo_indptr is not contiguous"),
        ({"qo_indptr": ["a"]}, r"qo_indptr is a list, need a tensor or a sequence of integers"),
        ({"qo_indptr": [0, 1, 2, 3, 4]}, r"limits.batch is 3, got 4 requests"),
        ({"qo_indptr": [0, 5, 11]}, r"limits.q_tokens is 10, got 11 query rows"),
        ({"qo_indptr": [0, 7, 8]}, r"limits.q_len is 6, got 7 query rows of one request"),
        ({"kv_indptr": [0, 3]}, r"kv_indptr has 2 entries, need 3 \(requests \+ 1\)"),
        ({"kv_indptr": None}, r"kv_indptr is missing"),
        ({"kv_indices": None}, r"kv_indices is missing"),
        ({"kv_indices": [4, 0]}, r"kv_indices has 2 entries, need kv_indptr\[-1\] = 3"),
        ({"kv_indices": [4, 8, 0]}, r"kv_indices\[1\] is 8, need 0 to 7"),
        ({"kv_indices": [4, 0, -1]}, r"kv_indices\[2\] is -1, need 0 to 7"),
        ({"kv_indices": [4, 0, 2**40]}, r"kv_indices\[2\] is 1099511627776, need 0 to 7"),
        ({"kv_len": [17, 8]}, r"kv_len\[0\] is 17, need at most 16 \(2 blocks of 8\)"),
        ({"kv_len": [-1, 8]}, r"kv_len\[0\] is -1, need 0"),
        ({"kv_len": [1]}, r"kv_len has 1 entries, need 2 \(requests\)"),
        ({"kv_len": None}, r"kv_len is missing \(or last_page_len\)"),
        ({"last_page_len": [3, 8]}, r"kv_len and last_page_len are both given"),
        ({"kv_len": None, "last_page_len": [9, 8]}, r"last_page_len\[0\] is 9, need 1 to the page size of 8"),
        ({"kv_len": None, "last_page_len": [3, 0]}, r"last_page_len\[1\] is 0, need 1 to the page size of 8"),
        (
            {"kv_len": None, "last_page_len": [3, 1], "kv_indptr": [0, 3, 3]},
            r"last_page_len\[1\] is 1, need 0 for a request without pages",
        ),
        ({"kv_indptr": [0, 6, 7], "kv_len": [41, 1]}, r"limits.kv_len is 40, got 41 keys of one request"),
        ({"kv_indptr": [0, 5, 10], "kv_len": [40, 40]}, r"limits.kv_tokens is 60, got 80 keys in total"),
        ({"scalars": [3]}, r"scalars has 1 values, need 0"),
    ],
)
def test_paged(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planner().plan(**{**GOOD, **changes})


def test_the_good_one_is_good() -> None:
    assert planner().plan(**GOOD) > 0


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"storage": "ragged", "block_size": 1}, {"kv_indices": [0]}, r"kv_indices is given, but this storage has no"),
        ({"storage": "ragged", "block_size": 1}, {"num_blocks": 2}, r"kv_indptr ends at 3, need at most the pool's 2"),
        ({"storage": "ragged", "block_size": 1}, {"kv_len": [9, 1]}, r"kv_len\[0\] is 9, need at most 2"),
        ({"storage": "ragged", "block_size": 1}, {"last_page_len": [1, 1]}, r"last_page_len is given, but"),
        ({"storage": "dense", "block_size": 9}, {"kv_len": [10, 1]}, r"kv_indptr is given|kv_len\[0\] is 10"),
        ({"storage": "dense", "block_size": 9}, {"kv_indptr": None, "num_blocks": 1}, r"2 requests, the pool has 1"),
        ({"storage": "block_sparse"}, {"kv_len": None}, r"kv_len is missing"),
        ({"storage": "block_sparse"}, {"kv_len": [9, 9]}, r"kv_indptr has 3 entries, need 4 \(block rows \+ 1\)"),
        (
            {"storage": "block_sparse", "block_rows": 2},
            {"kv_len": [9, 9], "kv_indices": [0, 1, 2]},
            r"kv_positions is missing: BlockSparse needs it for more than one request",
        ),
        (
            {"storage": "block_sparse", "block_rows": 2},
            {"kv_len": [9, 9], "kv_indices": [0, 1, 2], "kv_positions": [0, -8, 0]},
            r"kv_positions\[1\] is -8, need 0 to",
        ),
        ({"batch_invariant": True}, {"levels": [1]}, r"levels are given, but batch_invariant plans have none"),
    ],
)
def test_other_storages(changes: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    base: dict[str, Any] = {"qo_indptr": [0, 2, 3], "kv_indptr": [0, 2, 3]}
    if "levels" in arguments:
        arguments = {"levels": [level()], "kv_len": [8, 8], "kv_indptr": None}
    with pytest.raises(ValueError, match=message):
        planner(**changes).plan(**{**base, **arguments})


def level(**changes: Any) -> Level:
    base: dict[str, Any] = {"qo_indptr": [0, 3], "kv_indptr": [0, 1], "kv_indices": [5], "block_size": 8}
    return Level(**{**base, **changes})


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([level(qo_indptr=[0, 4])], r"levels\[0\].qo_indptr ends at 4, need at most qo_indptr\[-1\] = 3"),
        ([level(tokens=[0, 1])], r"levels\[0\].tokens has 2 entries, need 3"),
        ([level(tokens=[0, 1, 3])], r"levels\[0\].tokens\[2\] is 3, need 0 to 2"),
        ([level(tokens=[0, 1, 0])], r"levels\[0\].tokens\[2\] is 0 again, need each token row once a level"),
        ([level(), level(kv_indices=[9])], r"levels\[1\].kv_indices\[0\] is 9, need 0 to 7"),
        ([level(kv_len=[9])], r"levels\[0\].kv_len\[0\] is 9, need 0 to 8"),
        ([level(kv_positions=[-3])], r"levels\[0\].kv_positions\[0\] is -3, need 0 to"),
        ([level(kv_indptr=[0, 1, 2])], r"levels\[0\].kv_indptr has 3 entries, need 2"),
        ([level(block_size=0)], r"levels\[0\].block_size is 0, need at least 1"),
        ([level()] * 3, r"limits.levels is 2, got 3 levels"),
    ],
)
def test_levels(views: list[Level], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planner().plan(qo_indptr=[0, 2, 3], kv_len=[8, 8], levels=views, num_blocks=8)


def test_level_rows_and_blocks_are_limits() -> None:
    small = Limits(batch=2, q_tokens=4, kv_tokens=20, levels=2, level_rows=5, blocks=1)
    with pytest.raises(ValueError, match=r"limits.level_rows is 5, got 6 token rows over all levels"):
        planner(limits=small).plan(qo_indptr=[0, 2, 3], kv_len=[8, 8], levels=[level(kv_len=[0]), level()])
    with pytest.raises(ValueError, match=r"limits.blocks is 1, got 2 entries of kv_indices"):
        planner(limits=small).plan(qo_indptr=[0, 2], kv_len=[10], kv_indptr=[0, 2], kv_indices=[0, 1])


def test_levels_take_the_place_of_the_one_list() -> None:
    with pytest.raises(ValueError, match=r"kv_indices is given, but levels list all keys"):
        planner().plan(qo_indptr=[0, 2, 3], kv_len=[8, 8], kv_indices=[1], levels=[level()])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": -1}, r"limits.batch is -1"),
        ({"q_tokens": 2.0}, r"limits.q_tokens is 2.0"),
        ({"levels": 0}, r"limits.levels is 0"),
        ({"q_len": 9}, r"limits.q_len is 9, need at most limits.q_tokens = 8"),
        ({"kv_len": 9}, r"limits.kv_len is 9, need at most limits.kv_tokens = 8"),
        ({"blocks": 2**31}, r"limits.blocks is 2147483648"),
    ],
)
def test_limits(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**{"batch": 1, "q_tokens": 8, "kv_tokens": 8, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_qo_heads": 3}, r"num_qo_heads is 3, need a multiple of num_kv_heads 2"),
        ({"num_workers": 0}, r"num_workers is 0, need at least 1"),
        ({"tiles": ()}, r"tiles is empty"),
        ({"queues": (1, 1)}, r"queues is \(1, 1\), need at least 1 worker in each and num_workers = 3 in all"),
        ({"queues": (0, 3)}, r"queues is \(0, 3\), need at least 1 worker in each"),
        ({"queues": (1, 2)}, r"tile_queues is \(0, 0\), need the queue of each of 2 tiles, and a tile in each of 2"),
        ({"tile_queues": (0, 1)}, r"tile_queues is \(0, 1\), need .* and a tile in each of 1 queues"),
        ({"tiles": (Tile(4, 4, 1.0, 0.0, 1.0),)}, r"need positive sizes, b > 0"),
        ({"key_bounds": (((2, 0),),) * 4}, r"key_bounds: an operation lacks operands"),
        ({"key_bounds": (((1, 4),),) * 4}, r"key_bounds: argument 4 of 4"),
        ({"key_bounds": (((0, 4),),) * 3}, r"key_bounds: got 3 programs"),
    ],
)
def test_configuration(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planner(**changes)
