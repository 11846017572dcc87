"""`attngen build FILE…`: compile kernels ahead of time, into the cache or (`--out`) into a bundle."""

from __future__ import annotations

import argparse
import json
from functools import partial

from attngen.cli.report import FINE, Commands, add_kernel_options, add_variant, existing, kernel_config, progress, table
from attngen.runtime import cache


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("build", help="compile kernels ahead of time", description=__doc__)
    add_variant(parser, many=True)
    parser.add_argument("--out", metavar="DIR", help="also copy the kernels into a bundle that needs no compiler")
    add_kernel_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Build every variant of every file and print a line a kernel."""
    from attngen import loading

    config = kernel_config(args)
    rows, folders = [], []
    for path in args.file:
        for variant in loading.load_all(existing(path)):
            with progress(f"building {variant.name}"):
                folder = cache.entry(variant.key(config), partial(variant.lower, config))
            folders.append(folder)
            record = json.loads((folder / "build.json").read_text())
            rows.append((variant.name, folder.name, f"{record['seconds']:.1f}", record["bytes"] // 1024, folder))
    if args.out:
        cache.export(folders, args.out)
    print(table(("variant", "key", "seconds", "KiB", "path"), rows))
    return FINE
