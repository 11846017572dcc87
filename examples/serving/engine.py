"""A transformers model whose attention, in every layer, is attngen over a paged cache.

`PagedAttention` is all there is to calling attngen; `Engine` puts it under a model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

import attngen
from serving.scheduler import Batch, PagePool

# The model rotates q and k itself, so the plain causal variant is all it needs.
VARIANT = Path(__file__).parents[1] / "causal.attn"


class PagedAttention:
    """A model's KV cache, and attention over it: planned once a step, run once a layer."""

    def __init__(self, model: PreTrainedModel, pages: PagePool, max_batch: int, token_budget: int) -> None:
        """Compile the variant, or find it compiled, and allocate everything that any step needs, where the model is."""
        config: PreTrainedConfig = model.config
        place: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
        self._attention = attngen.Attention(
            attngen.load(VARIANT),
            num_qo_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            kv=attngen.Paged(page_size=pages.page_size, layout="NHD"),
            limits=attngen.Limits(batch=max_batch, q_tokens=token_budget, kv_tokens=pages.num_pages * pages.page_size),
            **place,
        )
        # A plan speaks of page numbers, not of addresses, and a page has the same number in every layer's pool: one
        # plan serves all layers.
        pool = (pages.num_pages, pages.page_size, config.num_key_value_heads, config.head_dim)
        self._pools = [
            (torch.empty(pool, **place), torch.empty(pool, **place)) for _ in range(config.num_hidden_layers)
        ]
        # A layer's result is used up before the next layer attends, so one buffer does, and run() allocates nothing.
        self._out_buffer = torch.empty(token_budget, config.num_attention_heads, config.head_dim, **place)
        self._lse_buffer = torch.empty(token_budget, config.num_attention_heads, device=model.device)
        self._out, self._lse = self._out_buffer[:0], self._lse_buffer[:0]
        self._slots = torch.empty(0, dtype=torch.int32)
        self.seconds = {"plan": 0.0, "append": 0.0, "run": 0.0}

    def plan(self, batch: Batch) -> None:
        """Lay out the attention of a step, once for all layers."""
        with self._timed("plan"):
            self._attention.plan(
                qo_indptr=batch.qo_indptr,
                kv_indptr=batch.kv_indptr,
                kv_indices=batch.kv_indices,
                kv_len=batch.kv_len,
            )
            rows = len(batch.tokens)
            self._out, self._lse = self._out_buffer[:rows], self._lse_buffer[:rows]
            self._slots = torch.tensor(batch.slots, dtype=torch.int32).to(self._out.device)  # once for all layers

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Put the step's keys and values into their pages, then attend; tensors are [rows, heads, head_dim].

        The result is valid until the next call.
        """
        pool = self._pools[layer]
        with self._timed("append"):
            attngen.append_kv(pool, k, v, attention=self._attention, slots=self._slots)
        with self._timed("run"):
            self._attention.run(q, pool, out=self._out, lse=self._lse)
        return self._out

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


class Engine:
    """Computes the steps of a model, whose layers all attend through one `PagedAttention`."""

    def __init__(self, model: PreTrainedModel, attention: PagedAttention) -> None:
        model.set_attn_implementation("attngen")
        self._model, self._attention = model, attention

    def step(self, batch: Batch) -> list[int]:
        """Run the model on a packed step; the most likely next token of each predicting row."""
        self._attention.plan(batch)
        device = self._model.device
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.tensor([batch.tokens], device=device),
                position_ids=torch.tensor([batch.positions], device=device),
                logits_to_keep=torch.tensor(batch.predicting, dtype=torch.int64, device=device),
                use_cache=False,  # of transformers' own
                paged_attention=self._attention,  # passed on to `attend_layer`
            )
            tokens: list[int] = output.logits[0].argmax(-1).tolist()
        return tokens


def attend_layer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_attention: PagedAttention,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer: [1, heads, rows, head_dim] in, [1, rows, heads, head_dim] out."""
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    return paged_attention.attend(module.layer_idx, q, k, v)[None], None


# No mask function is registered under this name, so transformers makes no mask, which would be one of rows by rows.
AttentionInterface.register("attngen", attend_layer)
