"""The examples mean what the papers say: each against its formula, written straight in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from attngen import dsl, ir
from attngen.random_batch import RandomBatch, Shape, random_batch
from attngen.reference import Batch, reference
from tests.dsl.corpus import EXAMPLES, ROOT

SHAPE = Shape(((2, 9), (6, 40)), num_qo_heads=4, num_kv_heads=2, head_dim=32, dtype="f32", page_size=8)
REQUEST = 1  # the request that is compared
SMALL: dict[str, dict[str, Any]] = {  # parameters that matter at these lengths
    "sliding_window": {"n": 7},
    "local": {"n": 5},
    "dilated": {"n": 12, "r": 3},
    "neighbourhood_2d": {"w": 8, "w_rows": 5},
    "streaming_llm": {"n": 7},
    "gemma2": {"n": 7},
    "gpt_oss": {"n": 7},
    "topk_blocks": {"t": 8},
    "block_causal": {"c": 4},
}


@dataclass(frozen=True)
class Place:
    """Where a formula is evaluated: one head of one request; indices broadcast to [queries, keys]."""

    p: dict[str, Any]
    h: int
    q: Tensor
    kv: Tensor
    pos: Tensor
    row: Tensor
    slot: Tensor
    b: int = REQUEST
    kv_len: int = SHAPE.requests[REQUEST][1]
    q_len: int = SHAPE.requests[REQUEST][0]

    @property
    def hk(self) -> int:
        return self.h // 2

    @property
    def causal(self) -> Tensor:
        return self.kv <= self.pos


Formula: TypeAlias = Callable[[Place, Tensor], Tensor]
Index: TypeAlias = Callable[[Place], Tensor]


def same(at: Place, x: Tensor) -> Tensor:
    return x


def everywhere(at: Place) -> Tensor:
    return torch.ones(at.q_len, at.kv_len, dtype=torch.bool)


def causal(at: Place) -> Tensor:
    return at.causal


@dataclass(frozen=True)
class Meaning:
    """The stages of a variant as functions of tensors."""

    mask: Index = causal
    logits: Formula = same
    query: Formula = same
    key: Formula = same
    value: Formula = same
    output: Formula = same
    sink: Callable[[Place], float] | None = None
    softmax: bool = True


def rotate(
    x: Tensor, p: Tensor, theta: float, lanes: int | None = None, pairs: bool = False, blend: Any = None
) -> Tensor:
    """RoPE of the first lanes, by complex multiplication."""
    n = lanes or x.shape[-1]
    frequency = theta ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    angle = p.reshape(-1, 1).double() * (blend(frequency) if blend else frequency)
    first, second = (x[:, 0:n:2], x[:, 1:n:2]) if pairs else (x[:, : n // 2], x[:, n // 2 : n])
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    head = (
        torch.stack([turned.real, turned.imag], -1).flatten(1) if pairs else torch.cat([turned.real, turned.imag], -1)
    )
    return torch.cat([head, x[:, n:]], -1)


def rope(theta: float | str = 10000.0, mask: Index = causal, **how: Any) -> Meaning:
    def base(at: Place) -> float:
        return float(at.p[theta]) if isinstance(theta, str) else theta

    return Meaning(
        mask=mask,
        query=lambda at, x: rotate(x, at.pos, base(at), **how),
        key=lambda at, x: rotate(x, at.kv, base(at), **how),
    )


def rms(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def llama3(frequency: Tensor) -> Tensor:
    wave = 2 * math.pi / frequency
    smooth = (8192.0 / wave - 1.0) / 3.0
    between = (1 - smooth) * frequency / 8.0 + smooth * frequency
    return torch.where(wave < 8192.0 / 4.0, frequency, torch.where(wave > 8192.0, frequency / 8.0, between))


def t5_bucket(r: Tensor, buckets: int, two_sided: bool) -> Tensor:
    later = torch.zeros_like(r)
    if two_sided:
        buckets //= 2
        later, n = (r > 0).long() * buckets, r.abs()
    else:
        n = (-r).clamp(min=0)
    exact = buckets // 2
    far = exact + (torch.log(n.clamp(min=1).float() / exact) / math.log(128 / exact) * (buckets - exact)).long()
    return later + torch.where(n < exact, n, far.clamp(max=buckets - 1))


def neighbourhood(at: Place) -> Tensor:
    w, rows = at.p["w"], at.p["w_rows"]
    x, y = (at.pos % w).clamp(2, w - 3), (at.pos // w).clamp(2, rows - 3)
    return ((at.kv % w - x).abs() <= 2) & ((at.kv // w - y).abs() <= 2)


def packed(at: Place) -> Tensor:
    doc, off = at.p["doc"][at.b].long(), at.p["off"].long()
    mine, theirs = doc[at.pos], doc[at.kv]
    return (mine == theirs) & (at.kv - off[theirs] <= at.pos - off[mine])


def shared_prefix(at: Place) -> Tensor:
    doc, prefix = at.p["doc"][at.b].long(), at.p["prefix"].long()
    return ((doc[at.kv] == doc[at.pos]) & at.causal) | (doc[at.kv] == prefix[doc[at.pos]])


def vision(at: Place) -> Tensor:
    interval = at.p["iv"].long()[at.p["img"].long()[at.kv]]
    return (interval[..., 0] <= at.q) & (at.q < interval[..., 1])


def tree(at: Place) -> Tensor:
    history = at.kv_len - at.q_len
    return (at.kv < history) | at.p["ancestor"][at.q, (at.kv - history).clamp(0, 15)]


def topk(at: Place) -> Tensor:
    block, valid = (at.p[name][at.row, at.hk].long() for name in ("block", "valid"))  # [queries, 1, k]
    keys, t = at.kv.unsqueeze(-1), at.p["t"]
    return ((block == keys // t) & (keys % t < valid)).any(-1)


def window(at: Place) -> Tensor:
    return at.causal & (at.pos - at.kv < at.p["n"])


def scaled(index: Callable[[Place, Tensor], Any]) -> Meaning:
    """fp8 scales: `index` picks a key's scale."""
    return Meaning(
        logits=lambda at, s: s * index(at, at.p["ks"]),
        value=lambda at, v: v * torch.as_tensor(index(at, at.p["vs"])).reshape(-1, 1),
    )


