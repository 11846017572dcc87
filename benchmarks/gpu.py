"""The GPU engine beside FlashInfer's fa2 path: the same tensors, one process, in turn.

    python benchmarks/gpu.py [--only decode,causal] [--rounds 3] [--no-peer] [--no-host] [--out ROWS.jsonl]
    python benchmarks/gpu.py --only causal --tiles 128:64,4,2,2 128:32,4,2,2      # other tiles than the ladder's
    python benchmarks/gpu.py --dry-run                                            # tries the script on a CPU

CUDA-graph replay behind a flush of the L2, the median of 21, in `--rounds` rounds in which the candidates take turns,
each after the same rest.  `us` is the median of the rounds, `relerr` against the plain algorithm in fp32.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_host
import gpu_peers
import gpu_tiles
import torch
from gpu_cases import CASES, TINY, Batch, Call, Case, error, ours
from gpu_timing import DryTimer, Timer

import attngen

PEER = "flashinfer fa2"
LARGEST_ERROR = {False: 5e-3, True: 2e-2}  # of bf16 operands, of these with fast_math

Row = dict[str, Any]


def candidates(case: Case, batch: Batch, options: argparse.Namespace) -> dict[str, Callable[[], tuple[Any, Call]]]:
    """What to time, by name; each makes a call, and the Attention where there is one."""
    found: dict[str, Callable[[], tuple[Any, Call]]] = {}
    if options.peer:
        found[PEER] = lambda: (None, gpu_peers.flashinfer_fa2(case, batch))
    fast = [True, False] if case.kind == "soft cap" else [False]
    for tile in options.tiles or [None]:
        for fast_math in fast:
            name = "attngen" + (" fast_math" if fast_math else "") + (f" {tile.text}" if tile else "")
            found[name] = functools.partial(_ours, case, batch, fast_math, tile)
    return found


def _ours(case: Case, batch: Batch, fast_math: bool, tile: gpu_tiles.Forced | None) -> tuple[Any, Call]:
    with gpu_tiles.forced(tile):
        return ours(case, batch, fast_math)


def measure(case: Case, batch: Batch, timer: Any, options: argparse.Namespace) -> list[Row]:
    """A row a candidate; one that fails has an `error` and the others still count."""
    rows: dict[str, Row] = {}
    replays: dict[str, Callable[[], object]] = {}
    kept = []  # an Attention and its tensors must outlive their graph
    for name, make in candidates(case, batch, options).items():
        rows[name] = {"case": case.name, "name": name}
        try:
            start = time.perf_counter()
            made, call = make()
            out = call()
            _synchronize(batch.device)
            rows[name] |= {"first_s": round(time.perf_counter() - start, 2), "relerr": _rounded(error(batch, out))}
            rows[name] |= describe(made)
            replays[name] = timer.capture(call)
            kept.append((made, call))
        except Exception as fault:
            rows[name]["error"] = f"{type(fault).__name__}: {fault}"[:400]
    times: dict[str, list[float]] = {name: [] for name in replays}
    clocks: dict[str, list[int | None]] = {name: [] for name in replays}
    for _ in range(options.rounds):
        for name, replay in replays.items():
            microseconds, clock = timer.series(replay, options.rest)
            times[name].append(microseconds)
            clocks[name].append(clock)
    for name, values in times.items():
        rows[name] |= figures(case, values) | {"sm_mhz": clocks[name]}
    best = min((rows[name]["us"] for name in times if name == PEER), default=None)
    for name in times:
        if best and name != PEER:
            rows[name]["ratio"] = round(best / rows[name]["us"], 3)
    return list(rows.values())


def figures(case: Case, times: list[float]) -> Row:
    """The time of a candidate and what it comes to."""
    us = statistics.median(times)
    row: Row = {"us": round(us, 2), "us_rounds": [round(value, 2) for value in times]}
    if case.decode:
        return row | {"gbs": round(case.kv_bytes / us / 1e3, 1)}
    return row | {"tflops": round(case.flops / us / 1e6, 1)}


def describe(made: Any) -> Row:
    """The kernels of an Attention and the shape of its plan, as far as they can be told."""
    if made is None:
        return {}
    kernels = getattr(made, "kernels", None) or [made.kernel]
    fields = ("warps", "stages", "ctas_per_sm", "registers", "spills")
    row: Row = {
        "kernels": [
            {
                "tiles": [[tile.rows, tile.keys] for tile in kernel.manifest.tiles],
                **{field: getattr(kernel.manifest, field, None) for field in fields},
            }
            for kernel in kernels
        ]
    }
    try:
        plan = made.plan_stats()
    except Exception as fault:
        return row | {"plan": f"{type(fault).__name__}: {fault}"[:160]}
    return row | {"plan": {key: value for key, value in plan.items() if isinstance(value, (int, float, str))}}


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of the last table: ratios are FlashInfer's time over attngen's."""
    yield f"{'case':<28}{'candidate':<34}{'us':>9}{'TFLOP/s':>9}{'GB/s':>8}{'ratio':>7}{'relerr':>9}  SM MHz"
    for row in rows:
        head = f"{row['case']:<28}{row['name']:<34}"
        if "error" in row:
            yield head + row["error"][:120]
            continue
        clock = "/".join(str(value) for value in row["sm_mhz"] if value)
        cells = (f"{row.get(key, '–'):>{width}}" for key, width in (("us", 9), ("tflops", 9), ("gbs", 8), ("ratio", 7)))
        yield head + "".join(cells) + f"{row['relerr']:>9}  {clock}" + ("" if is_right(row) else "  WRONG")


