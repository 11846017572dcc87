"""What the host pays on a GPU: plan(), a run() call, and cold and warm starts of kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import gpu_peers
import torch
from gpu_cases import Batch, Case, attention, ours
from gpu_timing import host_microseconds

PLAN_CALLS, RUN_CALLS = 100, 200
REQUESTS = (1, 16, 64, 256)
LENGTH = 4096

# A fresh process with torch's CUDA context already there: seconds to import attngen, and of each construction.
START = """
import json, sys, time
import torch
torch.zeros(1, device="cuda")
begin = time.perf_counter()
import attngen
seconds = {"import": time.perf_counter() - begin}
sizes = dict(num_qo_heads=64, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16, device="cuda")
decode = dict(kv=attngen.Paged(page_size=16), limits=attngen.Limits(batch=1, q_tokens=1, kv_tokens=64))
prefill = dict(kv=attngen.Ragged(), limits=attngen.Limits(batch=1, q_tokens=4096, kv_tokens=4096))
for name, shape in (("decode", decode), ("prefill", prefill)):
    if name not in sys.argv[2:]:
        continue
    begin = time.perf_counter()
    attention = attngen.Attention(attngen.load(sys.argv[1]), **sizes, **shape)
    seconds[name] = time.perf_counter() - begin
    begin = time.perf_counter()
    q = torch.randn(1, 64, 128, device="cuda").bfloat16()
    pool = torch.randn(*((4, 16) if name == "decode" else (64,)), 8, 128, device="cuda").bfloat16()
    lists = dict(kv_indptr=[0, 64])
    if name == "decode":
        lists = dict(kv_indptr=[0, 4], kv_indices=[0, 1, 2, 3], kv_len=[64])
    attention.plan(qo_indptr=[0, 1], **lists)
    attention.run(q, (pool, pool))
    torch.cuda.synchronize()
    seconds[name + "_first_run"] = time.perf_counter() - begin
print("SECONDS", json.dumps({key: round(value, 3) for key, value in seconds.items()}))
"""


def rows(device: torch.device, peer: bool) -> Iterator[dict[str, Any]]:
    """Rows of plan and run times, then of starts."""
    for requests in REQUESTS:
        yield _plan_row(Case("decode", requests, LENGTH, 64, 8), device, peer)
    yield _run_row(Case("decode", 16, 1024, 64, 8), device, peer)
    yield from _start_rows()


def _plan_row(case: Case, device: torch.device, peer: bool) -> dict[str, Any]:
    batch, made = Batch(case, device), None
    made = attention(case, batch)
    lists = {"qo_indptr": batch.qo_indptr, "kv_indptr": batch.kv_indptr, "kv_len": batch.kv_len}
    here, there = batch.kv_indices, batch.kv_indices.to(device)
    row: dict[str, Any] = {"case": f"plan() {case.batch} requests"}
    row["attngen_us"] = _measured(lambda: made.plan(**lists, kv_indices=there), PLAN_CALLS)
    row["attngen_host_indices_us"] = _measured(lambda: made.plan(**lists, kv_indices=here), PLAN_CALLS)
    if peer:
        row["flashinfer_us"] = _measured(gpu_peers.decode_plan(case, batch)[1], PLAN_CALLS)
    return row


def _run_row(case: Case, device: torch.device, peer: bool) -> dict[str, Any]:
    batch = Batch(case, device)
    row: dict[str, Any] = {"case": "run(), host time of a call"}
    row["attngen_us"] = _measured(ours(case, batch)[1], RUN_CALLS)
    if peer:
        row["flashinfer_us"] = _measured(gpu_peers.flashinfer_fa2(case, batch), RUN_CALLS)
    return row


def _measured(call: Any, calls: int) -> float | str:
    try:
        return round(host_microseconds(call, calls), 1)
    except Exception as fault:  # a path that isn't there yet must not cost the other figures
        return f"{type(fault).__name__}: {fault}"[:160]


def _start_rows() -> Iterator[dict[str, Any]]:
    """One fresh cache: the first start builds the host library, the cold one its kernels, the warm one nothing.

    Decode first, so that a prefill start finds the decode kernel where its Attention takes both.
    """
    with tempfile.TemporaryDirectory() as cache:
        for case, example, parts in (
            ("first of all", "softmax", ("decode",)),
            ("cold", "causal", ("decode", "prefill")),
            ("warm", "causal", ("decode", "prefill")),
            ("cold", "soft_cap", ("decode", "prefill")),
            ("warm", "soft_cap", ("decode", "prefill")),
        ):
            yield {"case": f"start, {case}, {example}", **_start(cache, example, parts)}


def _start(cache: str, example: str, parts: tuple[str, ...]) -> dict[str, Any]:
    from gpu_cases import EXAMPLES

    command = [sys.executable, "-c", START, str(EXAMPLES / f"{example}.attn"), *parts]
    done = subprocess.run(command, env={**os.environ, "ATTNGEN_CACHE_DIR": cache}, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("SECONDS ")]
    if not found:
        return {"error": done.stderr[-300:]}
    return {f"{name}_s": value for name, value in json.loads(found[0].removeprefix("SECONDS ")).items()}