MEANINGS: dict[str, Meaning] = {
    "softmax": Meaning(everywhere),
    "causal": Meaning(),
    "sliding_window": Meaning(window),
    "local": Meaning(lambda at: (at.pos - at.kv).abs() <= at.p["n"]),
    "prefix_lm": Meaning(lambda at: (at.kv < at.p["p"][at.b]) | at.causal),
    "dilated": Meaning(lambda at: ((at.pos - at.kv).abs() <= 12) & ((at.pos - at.kv) % 3 == 0)),
    "packed_documents": Meaning(packed),
    "shared_prefix": Meaning(shared_prefix),
    "global_local": Meaning(
        lambda at: ((at.pos - at.kv).abs() <= at.p["n"]) | at.p["marked"][at.pos] | at.p["marked"][at.kv]
    ),
    "neighbourhood_2d": Meaning(neighbourhood),
    "vision_cross": Meaning(vision),
    "speculative_tree": Meaning(tree),
    "topk_blocks": Meaning(topk),
    "block_causal": Meaning(lambda at: at.kv // 4 <= at.pos // 4),
    "soft_cap": Meaning(logits=lambda at, s: at.p["cap"] * torch.tanh(s / at.p["cap"])),
    "alibi": Meaning(logits=lambda at, s: s + at.p["slope"][at.h] * (at.kv - at.pos)),
    "t5_bias": Meaning(everywhere, lambda at, s: s + at.p["table"][at.h][t5_bucket(at.kv - at.pos, 32, True)]),
    "relative_table": Meaning(everywhere, lambda at, s: s + at.p["table"][at.h][(at.pos - at.kv + 64).clamp(0, 128)]),
    "key_bias": Meaning(everywhere, lambda at, s: s + at.p["kb"][at.b][at.kv]),
    "head_bias": Meaning(logits=lambda at, s: torch.relu(s + at.p["hb"][at.h])),
    "graph_distance": Meaning(
        everywhere, lambda at, s: s + at.p["table"][at.h][at.p["dist"][at.b].long()[at.q, at.kv]]
    ),
    "sink": Meaning(sink=lambda at: float(at.p["sinks"][at.h])),
    "off_by_one": Meaning(sink=lambda at: 0.0),
    "sigmoid": Meaning(logits=lambda at, s: torch.sigmoid(s + at.p["bias"][at.h]), softmax=False),
    "relu_squared": Meaning(logits=lambda at, s: torch.relu(s) ** 2 / (at.pos + 1), softmax=False),
    "qk_norm": Meaning(query=lambda at, x: rms(x) * at.p["qw"], key=lambda at, x: rms(x) * at.p["kw"]),
    "rope": rope("theta"),
    "rope_interleaved": rope("theta", pairs=True),
    "rope_positions": Meaning(
        query=lambda at, x: rotate(x, at.p["query_position"][at.row], 10000.0),
        key=lambda at, x: rotate(x, at.p["key_position"][at.slot], 10000.0),
    ),
    "rope_partial": rope(lanes=8),
    "rope_partial_interleaved": rope(lanes=8, pairs=True),
    "rope_scaled": rope(500000.0, blend=llama3),
    "streaming_llm": rope(mask=lambda at: at.causal & ((at.kv < 4) | (at.pos - at.kv < at.p["n"]))),
    "position_temperature": Meaning(logits=lambda at, s: s * torch.log(at.pos + 1.0) * at.p["t"]),
    "fp8_per_tensor": scaled(lambda at, scale: scale),
    "fp8_per_head": scaled(lambda at, scale: scale[at.hk]),
    "fp8_per_token": scaled(lambda at, scale: scale[at.slot, at.hk]),
    "value_gate": Meaning(value=lambda at, v: v * at.p["g"][at.slot, at.hk].reshape(-1, 1)),
    "output_gate": Meaning(output=lambda at, o: o * torch.sigmoid(at.p["gate"][at.row.flatten(), at.h])),
    "gemma2": Meaning(window, lambda at, s: 50.0 * torch.tanh(s / 50.0)),
    "gpt_oss": Meaning(window, sink=lambda at: float(at.p["sinks"][at.h])),
    "qwen3": Meaning(
        query=lambda at, x: rotate(rms(x) * at.p["qw"], at.pos, 1e6),
        key=lambda at, x: rotate(rms(x) * at.p["kw"], at.kv, 1e6),
    ),
    "t5_fp8": Meaning(
        everywhere,
        lambda at, s: s * at.p["ks"][at.slot, at.hk] + at.p["table"][at.h][t5_bucket(at.kv - at.pos, 32, False)],
        value=lambda at, v: v * at.p["vs"][at.slot, at.hk].reshape(-1, 1),
    ),
}


def expected(meaning: Meaning, at: Place, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One head by the formula, in fp64."""
    s = meaning.query(at, q) @ meaning.key(at, k).T / math.sqrt(q.shape[-1])
    s, allowed = meaning.logits(at, s), meaning.mask(at)
    if meaning.softmax:
        sink = math.exp(meaning.sink(at)) if meaning.sink is not None else 0.0
        weights = torch.where(allowed, s.exp(), 0.0)
        total = weights.sum(-1, keepdim=True) + sink
        weights = torch.where(total > 0, weights / total, 0.0)
    else:
        weights = torch.where(allowed, s, 0.0)
    return meaning.output(at, weights @ meaning.value(at, v))


def place(made: RandomBatch, batch: Batch, params: dict[str, Any], head: int) -> Place:
    q_len, kv_len = SHAPE.requests[REQUEST]
    q = torch.arange(q_len)[:, None]
    slots = torch.as_tensor(batch.visits[REQUEST].slots)[None, :]
    return Place(params, head, q, torch.arange(kv_len)[None, :], q + kv_len - q_len, q + made.qo_indptr[REQUEST], slots)


def as_double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def test_every_example_has_a_meaning() -> None:
    assert sorted(MEANINGS) == [path.stem for path in EXAMPLES]


@pytest.mark.parametrize("name", MEANINGS)
def test_example_means_its_formula(name: str) -> None:
    variant = ir.build(dsl.parse_module(Path(ROOT / "examples" / f"{name}.attn")))
    made = random_batch(variant, SHAPE)
    params = {**made.params, **SMALL.get(name, {})}
    batch = replace(made.for_reference(), params=params)
    rows = slice(made.qo_indptr[REQUEST], made.qo_indptr[REQUEST + 1])
    out = reference(variant, batch).out[rows]
    doubles = {key: as_double(value) for key, value in params.items()}
    pool_k, pool_v = (pool.flatten(0, 1).double() for pool in (batch.k, batch.v))
    for head in range(SHAPE.num_qo_heads):
        at = place(made, batch, doubles, head)
        keys = at.slot.flatten()
        q, k, v = batch.q[rows, head].double(), pool_k[keys, head // 2], pool_v[keys, head // 2]
        wanted = expected(MEANINGS[name], at, q, k, v)
        assert wanted.abs().max() > 0
        torch.testing.assert_close(out[:, head].double(), wanted, atol=1e-5, rtol=1e-5)
