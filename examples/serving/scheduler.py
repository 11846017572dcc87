"""Who computes what in the next step: requests, pages, and continuous batching.  Plain integers, no tensors.

A step is one packed sequence. Each request in it brings tokens that are not in the cache yet: a chunk of its prompt, or
the one token that it generated last. The engine doesn't tell these apart, and neither does attngen: a decode is a
request with one query row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, what was generated from it so far, and where its keys and values lie."""

    number: int
    prompt: list[int]
    max_new_tokens: int
    eos: int
    generated: list[int] = field(default_factory=list)
    computed: int = 0  # how many of its tokens are in the cache
    pages: list[int] = field(default_factory=list)  # page i holds positions i * page_size and on

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.prompt) + len(self.generated)

    @property
    def longest(self) -> int:
        """The most tokens it can have in the cache; the last one that it generates is never fed back."""
        return len(self.prompt) + self.max_new_tokens - 1

    @property
    def finished(self) -> bool:
        """Whether its last token ended the text or was the last one allowed."""
        return len(self.generated) >= self.max_new_tokens or self.generated[-1:] == [self.eos]

    def tokens(self, start: int, end: int) -> list[int]:
        """The tokens at positions `start` to `end - 1`."""
        return (self.prompt + self.generated)[start:end]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The positions `start` to `end - 1` of a request, to be computed in one step."""

    request: Request
    start: int
    end: int

    @property
    def complete(self) -> bool:
        """Whether it ends with the request's last token, so that its last row predicts a new one."""
        return self.end == self.request.length


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's chunks, one after another, and the arrays that describe them to attngen."""

    chunks: tuple[Chunk, ...]
    tokens: list[int]
    positions: list[int]
    slots: list[int]  # where in the pool each token's key and value go: page * page_size + place in the page
    predicting: list[int]  # the rows that predict a new token, one for each complete chunk
    qo_indptr: list[int]  # request i has the rows qo_indptr[i] to qo_indptr[i + 1] - 1,
    kv_indptr: list[int]  # its cache is the pages kv_indices[kv_indptr[i] : kv_indptr[i + 1]],
    kv_indices: list[int]
    kv_len: list[int]  # and kv_len[i] keys, those of its rows in this step among them


class PagePool:
    """The page numbers that are free."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self._free = list(reversed(range(num_pages)))

    @property
    def num_free(self) -> int:
        """How many pages no request holds."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """How many pages that many tokens fill, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def extend(self, request: Request, tokens: int) -> None:
        """Give the request pages until they hold that many tokens."""
        while len(request.pages) < self.pages_for(tokens):
            request.pages.append(self._free.pop())

    def release(self, request: Request) -> None:
        """Take all its pages back."""
        self._free += reversed(request.pages)
        request.pages = []


class Scheduler:
    """First come, first served; decodes before prompts; pages taken when a token needs them.

    A request starts only when the pool could hold it and every running request at their longest, so none is evicted.
    """

    def __init__(self, pool: PagePool, max_batch: int, token_budget: int) -> None:
        if not 1 <= max_batch <= token_budget:
            raise ValueError(f"a step has {token_budget} tokens for {max_batch} requests, and each needs at least one")
        self._pool, self._max_batch, self._token_budget = pool, max_batch, token_budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request that has arrived."""
        needed, held = self._pool.pages_for(request.longest), self._pool.num_pages
        if needed > held:
            raise ValueError(f"request {request.number} needs up to {needed} pages, and the pool holds {held}")
        self.waiting.append(request)

    def next_batch(self) -> Batch | None:
        """The work of the next step, with its pages taken; None when there is nothing to do."""
        while self.waiting and len(self.running) < self._max_batch and self._fits(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        chunks, budget = [], self._token_budget
        for request in sorted(self.running, key=lambda request: request.length - request.computed > 1):
            end = min(request.length, request.computed + budget)
            if end > request.computed:
                self._pool.extend(request, end)
                chunks.append(Chunk(request, request.computed, end))
                budget -= end - request.computed
        return pack(chunks, self._pool.page_size) if chunks else None

    def advance(self, batch: Batch, predicted: list[int]) -> list[Request]:
        """Record a computed step and its new tokens, one for each predicting row; the requests that got one.

        Those that have finished leave, and their pages are free for the next step.
        """
        for chunk in batch.chunks:
            chunk.request.computed = chunk.end
        predicting = [chunk.request for chunk in batch.chunks if chunk.complete]
        for request, token in zip(predicting, predicted, strict=True):
            request.generated.append(token)
            if request.finished:
                self._pool.release(request)
        self.running = [request for request in self.running if not request.finished]
        return predicting

    def _fits(self, request: Request) -> bool:
        together = (*self.running, request)
        return sum(self._pool.pages_for(each.longest) for each in together) <= self._pool.num_pages


def pack(chunks: Iterable[Chunk], page_size: int) -> Batch:
    """The arrays of a step that computes these chunks."""
    batch = Batch(tuple(chunks), [], [], [], [], [0], [0], [], [])
    for chunk in batch.chunks:
        pages, positions = chunk.request.pages, range(chunk.start, chunk.end)
        batch.tokens.extend(chunk.request.tokens(chunk.start, chunk.end))
        batch.positions.extend(positions)
        batch.slots.extend(pages[at // page_size] * page_size + at % page_size for at in positions)
        if chunk.complete:
            batch.predicting.append(len(batch.tokens) - 1)
        batch.qo_indptr.append(len(batch.tokens))
        batch.kv_indices.extend(pages)
        batch.kv_indptr.append(len(batch.kv_indices))
        batch.kv_len.append(chunk.end)
    return batch
