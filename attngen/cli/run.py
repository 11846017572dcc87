"""`attngen run FILE`: compile a variant, run it on a random ragged paged batch, and compare with the reference."""

from __future__ import annotations

import argparse
import json

from attngen.cli.report import FINE, CallError, Commands, add_kernel_options, add_variant, kernel_config, load, progress


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("run", help="run a variant on random data and check it", description=__doc__)
    add_variant(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_kernel_options(parser)
    add_batch_options(parser)
    parser.set_defaults(execute=execute)


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """The options that decide a random batch."""
    group = parser.add_argument_group("batch")
    group.add_argument("--requests", type=int, default=12, help="requests in the batch (default 12)")
    group.add_argument("--longest", type=int, default=1024, help="the longest cache (default 1024)")
    group.add_argument("--heads", type=int, default=8, help="query heads (default 8)")
    group.add_argument("--kv-heads", type=int, default=2, help="KV heads (default 2)")
    group.add_argument("--page-size", type=int, default=16, help="keys a page (default 16)")
    group.add_argument("--layout", choices=("NHD", "HND"), default="NHD", help="of the pool (default NHD)")
    group.add_argument("--seed", type=int, default=0, help="of the random data (default 0)")


def execute(args: argparse.Namespace) -> int:
    """Run the variant; exit 1 means that the error is above the bound."""
    from attngen import random_batch, trial

    config = kernel_config(args)
    if args.heads < 1 or args.kv_heads < 1 or args.heads % args.kv_heads:
        raise CallError(f"--heads {args.heads} is no multiple of --kv-heads {args.kv_heads}")
    if args.requests < 1 or args.longest < 1 or args.page_size < 1:
        raise CallError("--requests, --longest and --page-size must be at least 1")
    variant = load(args.file, args.variant)
    shape = random_batch.Shape(
        random_batch.ragged_requests(args.requests, args.longest, args.seed),
        num_qo_heads=args.heads,
        num_kv_heads=args.kv_heads,
        head_dim=config.head_dim,
        head_dim_v=config.head_dim_v,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        page_size=args.page_size,
        layout=args.layout,
        seed=args.seed,
    )
    with progress(f"compiling and running {variant.name}"):
        result = trial.try_variant(variant, shape, target=config.target, keys=config.keys, fast_math=config.fast_math)
    if args.json:
        print(json.dumps(result.as_json()))
    else:
        print(result.sentence())
    return FINE if result.ok else 1
