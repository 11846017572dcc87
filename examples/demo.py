"""Compile three variants from cold, run a ragged paged batch of each, and compare with an fp64 reference."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import attngen
from attngen.cli.report import progress, table
from attngen.random_batch import Shape, ragged_requests
from attngen.runtime import host
from attngen.trial import Trial, plan_batch, try_variant

EXAMPLES = Path(__file__).parent
VARIANTS = ("gemma2.attn", "gpt_oss.attn", "alibi.attn")
SHAPE = Shape(ragged_requests(16, 4096), num_qo_heads=8, num_kv_heads=2, head_dim=128, dtype="bf16", page_size=16)
HEADER = ("variant", "compile s", "run ms", "error vs fp64", "bound", "ok")


def line(trial: Trial) -> tuple[str, ...]:
    """A row of the table."""
    verdict = trial.verdict
    times = (f"{trial.compile_s:.1f}", f"{trial.run_ms:.2f}")
    return (trial.variant, *times, f"{verdict.error:.2e}", f"{verdict.bound:.2e}", "yes" if trial.ok else "NO")


def main() -> int:
    """Print the table and draw the plan of the first variant; 0 only if every error is within its bound."""
    trials = []
    with tempfile.TemporaryDirectory(prefix="attngen-demo-") as cache:
        os.environ["ATTNGEN_CACHE_DIR"] = cache
        started = time.perf_counter()
        with progress("building the host library"):
            host.library()
        print(f"host library: built in {time.perf_counter() - started:.1f} s, once a machine")
        for file in VARIANTS:
            with progress(f"compiling and running {file}"):
                trials.append(try_variant(attngen.load(EXAMPLES / file), SHAPE))
        attn, _ = plan_batch(attngen.load(EXAMPLES / VARIANTS[0]), SHAPE)
        attn.plan_report("plan.html")
    lengths = sorted(kv for _, kv in SHAPE.requests)
    print(
        f"{len(lengths)} requests, caches of {lengths[0]} to {lengths[-1]} keys in pages of {SHAPE.page_size}, ", end=""
    )
    print(f"{SHAPE.num_qo_heads} query and {SHAPE.num_kv_heads} KV heads of {SHAPE.head_dim}, {SHAPE.dtype}\n")
    print(table(HEADER, [line(trial) for trial in trials]))
    print(f"\nThe plan of {trials[0].variant} is drawn in plan.html.")
    return 0 if all(trial.ok for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
