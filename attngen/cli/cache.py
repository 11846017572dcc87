"""`attngen cache ls|path|clear`: the compiled kernels on this machine."""

from __future__ import annotations

import argparse

from attngen import env
from attngen.cli.report import FINE, Commands, table
from attngen.runtime import cache


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("cache", help="list or clear compiled kernels", description=__doc__)
    parser.add_argument("action", choices=("ls", "path", "clear"), help="list, print the folder, or remove all")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """List, locate or clear the cache."""
    if args.action == "path":
        print(env.cache_dir())
    elif args.action == "clear":
        print(f"removed {cache.clear()} entries from {env.cache_dir()}")
    else:
        rows = [
            (path.name, record["what"], f"{record['seconds']:.1f}", record["bytes"] // 1024)
            for path, record in cache.entries()
        ]
        print(table(("key", "what", "seconds", "KiB"), rows))
    return FINE
