"""The work that benchmarks/gpu.py times: batches, their tensors, attngen over them, and a plain reference in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import attngen

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGE, CAP, WINDOW = 16, 50.0, 1024  # WINDOW is FlashInfer's window_left: a query sees itself and that many before it
ALIBI_FULL = "attention alibi_full:\n    tensor slope: f32[Hq] in 0.0..1.0\n    logits(s): s + slope[h] * (kv - pos)\n"

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Equal requests of one variant; `decode` has one query each over pages, otherwise every token is a query."""

    kind: str  # causal, soft cap, alibi, window, decode
    batch: int
    length: int
    num_qo_heads: int = 32
    num_kv_heads: int = 32
    head_dim: int = 128

    @property
    def decode(self) -> bool:
        return self.kind == "decode"

    @property
    def causal(self) -> bool:
        return self.kind != "alibi"

    @property
    def name(self) -> str:
        title = {"alibi": "ALiBi full", "soft cap": "soft cap causal", "window": f"window {WINDOW} causal"}
        heads = f" {self.num_qo_heads}/{self.num_kv_heads}" if self.num_qo_heads != self.num_kv_heads else ""
        return f"{title.get(self.kind, self.kind)}{heads} {self.batch} x {self.length}"

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that one head of one request computes; a causal half counts as half."""
        n = self.length
        if self.decode:
            return n
        if self.kind == "window":
            return sum(min(row + 1, WINDOW + 1) for row in range(n))
        return n * n * (0.5 if self.causal else 1.0)

    @property
    def flops(self) -> float:
        return 4.0 * self.batch * self.num_qo_heads * self.head_dim * self.pairs

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values, each read once, in a two-byte type."""
        return self.batch * self.length * self.num_kv_heads * self.head_dim * 4


def _prefill(kind: str) -> list[Case]:
    return [Case(kind, 4, 4096), Case(kind, 16, 1024)]


CASES: tuple[Case, ...] = (
    *_prefill("causal"),
    *_prefill("soft cap"),
    *_prefill("alibi"),
    Case("window", 4, 4096),
    *(Case("decode", batch, length, 64, 8) for batch, length in ((64, 8192), (16, 1024), (1, 4096))),
)
TINY: tuple[Case, ...] = (  # what a dry run on a CPU can do
    *(Case(kind, 2, 96, 4, 4) for kind in ("causal", "soft cap", "alibi", "window")),
    Case("decode", 3, 75, 8, 2),
)


