from __future__ import annotations

import pytest

from attngen.runtime.kv import BlockSparse, Dense, Layout, Paged, Ragged, pool_words, split_pool


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Paged(0), "page_size is 0; it needs an integer from 1"),
        (lambda: Paged(16.0), "page_size is 16.0"),  # type: ignore[arg-type]
        (lambda: Paged(16, "NDH"), 'layout is \'NDH\'; it needs "NHD" or "HND"'),  # type: ignore[arg-type]
        (lambda: Dense(True), "capacity is True"),
        (lambda: BlockSparse(0, 1), "br is 0"),
        (lambda: BlockSparse(1, -1), "bc is -1"),
    ],
)
def test_wrong_layouts_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kv", "words"),
    [
        (Paged(16), [16, 0, 1, 0]),
        (Paged(7, "HND"), [7, 1, 1, 0]),
        (Ragged(), [1, 0, 0, 1]),
        (Dense(100), [100, 0, 1, 0]),
        (BlockSparse(4, 1), [1, 0, 1, 1]),
    ],
)
def test_words_of_a_pool(kv: Layout, words: list[int]) -> None:
    assert pool_words(kv, "bf16", 8, 128, 64) == [*words, 2, 8, 128, 64]


def test_a_pool_is_a_pair_or_one() -> None:
    assert split_pool((1, 2)) == (1, 2) and split_pool([1, 2]) == (1, 2) and split_pool(1) == (1, None)
    with pytest.raises(ValueError, match="the pool is a tuple of 3"):
        split_pool((1, 2, 3))
