"""The CPU engine beside PyTorch SDPA and compiled FlexAttention, all in one run.

    python benchmarks/cpu.py [--rounds 9] [--json benchmarks/results/NAME.jsonl]

Every round times each candidate once, in turn, so that a machine that slows down slows all of them; a row gives the
medians and the ratio to the best peer.  GFLOP/s count 4·heads·rows·keys·D, half of it under a causal mask.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attngen

HEADS, LENGTH, DIM, CAP, WINDOW = 8, 2048, 128, 50.0, 256
EXAMPLES = Path(__file__).parent.parent / "examples"

VARIANTS = {
    "full": "attention full:\n    softmax: on\n",
    "causal": "attention causal_only:\n    mask: causal\n",
    "soft cap full": f"attention soft_cap_full:\n    logits(s): {CAP} * tanh(s / {CAP})\n",
    "soft cap causal": f"attention soft_cap_causal:\n    logits(s): {CAP} * tanh(s / {CAP})\n    mask: causal\n",
    "ALiBi causal": "attention alibi_causal:\n    tensor slope: f32[Hq]\n"
    "    logits(s): s + slope[h] * (kv - pos)\n    mask: causal\n",
    f"window {WINDOW}": f"attention window_only:\n    mask: causal & (pos - kv < {WINDOW})\n",
}
WORK = {"full": 1.0, "soft cap full": 1.0, f"window {WINDOW}": WINDOW / LENGTH}  # the share of all pairs; others half

Call = Callable[[], torch.Tensor]


def soft_cap(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return CAP * torch.tanh(score / CAP)


def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return kv <= q


def window(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return (kv <= q) & (q - kv < WINDOW)


def slopes() -> torch.Tensor:
    return torch.exp2(-torch.arange(1, HEADS + 1) * (8.0 / HEADS))


def peers(case: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Call]:
    """Callables by name; q, k, v are [1, heads, rows, D]."""
    torch.compiler.reset()  # each case compiles afresh, below the limit on recompilations
    flex = torch.compile(flex_attention)
    calls: dict[str, Call] = {}
    if case in ("full", "causal"):
        calls["sdpa"] = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=case == "causal")
    if case != "full":
        mod = soft_cap if case.startswith("soft cap") else None
        if case.startswith("ALiBi"):
            slope = slopes()

            def mod(score, b, h, i, j):  # type: ignore[no-untyped-def]
                return score + slope[h] * (j - i)

        mask_mod = window if case.startswith("window") else None if case == "soft cap full" else causal
        mask = mask_mod and create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cpu")
        calls["flex"] = lambda: flex(q, k, v, score_mod=mod, block_mask=mask)
    return calls


def ours(case: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    """attngen over the very same tensors: a dense HND cache, and rows as a view of q."""
    attention = attngen.Attention(
        attngen.parse(VARIANTS[case]),
        num_qo_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=DIM,
        dtype=q.dtype,
        kv=attngen.Dense(LENGTH, layout="HND"),
        limits=attngen.Limits(batch=1, q_tokens=LENGTH, kv_tokens=LENGTH),
        device="cpu",
    )
    attention.plan(qo_indptr=[0, LENGTH], kv_len=[LENGTH])
    out = torch.empty_like(q)
    rows, out_rows = (x[0].transpose(0, 1) for x in (q, out))
    arguments = {"slope": slopes()} if case.startswith("ALiBi") else {}

    def call() -> torch.Tensor:
        attention.run(rows, (k, v), out=out_rows, **arguments)
        return out

    return call


def timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(case: str, dtype: torch.dtype, rounds: int) -> dict[str, object]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, LENGTH, DIM).to(dtype) for _ in range(3))
    calls = {"attngen": ours(case, q, k, v), **peers(case, q, k, v)}
    first = {name: call() for name, call in calls.items()}
    worst = max((first["attngen"].float() - other.float()).abs().max().item() for other in first.values())
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(timed(call))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    flops = 4.0 * HEADS * LENGTH * LENGTH * DIM * WORK.get(case, 0.5)
    best = min(value for name, value in median.items() if name != "attngen")
    return {
        "case": case,
        "dtype": str(dtype).removeprefix("torch."),
        **{f"{name}_gflops": round(flops / value / 1e9, 1) for name, value in median.items()},
        "ratio_to_best_peer": round(best / median["attngen"], 3),
        "difference": worst,
    }


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    where = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "attngen": attngen.__version__,
        "heads": HEADS,
        "rows": LENGTH,
        "head_dim": DIM,
    }
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    print(f"{'case':<18}{'dtype':<10}{'attngen':>9}{'sdpa':>9}{'flex':>9}{'ratio':>8}  GFLOP/s; ratio to the best peer")
    for case in VARIANTS:
        for dtype in (torch.float32, torch.bfloat16):
            row = measure(case, dtype, options.rounds)
            figures = [row.get(f"{name}_gflops", "–") for name in ("attngen", "sdpa", "flex")]
            print(
                f"{case:<18}{row['dtype']:<10}",
                *(f"{figure:>8}" for figure in figures),
                f"{row['ratio_to_best_peer']:>7}",
            )
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps({**where, **row}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
