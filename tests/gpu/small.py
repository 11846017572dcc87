"""A small script that uses every kernel once: what test_sanitizer.py and test_nvrtc.py run in processes of their own.

python -m tests.gpu.small decode|prefill|split|append
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import attngen
from attngen.random_batch import Shape, random_batch
from attngen.trial import attention, split_parameters, verdict_of

EXAMPLES = Path(__file__).parents[2] / "examples"
REQUESTS = {
    "decode": ((1, 0), (1, 1), (2, 37)),
    "prefill": ((33, 40), (5, 5), (0, 3)),
    "split": ((1, 700), (1, 30)),  # more tiles than one CTA gets, so partials are merged
}


def judged(part: str) -> None:
    """Run gpt_oss (a window and sinks) and qwen3 (stages of q and k), and judge both."""
    for name in ("gpt_oss", "qwen3"):
        variant = attngen.load(EXAMPLES / f"{name}.attn")
        shape = Shape(REQUESTS[part], 4, 2, head_dim=64, dtype="bf16", page_size=5)
        batch = random_batch(variant.ir, shape)
        there = batch.to("cuda")
        attn = attention(variant, shape, target="cuda")
        for_plan, for_run = split_parameters(attn, there.params)
        attn.plan(**batch.plan_arguments(), **for_plan)
        out, lse = there.outputs()
        attn.run(there.q, (there.k_pool, there.v_pool), out=out, lse=lse, **for_run)
        verdict = verdict_of(variant.ir, batch, out.cpu(), lse.cpu())
        assert verdict.ok, (name, verdict)


def append() -> None:
    """Keys through qwen3's key stage, and plain ones."""
    variant = attngen.load(EXAMPLES / "qwen3.attn")
    shape = Shape(((7, 20),), 4, 2, head_dim=64, dtype="bf16", page_size=5)
    params = random_batch(variant.ir, shape).to("cuda").params
    attn = attention(variant, shape, target="cuda", keys="transformed")
    keyed = {p.name: params[p.name] for p in attn.manifest.parameters if p.in_key}
    pool = torch.zeros(6, 5, 2, 64, device="cuda", dtype=torch.bfloat16)
    pair = (pool, pool.clone())
    k = torch.randn(7, 2, 64, device="cuda", dtype=torch.bfloat16)
    slots, positions = torch.arange(7, device="cuda").int(), torch.arange(7, device="cuda").int()
    attngen.append_kv(pair, k, k, attention=attn, slots=slots, positions=positions, **keyed)
    attngen.append_kv(pair, k, k, kv=attngen.Paged(5), slots=slots)
    torch.cuda.synchronize()
    assert torch.equal(pair[1].view(30, 2, 64)[:7], k)


if __name__ == "__main__":
    append() if sys.argv[1] == "append" else judged(sys.argv[1])
    torch.cuda.synchronize()
    print("right")
