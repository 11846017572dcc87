"""`attngen check FILE…`: every mistake in some variants, for people or (`--json`) for editors."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from attngen.cli.report import BAD_VARIANT, FINE, Commands, add_variant, existing
from attngen.errors import AttnError, Diagnostic, render


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("check", help="report the mistakes in variants", description=__doc__)
    add_variant(parser, many=True)
    parser.add_argument("--json", action="store_true", help="print one JSON list of diagnostics")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Check every file; nothing is compiled."""
    from attngen import compiler

    found: list[Diagnostic] = []
    sources: dict[str, str] = {}
    for path in args.file:
        try:
            compiler.check_module(compiler.parse(existing(path)))
        except AttnError as error:
            found += [diagnostic for diagnostic in error.diagnostics if diagnostic not in found]
            sources |= error.sources
    if args.json:
        print(json.dumps([asdict(diagnostic) for diagnostic in found], indent=1))
    elif found:
        print("\n\n".join(render(diagnostic, sources) for diagnostic in found))
    return BAD_VARIANT if found else FINE
