"""The scheduler of examples/llm.py without a model: a step's tokens go into a list of slots, as K and V would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.serving.scheduler import Batch, Chunk, PagePool, Request, Scheduler, pack

EOS = 7


def predict(tokens: list[int]) -> int:
    """A model: the next token follows from all before it."""
    return (31 * sum(tokens) + len(tokens)) % 11


def generate(request: Request) -> list[int]:
    """What a request should generate, computed on its own."""
    generated: list[int] = []
    while len(generated) < request.max_new_tokens and generated[-1:] != [EOS]:
        generated.append(predict(request.prompt + generated))
    return generated


class Cache:
    """Computes a batch as attention does: appends its tokens by slot, then reads each request's cache by page."""

    def __init__(self, pool: PagePool) -> None:
        self.page_size = pool.page_size
        self.slots = [-1] * (pool.num_pages * pool.page_size)

    def step(self, batch: Batch) -> list[int]:
        for slot, token in zip(batch.slots, batch.tokens, strict=True):
            self.slots[slot] = token
        return [predict(self.read(batch, row)) for row in batch.predicting]

    def read(self, batch: Batch, row: int) -> list[int]:
        """The tokens that a row attends to, which has to be the last row of its request."""
        request = batch.qo_indptr.index(row + 1) - 1
        pages = batch.kv_indices[batch.kv_indptr[request] : batch.kv_indptr[request + 1]]
        keys = [token for page in pages for token in self.slots[page * self.page_size : (page + 1) * self.page_size]]
        return keys[: batch.kv_len[request]]


prompts = st.lists(st.integers(0, 10), min_size=1, max_size=40)
arrivals = st.lists(st.tuples(st.integers(0, 12), prompts, st.integers(1, 12)), max_size=8)


@given(arrivals=arrivals, page_size=st.integers(1, 9), max_batch=st.integers(1, 4), spare=st.integers(0, 12))
def test_every_request_generates_what_it_generates_alone(
    arrivals: list[tuple[int, list[int], int]], page_size: int, max_batch: int, spare: int
) -> None:
    requests = [Request(number, prompt, new, EOS) for number, (_, prompt, new) in enumerate(arrivals)]
    longest = max((request.longest for request in requests), default=1)
    pool = PagePool(-(-longest // page_size) + spare, page_size)
    scheduler, cache = Scheduler(pool, max_batch, max_batch + spare), Cache(pool)
    step = 0
    while scheduler.busy or step <= 12:
        for request, (arrival, _, _) in zip(requests, arrivals, strict=True):
            if arrival == step:
                scheduler.add(request)
        if (batch := scheduler.next_batch()) is not None:
            check(batch, scheduler, max_batch, max_batch + spare)
            scheduler.advance(batch, cache.step(batch))
        step += 1
    assert [request.generated for request in requests] == [generate(request) for request in requests]
    assert pool.num_free == pool.num_pages


def check(batch: Batch, scheduler: Scheduler, max_batch: int, token_budget: int) -> None:
    """What holds of every step."""
    held = [page for request in scheduler.running for page in request.pages]
    assert len(held) == len(set(held)), "a page is held twice"
    assert len(scheduler.running) <= max_batch
    assert len(batch.tokens) <= token_budget
    computed = [chunk.request for chunk in batch.chunks]
    assert all(request in computed for request in scheduler.running if request.generated), "a decode had to wait"
    for chunk in batch.chunks:
        assert chunk.start == chunk.request.computed < chunk.end <= chunk.request.length


def test_a_prompt_is_cut_to_what_the_decodes_leave_of_the_budget() -> None:
    pool = PagePool(num_pages=16, page_size=4)
    scheduler = Scheduler(pool, max_batch=2, token_budget=8)
    short, long = Request(0, [1, 2, 3], 9, EOS), Request(1, list(range(20)), 9, EOS)
    scheduler.add(short)
    first = scheduler.next_batch()
    assert first is not None
    assert scheduler.advance(first, [5]) == [short]
    scheduler.add(long)
    second = scheduler.next_batch()
    assert second is not None
    assert [(chunk.request, chunk.start, chunk.end) for chunk in second.chunks] == [(short, 3, 4), (long, 0, 7)]
    assert second.predicting == [0]


def test_a_step_is_described_by_rows_pages_and_lengths() -> None:
    decode = Request(0, [1, 2, 3, 4], 9, EOS, generated=[5], computed=4, pages=[6, 2])
    prompt = Request(1, [10, 11, 12, 13, 14, 15], 9, EOS, computed=2, pages=[0, 9])
    batch = pack([Chunk(decode, 4, 5), Chunk(prompt, 2, 5)], page_size=4)
    assert batch.tokens == [5, 12, 13, 14]
    assert batch.positions == [4, 2, 3, 4]
    assert batch.slots == [2 * 4, 0 * 4 + 2, 0 * 4 + 3, 9 * 4]
    assert batch.predicting == [0]
    assert batch.qo_indptr == [0, 1, 4]
    assert batch.kv_indptr == [0, 2, 4]
    assert batch.kv_indices == [6, 2, 0, 9]
    assert batch.kv_len == [5, 5]


def test_a_request_waits_for_pages_and_takes_them_when_others_leave() -> None:
    pool = PagePool(num_pages=3, page_size=4)
    scheduler = Scheduler(pool, max_batch=2, token_budget=16)
    first, second = Request(0, [1] * 5, 1, EOS), Request(1, [2] * 8, 1, EOS)
    scheduler.add(first)
    scheduler.add(second)
    batch = scheduler.next_batch()
    assert batch is not None
    assert scheduler.running == [first]
    scheduler.advance(batch, [3])
    assert scheduler.next_batch() is not None
    assert scheduler.running == [second]


def test_what_can_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens for 3 requests"):
        Scheduler(PagePool(4, 4), max_batch=3, token_budget=2)
    with pytest.raises(ValueError, match="needs up to 3 pages, and the pool holds 2"):
        Scheduler(PagePool(2, 4), max_batch=1, token_budget=8).add(Request(0, [1] * 8, 2, EOS))