def is_right(row: Row) -> bool:
    """Whether a candidate's output is what it must be."""
    return row["relerr"] <= LARGEST_ERROR["fast_math" in row["name"] or row["name"] == PEER]


def host_line(row: Row) -> str:
    """A row of host figures as a line."""
    return f"{row['case']:<34}" + "  ".join(f"{key} {value}" for key, value in row.items() if key != "case")


def selected(options: argparse.Namespace) -> list[Case]:
    """The cases of --only: each word is a kind, or else a part of a name."""
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    cases = TINY if options.dry_run else CASES
    kinds = {case.kind for case in cases}
    return [
        case
        for case in cases
        if not words or any(word == case.kind if word in kinds else word in case.name for word in words)
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.2e}") if math.isfinite(value) else value


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _where(options: argparse.Namespace) -> Row:
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": "none" if options.dry_run else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "attngen": attngen.__version__,
        "flashinfer": gpu_peers.version() if options.peer else None,
    }


def main() -> int:
    """Exit status 1 where attngen's output was wrong or missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kinds, or parts of names: 'decode,soft cap,4 x 4096'")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help="time FlashInfer too")
    parser.add_argument("--host", action=argparse.BooleanOptionalAction, default=True, help="host costs and starts too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=1.5, help="seconds of rest before each candidate")
    parser.add_argument("--tiles", nargs="*", type=gpu_tiles.parse, help="rows:keys,warps,stages,ctas, each tried")
    parser.add_argument("--out", type=Path, help="append the rows to this file")
    parser.add_argument("--dry-run", action="store_true", help="tiny cases on the CPU, without FlashInfer")
    options = parser.parse_args()
    if options.dry_run:
        options.peer = options.host = False
    device = torch.device("cpu" if options.dry_run else "cuda")
    if options.peer and gpu_peers.version() is None:
        parser.error("FlashInfer isn't installed: --no-peer times attngen alone")
    where, cases = _where(options), selected(options)
    print(", ".join(f"{key} {value}" for key, value in where.items()), flush=True)
    if options.peer and cases:
        start = time.perf_counter()
        gpu_peers.compile_modules(cases)
        print(f"FlashInfer's modules: {time.perf_counter() - start:.1f} s", flush=True)

    def keep(row: Row) -> None:
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({**where, **row}) + "\n")

    timer = DryTimer() if options.dry_run else Timer()
    rows: list[Row] = []
    for case in cases:
        torch.manual_seed(0)
        for row in measure(case, Batch(case, device), timer, options):
            print(json.dumps(row), flush=True)
            keep(row)
            rows.append(row)
        gc.collect()
        torch.cuda.empty_cache()
    hosts: list[Row] = []
    for row in gpu_host.rows(device, options.peer) if options.host else ():
        print(json.dumps(row), flush=True)
        keep(row)
        hosts.append(row)
    print("\n".join(["", *table(rows), *map(host_line, hosts)]), flush=True)
    own = [row for row in rows if row["name"] != PEER]
    return int(any("error" in row or not is_right(row) for row in own))


if __name__ == "__main__":
    sys.exit(main())
