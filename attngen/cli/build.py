"""`attngen build FILE…`: compile kernels ahead of time, into the cache or (`--out`) into a bundle."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any, Final

from attngen.cli.report import (
    FINE,
    Commands,
    add_kernel_options,
    add_rows,
    add_variant,
    existing,
    kernel_configs,
    progress,
    table,
)
from attngen.codegen.source import KernelConfig
from attngen.runtime import cache

_ROWS: Final = (16, 128)  # a GPU's kernels for decode and for prefill
_HEADER: Final = ("variant", "key", "seconds", "KiB", "path")
_GPU_HEADER: Final = ("variant", "rows", "key", "seconds", "KiB", "registers", "shared KiB", "spills", "path")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("build", help="compile kernels ahead of time", description=__doc__)
    add_variant(parser, many=True)
    parser.add_argument("--out", metavar="DIR", help="also copy the kernels into a bundle that needs no compiler")
    add_kernel_options(parser)
    add_rows(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Build every variant of every file and print a line a kernel."""
    from attngen import loading

    configs = kernel_configs(args, _ROWS)
    rows, folders = [], []
    for path in args.file:
        for variant in loading.load_all(existing(path)):
            for config in configs:
                with progress(f"building {variant.name}"):
                    folder = cache.entry(variant.key(config), partial(variant.lower, config))
                folders.append(folder)
                rows.append(_row(variant.name, config, folder))
    if args.out:
        cache.export(folders, args.out)
    print(table(_GPU_HEADER if configs[0].rows else _HEADER, rows))
    return FINE


def _row(name: str, config: KernelConfig, folder: Path) -> tuple[Any, ...]:
    record = json.loads((folder / "build.json").read_text())
    seconds, size = f"{record['seconds']:.1f}", record["bytes"] // 1024
    if not config.rows:
        return name, folder.name, seconds, size, folder
    figures = (record["registers"], f"{record['shared_bytes'] / 1024:.1f}", record["spills"])
    return name, config.rows, folder.name, seconds, size, *figures, folder
