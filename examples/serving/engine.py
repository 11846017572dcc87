"""A transformers model whose attention, in every layer, is attngen over a paged cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

import attngen
from serving.scheduler import Batch

# The model rotates q and k itself, so the plain causal variant is all it needs.
VARIANT = Path(__file__).parents[1] / "causal.attn"


class Engine:
    """Computes steps of a model; owns its paged cache and the one `attngen.Attention` that all its layers share."""

    def __init__(
        self, model: PreTrainedModel, *, num_pages: int, page_size: int, max_batch: int, token_budget: int
    ) -> None:
        """Compile the attention (or find it compiled) and allocate the cache."""
        config = model.config
        model.set_attn_implementation("attngen")
        self._model = model
        self._attention = attngen.Attention(
            attngen.load(VARIANT),
            num_qo_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
            kv=attngen.Paged(page_size=page_size, layout="NHD"),
            limits=attngen.Limits(batch=max_batch, q_tokens=token_budget, kv_tokens=num_pages * page_size),
            device=model.device,
        )
        # A plan speaks of page numbers, not of addresses. A page has the same number in every layer, so that one plan
        # serves them all, each with the pool of its own.
        pool = (config.num_hidden_layers, 2, num_pages, page_size, config.num_key_value_heads, config.head_dim)
        self._pools = torch.empty(pool, dtype=model.dtype, device=model.device)
        self._slots = torch.empty(0, dtype=torch.int32)
        self.seconds = dict.fromkeys(
            ("step", "plan", "append", "run"), 0.0
        )  # over all steps; "step" has the others in it

    def step(self, batch: Batch) -> list[int]:
        """Run the model on a packed step; the most likely next token of each predicting row."""
        with self._timed("step"), torch.inference_mode():
            with self._timed("plan"):
                self._attention.plan(
                    qo_indptr=batch.qo_indptr,
                    kv_indptr=batch.kv_indptr,
                    kv_indices=batch.kv_indices,
                    kv_len=batch.kv_len,
                )
            self._slots = torch.tensor(batch.slots, dtype=torch.int32)
            output = self._model(
                input_ids=torch.tensor([batch.tokens]),
                position_ids=torch.tensor([batch.positions]),
                logits_to_keep=torch.tensor(batch.predicting, dtype=torch.int64),
                use_cache=False,  # transformers' own, that is
                engine=self,  # for `attend_layer`
            )
            predicted: list[int] = output.logits[0].argmax(-1).tolist()
        return predicted

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Put the step's keys and values into their pages, then attend; tensors are [rows, heads, head_dim]."""
        k_pool, v_pool = self._pools[layer]
        with self._timed("append"):
            attngen.append_kv((k_pool, v_pool), k, v, attention=self._attention, slots=self._slots)
        with self._timed("run"):
            out, _ = self._attention.run(q, (k_pool, v_pool))
        return out

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


def attend_layer(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    engine: Engine,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer: [1, heads, rows, head_dim] in, [1, rows, heads, head_dim] out."""
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    return engine.attend(module.layer_idx, q, k, v)[None], None


# No mask function is registered under this name, so transformers makes no mask: it would be one of rows by rows.
AttentionInterface.register("attngen", attend_layer)