@dataclass(frozen=True)
class Batch:
    """The tensors of a case, which every candidate reads; q is [rows, Hq, D]."""

    case: Case
    device: torch.device
    dtype: torch.dtype = field(default=torch.bfloat16)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    @property
    def rows(self) -> int:
        return self.case.batch * (1 if self.case.decode else self.case.length)

    @cached_property
    def q(self) -> torch.Tensor:
        return self._random(self.rows, self.case.num_qo_heads, self.case.head_dim)

    @cached_property
    def kv(self) -> torch.Tensor:
        """[pages, 2, PAGE, Hk, D] for decode, otherwise [2, tokens, Hk, D]."""
        heads = self.case.num_kv_heads, self.case.head_dim
        if self.case.decode:
            return self._random(self.case.batch * self.pages, 2, PAGE, *heads)
        return self._random(2, self.case.batch * self.case.length, *heads)

    @property
    def pages(self) -> int:
        """Pages of one request."""
        return -(-self.case.length // PAGE)

    @property
    def qo_indptr(self) -> torch.Tensor:
        return torch.arange(self.case.batch + 1, dtype=torch.int32) * (self.rows // self.case.batch)

    @property
    def kv_indptr(self) -> torch.Tensor:
        """Where each request's pages, or tokens, start."""
        return torch.arange(self.case.batch + 1, dtype=torch.int32) * (
            self.pages if self.case.decode else self.case.length
        )

    @cached_property
    def kv_indices(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.randperm(self.case.batch * self.pages, generator=generator).to(torch.int32)

    @property
    def kv_len(self) -> torch.Tensor:
        return torch.full((self.case.batch,), self.case.length, dtype=torch.int32)

    @property
    def last_page_len(self) -> torch.Tensor:
        return self.kv_len - (self.pages - 1) * PAGE

    @property
    def slopes(self) -> torch.Tensor:
        heads = self.case.num_qo_heads
        return torch.exp2(-torch.arange(1, heads + 1, device=self.device, dtype=torch.float32) * (8.0 / heads))


def variant(kind: str) -> Any:
    """The variant of a kind of case, as attngen.load() gives it."""
    if kind == "alibi":
        return attngen.parse(ALIBI_FULL)
    file = {"soft cap": "soft_cap", "window": "sliding_window"}.get(kind, "causal")
    return attngen.load(EXAMPLES / f"{file}.attn")


def attention(case: Case, batch: Batch, fast_math: bool = False) -> Any:
    """An Attention that holds the case and no more."""
    return attngen.Attention(
        variant(case.kind),
        num_qo_heads=case.num_qo_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        dtype=batch.dtype,
        kv=attngen.Paged(page_size=PAGE) if case.decode else attngen.Ragged(),
        limits=attngen.Limits(
            batch=case.batch,
            q_tokens=batch.rows,
            q_len=batch.rows // case.batch,
            kv_tokens=case.batch * case.length,
        ),
        device=str(batch.device),
        fast_math=fast_math,
    )


def ours(case: Case, batch: Batch, fast_math: bool = False) -> tuple[Any, Call]:
    """attngen, planned: the Attention, and a call that fills and gives `out` without allocating."""
    made = attention(case, batch, fast_math)
    scalars = {"n": WINDOW + 1} if case.kind == "window" else {}
    if case.decode:
        made.plan(
            qo_indptr=batch.qo_indptr, kv_indptr=batch.kv_indptr, kv_indices=batch.kv_indices, kv_len=batch.kv_len
        )
    else:
        made.plan(qo_indptr=batch.qo_indptr, kv_indptr=batch.kv_indptr, **scalars)
    arguments: dict[str, Any] = {}
    if case.kind == "soft cap":
        arguments["cap"] = CAP
    if case.kind == "alibi":
        arguments["slope"] = batch.slopes
    pool = batch.kv if case.decode else tuple(batch.kv.unbind(0))
    out = torch.full_like(batch.q, float("nan"))  # so that a row which nobody writes shows
    lse = torch.empty(batch.rows, case.num_qo_heads, device=batch.device)

    def call() -> torch.Tensor:
        made.run(batch.q, pool, out=out, lse=lse, **arguments)
        return out

    return made, call


def reference(batch: Batch, request: int) -> torch.Tensor:
    """One request's rows [rows, Hq, D] by the plain algorithm in fp32, a query head at a time."""
    case = batch.case
    rows = batch.rows // case.batch
    q = batch.q[request * rows : (request + 1) * rows].float()
    k, v = (x.float() for x in _keys_and_values(batch, request))
    pos = torch.arange(case.length - rows, case.length, device=q.device)[:, None]
    kv = torch.arange(case.length, device=q.device)[None, :]
    visible = (kv <= pos) if case.causal else torch.ones(1, 1, dtype=torch.bool, device=q.device)
    if case.kind == "window":
        visible = visible & (pos - kv <= WINDOW)
    out = torch.empty_like(q)
    group = case.num_qo_heads // case.num_kv_heads
    for head in range(case.num_qo_heads):
        logits = q[:, head] @ k[:, head // group].T / math.sqrt(case.head_dim)
        if case.kind == "soft cap":
            logits = CAP * torch.tanh(logits / CAP)
        if case.kind == "alibi":
            logits = logits + batch.slopes[head] * (kv - pos)
        weights = logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out[:, head] = weights @ v[:, head // group]
    return out


def _keys_and_values(batch: Batch, request: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One request's k and v, [length, Hk, D]."""
    length = batch.case.length
    if not batch.case.decode:
        k, v = batch.kv[:, request * length : (request + 1) * length]
        return k, v
    pages = batch.kv_indices[request * batch.pages : (request + 1) * batch.pages].long().to(batch.device)
    k, v = batch.kv[pages].unbind(1)
    return k.flatten(0, 1)[:length], v.flatten(0, 1)[:length]


def error(batch: Batch, out: torch.Tensor) -> float:
    """The relative error (norm over norm) of the first and the last request against the reference."""
    rows = batch.rows // batch.case.batch
    worst = 0.0
    for request in {0, batch.case.batch - 1}:
        expected = reference(batch, request)
        got = out[request * rows : (request + 1) * rows].float()
        distance = ((got - expected).norm() / expected.norm()).item()
        worst = distance if math.isnan(distance) else max(worst, distance)
    return worst
