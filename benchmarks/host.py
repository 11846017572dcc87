"""What the host pays: plan() by batch size, the smallest run(), cold and warm start.

    python benchmarks/host.py [--json benchmarks/results/NAME.jsonl]

plan() and run() are medians over many calls in this process.  The starts are fresh processes: the first with an empty
cache, which builds the host library too; cold ones where only the kernel is missing; warm ones where nothing is.  Times
in a start are beyond `import torch`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import attngen

EXAMPLES = Path(__file__).parent.parent / "examples"
PAGE, MEAN_LENGTH = 16, 1024

START = """
import sys, time
import torch
begin = time.perf_counter()
import attngen
imported = time.perf_counter()
attention = attngen.Attention(
    attngen.load(sys.argv[1]), num_qo_heads=8, num_kv_heads=2, head_dim=128, dtype=torch.bfloat16,
    kv=attngen.Paged(page_size=16), limits=attngen.Limits(batch=1, q_tokens=1, kv_tokens=16), device="cpu")
made = time.perf_counter()
attention.plan(qo_indptr=[0, 1], kv_indptr=[0, 1], kv_indices=[0], kv_len=[16])
q, pool = torch.randn(1, 8, 128).bfloat16(), torch.randn(1, 16, 2, 128).bfloat16()
attention.run(q, (pool, pool))
end = time.perf_counter()
print(imported - begin, made - imported, end - made, end - begin)
"""


def microseconds(call: Callable[[], object], calls: int) -> float:
    """The median time of a call."""
    for _ in range(20):
        call()
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def serving(requests: int) -> tuple[attngen.Attention, dict[str, torch.Tensor], torch.Tensor]:
    """A decode batch of causal attention over pages, its plan arguments, and its queries."""
    generator = torch.Generator().manual_seed(0)
    kv_len = torch.randint(MEAN_LENGTH // 2, MEAN_LENGTH * 3 // 2, (requests,), generator=generator, dtype=torch.int32)
    pages = (kv_len + PAGE - 1) // PAGE
    kv_indptr = torch.zeros(requests + 1, dtype=torch.int32)
    kv_indptr[1:] = pages.cumsum(0)
    total = int(kv_indptr[-1])
    attention = attngen.Attention(
        attngen.load(EXAMPLES / "causal.attn"),
        num_qo_heads=8,
        num_kv_heads=2,
        head_dim=128,
        dtype=torch.bfloat16,
        kv=attngen.Paged(page_size=PAGE),
        limits=attngen.Limits(batch=requests, q_tokens=requests, kv_tokens=int(kv_len.sum())),
        device="cpu",
    )
    arguments = {
        "qo_indptr": torch.arange(requests + 1, dtype=torch.int32),
        "kv_indptr": kv_indptr,
        "kv_indices": torch.randperm(total, generator=generator).to(torch.int32),
        "kv_len": kv_len,
    }
    return attention, arguments, torch.randn(requests, 8, 128).bfloat16()


def plan_times() -> dict[str, float]:
    rows = {}
    for requests in (1, 16, 64, 256):
        attention, arguments, _ = serving(requests)
        rows[f"plan_{requests}_us"] = round(microseconds(lambda: attention.plan(**arguments), 300), 1)  # noqa: B023
    return rows


def run_time() -> dict[str, float]:
    """The smallest work there is: one request with one key."""
    attention, _, q = serving(1)
    attention.plan(qo_indptr=[0, 1], kv_indptr=[0, 1], kv_indices=[0], kv_len=[1])
    pool, out = torch.randn(1, PAGE, 2, 128).bfloat16(), torch.empty_like(q)
    return {"run_smallest_us": round(microseconds(lambda: attention.run(q, (pool, pool), out=out), 2000), 1)}


def start(cache: str, example: Path) -> dict[str, float]:
    """Seconds of a fresh process: import, construction (compiles when cold), plan and first run, all of it."""
    environment = {**os.environ, "ATTNGEN_CACHE_DIR": cache}
    command = [sys.executable, "-c", START, str(example)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(zip(("import", "construct", "first_run", "total"), map(float, printed.split()), strict=True))


def start_times() -> dict[str, float]:
    """One cache: the first start builds the host library too, the others only their kernel, the warm ones nothing."""
    rows = {}
    with tempfile.TemporaryDirectory() as cache:
        runs = [("first", "softmax")] + [
            (kind, name) for name in ("causal", "gemma2", "rope") for kind in ("cold", "warm")
        ]
        for kind, name in runs:
            seconds = start(cache, EXAMPLES / f"{name}.attn")
            rows.update({f"{kind}_{name}_{part}_s": round(value, 3) for part, value in seconds.items()})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append the row to this file")
    options = parser.parse_args()
    row = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "attngen": attngen.__version__}
    row |= {"threads": torch.get_num_threads()} | plan_times() | run_time() | start_times()
    for name, value in row.items():
        print(f"{name:<32}{value}")
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
