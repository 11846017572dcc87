"""Attention as docs/language.md defines it, evaluated from the IR: no tiles, no passes, no cleverness.

Memory stays bounded: a piece of one request's rows against one KV head at a time.  The variant is the one that
`ir.specialise` gives, before any pass, so that comparing a kernel with this also tests the passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from attngen.ir.nodes import Expr, Variant
from attngen.reference.batch import Batch
from attngen.reference.stages import Indices, Stages

PIECE = 1 << 22  # elements of a score matrix held at once
BUILTIN_ULPS = 4.0  # what the language promises of its functions


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Which numbers a computation uses.

    Stages, products and sums are in `number`; q', k', v' and P are rounded to `operand` and the output to `out`
    (None: not rounded).
    """

    number: torch.dtype
    operand: torch.dtype | None = None
    out: torch.dtype | None = None

    def round_operand(self, x: torch.Tensor) -> torch.Tensor:
        """`x` after one rounding to the operand type."""
        return x if self.operand is None else x.to(self.operand).to(self.number)

    def round_out(self, x: torch.Tensor) -> torch.Tensor:
        """`x` after one rounding to the output type."""
        return x if self.out is None else x.to(self.out).to(self.number)


EXACT = Arithmetic(torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The result: `out` [rows, heads, lanes], natural `lse` [rows, heads] (None with softmax off).

    `unrounded` is `out` before its rounding to the output type.  `condition` is how much an fp32 rounding
    in a logit can matter: the largest finite |logit| of an allowed key with softmax on, times the ulps that a logit may
    be off (1, or BUILTIN_ULPS where a `logits` stage computes it).
    """

    out: torch.Tensor
    lse: torch.Tensor | None
    unrounded: torch.Tensor
    condition: float


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Rows of one request that attend to the same keys."""

    request: int
    rows: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor


def attend(variant: Variant, batch: Batch, arithmetic: Arithmetic = EXACT, *, raw: bool = False) -> State:
    """Attention of every row of the batch; with `raw`, without sink and output."""
    num_heads, num_kv_heads = batch.q.shape[1], batch.k.shape[2]
    group, lanes = num_heads // num_kv_heads, (batch.q.shape[2], batch.v.shape[3])
    out = torch.zeros(batch.num_rows, num_heads, lanes[1], dtype=arithmetic.number)
    lse = torch.full((batch.num_rows, num_heads), -math.inf, dtype=arithmetic.number)
    stages = Stages(variant, batch.params, arithmetic.number, num_heads, num_kv_heads, lanes)
    largest = 0.0
    for piece in _pieces(batch):
        for kv_head in range(num_kv_heads):
            keys, values, columns = _keys_and_values(stages, batch, piece, kv_head, arithmetic)
            for head in range(kv_head * group, (kv_head + 1) * group):
                for rows in piece.rows.split(max(1, PIECE // max(1, piece.slots.numel()))):
                    at = _row_indices(batch, piece.request, rows, head, kv_head)
                    o, row_lse, top = _attend_rows(
                        stages, batch.q[rows, head], at, keys, values, columns, arithmetic, raw
                    )
                    out[rows, head], lse[rows, head], largest = o, row_lse, max(largest, top)
    condition = largest * (1.0 if variant.logits is None else BUILTIN_ULPS)
    if not variant.softmax:
        return State(arithmetic.round_out(out), None, out, 0.0)
    return State(arithmetic.round_out(out), lse, out, condition)


def _pieces(batch: Batch) -> Iterator[_Piece]:
    """Runs of rows of one request that the same visits list."""
    visits_of: list[list[int]] = [[] for _ in range(batch.num_rows)]
    for number, visit in enumerate(batch.visits):
        for row in visit.rows:
            visits_of[int(row)].append(number)
    for request, length in enumerate(batch.kv_len):
        begin, end = int(batch.qo_indptr[request]), int(batch.qo_indptr[request + 1])
        while begin < end:
            stop = begin + 1
            while stop < end and visits_of[stop] == visits_of[begin]:
                stop += 1
            chosen = [batch.visits[number] for number in visits_of[begin]]
            nothing = [torch.zeros(0, dtype=torch.int64)]
            slots = torch.cat([visit.slots for visit in chosen] + nothing)
            positions = torch.cat([visit.positions for visit in chosen] + nothing)
            valid = positions < int(length)
            yield _Piece(request, torch.arange(begin, stop), slots[valid], positions[valid])
            begin = stop


def _row_indices(batch: Batch, request: int, rows: torch.Tensor, head: int, kv_head: int) -> Indices:
    """Row-scope names, each [rows] or 0-d."""
    q = (rows - int(batch.qo_indptr[request])).to(torch.int32)
    q_len = int(batch.qo_indptr[request + 1]) - int(batch.qo_indptr[request])
    kv_len = int(batch.kv_len[request])
    same = {"b": request, "h": head, "hk": kv_head, "q_len": q_len, "kv_len": kv_len}
    named = {name: torch.tensor(value, dtype=torch.int32) for name, value in same.items()}
    return named | {"q": q, "pos": q + (kv_len - q_len), "row": rows.to(torch.int32)}


def _keys_and_values(
    stages: Stages, batch: Batch, piece: _Piece, kv_head: int, arithmetic: Arithmetic
) -> tuple[torch.Tensor, torch.Tensor, Indices]:
    """k' and v' of one KV head, [keys, lanes], with the column-scope names, each [keys]."""
    kv, slot = piece.positions.to(torch.int32), piece.slots.to(torch.int32)
    column: Indices = {"kv": kv, "slot": slot, "hk": torch.tensor(kv_head, dtype=torch.int32)}
    keys = _gather(batch.k, piece.slots, kv_head, arithmetic.number)
    values = _gather(batch.v, piece.slots, kv_head, arithmetic.number)
    keys = arithmetic.round_operand(stages.vec(stages.variant.key, "x", keys, column))
    values = arithmetic.round_operand(stages.vec(stages.variant.value, "v", values, column))
    return keys, values, column


def _gather(pool: torch.Tensor, slots: torch.Tensor, kv_head: int, number: torch.dtype) -> torch.Tensor:
    """The given slots of one head, [slots, lanes]; fp8 is gathered as bytes, which torch can index."""
    if pool.element_size() == 1:
        gathered = pool.view(torch.uint8)[slots // pool.shape[1], slots % pool.shape[1], kv_head].view(pool.dtype)
    else:
        gathered = pool[slots // pool.shape[1], slots % pool.shape[1], kv_head]
    return gathered.to(number)


def _attend_rows(
    stages: Stages,
    q: torch.Tensor,
    at: Indices,
    keys: torch.Tensor,
    values: torch.Tensor,
    columns: Indices,
    arithmetic: Arithmetic,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """o [rows, lanes], lse [rows] and the largest logit of some rows of one head."""
    variant = stages.variant
    shape = (q.shape[0], keys.shape[0])
    q = arithmetic.round_operand(stages.vec(variant.query, "x", q.to(arithmetic.number), at))
    scores = stages.scale(at) * (q @ keys.T)
    both = {name: index[:, None] if index.ndim else index for name, index in at.items()} | columns
    scores = stages.scalar(variant.logits, both, s=scores).expand(shape) if variant.logits is not None else scores
    allowed = _allowed(stages, variant.mask, both, shape)
    finite = scores[allowed & scores.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    values = values.masked_fill(~allowed.any(0)[:, None], 0.0)
    gain = torch.ones(()) if variant.value_scale is None else stages.scalar(variant.value_scale, columns)
    gain = gain.masked_fill(~allowed, 0.0)  # a NaN gain reaches only the rows that see its key
    if variant.softmax:
        sink = stages.scalar(variant.sink, at) if variant.sink is not None and not raw else None
        o, lse = _softmax(scores, allowed, values, gain, sink, arithmetic)
    else:
        weights = arithmetic.round_operand(scores.masked_fill(~allowed, 0.0) * gain)
        o, lse = weights @ values, torch.full(shape[:1], -math.inf, dtype=arithmetic.number)
    if variant.output is not None and not raw:
        o = stages.vec(variant.output, "o", o, at | {"lse": lse})
    return o, lse, largest


def _allowed(stages: Stages, mask: Expr | None, at: Indices, shape: tuple[int, int]) -> torch.Tensor:
    """The mask as a bool matrix; no mask allows every key."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    return stages.scalar(mask, at).to(torch.bool).expand(shape)


def _softmax(
    scores: torch.Tensor,
    allowed: torch.Tensor,
    values: torch.Tensor,
    gain: torch.Tensor,
    sink: Any,
    arithmetic: Arithmetic,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of the values over the allowed keys, each weight times its `gain`, and the log of the denominator.

    A row with no weight at all has o = 0 and lse = −inf (or the sink); NaN or +inf among its logits poisons it.
    """
    scores = scores.masked_fill(~allowed, -math.inf)
    floor = torch.full(scores.shape[:1], -math.inf, dtype=scores.dtype)
    floor = floor if sink is None else sink.to(scores.dtype).expand_as(floor)
    top = torch.maximum(floor, scores.max(dim=1).values) if scores.shape[1] else floor
    nothing = top == -math.inf
    shift = top.masked_fill(nothing, 0.0)
    weights = torch.exp(scores - shift[:, None])
    total = weights.sum(1) + torch.exp((floor - shift).masked_fill(floor == math.inf, 0.0))
    o = (arithmetic.round_operand(weights * gain) @ values) / total.masked_fill(nothing, 1.0)[:, None]
    return o, (shift + torch.log(total)).masked_fill(nothing, -math.inf)
