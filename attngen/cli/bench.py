"""`attngen bench [plan] FILE`: how long run() takes on a uniform batch, or (`plan`) how long plan() does."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from attngen.cli.report import FINE, CallError, Commands, add_kernel_options, kernel_config, load, progress


def add(commands: Commands) -> None:
    """Add the command."""
    usage = "%(prog)s [-h] [options] [plan] FILE"
    parser = commands.add_parser("bench", usage=usage, help="time run() or plan()", description=__doc__)
    parser.add_argument("words", metavar="[plan] FILE", nargs="+", help="what to time (run by default), and a variant")
    parser.add_argument("--variant", metavar="NAME", help="which variant, where the file holds several")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to measure (default 1)")
    group = parser.add_argument_group("batch")
    group.add_argument("--batch", type=int, default=16, help="requests (default 16)")
    group.add_argument("--q-len", type=int, default=1, help="queries a request (default 1: decode)")
    group.add_argument("--kv-len", type=int, default=2048, help="keys a request (default 2048)")
    group.add_argument("--heads", type=int, default=8, help="query heads (default 8)")
    group.add_argument("--kv-heads", type=int, default=2, help="KV heads (default 2)")
    group.add_argument("--page-size", type=int, default=16, help="keys a page (default 16)")
    add_kernel_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Measure and print the median, the fastest and the number of calls."""
    from attngen import random_batch, trial

    what, file = args.words if len(args.words) == 2 else ("run", args.words[0])
    if what not in ("run", "plan") or len(args.words) > 2:
        raise CallError("usage: attngen bench [plan] FILE")
    if min(args.batch, args.q_len, args.heads, args.kv_heads, args.page_size) < 1 or args.heads % args.kv_heads:
        raise CallError("--batch, --q-len, --heads, --kv-heads and --page-size must be at least 1, heads a multiple")
    config = kernel_config(args)
    shape = random_batch.Shape(
        ((args.q_len, args.kv_len),) * args.batch,
        num_qo_heads=args.heads,
        num_kv_heads=args.kv_heads,
        head_dim=config.head_dim,
        head_dim_v=config.head_dim_v,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        page_size=args.page_size,
    )
    variant = load(file, args.variant)
    options = {"target": config.target, "keys": config.keys, "fast_math": config.fast_math}
    with progress(f"timing {what} of {variant.name}"):
        attn, batch = trial.plan_batch(variant, shape, **options)
        for_plan, for_run = trial.split_parameters(attn, batch.params)
        lengths = batch.plan_arguments() | for_plan
        pools, out = (batch.k_pool, batch.v_pool), batch.outputs()[0]
        calls: dict[str, Callable[[], Any]] = {
            "plan": lambda: attn.plan(**lengths),
            "run": lambda: attn.run(batch.q, pools, out=out, **for_run),
        }
        times = measure(calls[what], args.seconds)
    median, fastest = 1e6 * statistics.median(times), 1e6 * min(times)
    if args.json:
        named = {"variant": variant.name, "target": config.target, "what": what, "calls": len(times)}
        print(json.dumps(named | {"median_us": median, "fastest_us": fastest}))
    else:
        print(f"{what} of {variant.name} on {config.target}: median {median:.1f} µs", end="")
        print(f", fastest {fastest:.1f} µs, {len(times)} call{'s' * (len(times) > 1)}")
    return FINE


def measure(call: Callable[[], Any], seconds: float) -> list[float]:
    """The durations of as many calls as fit, after two that warm up."""
    call(), call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times
