"""`attngen show FILE --stage STAGE`: what the compiler makes of a variant at one stage."""

from __future__ import annotations

import argparse

from attngen.cli.report import (
    FINE,
    GPU,
    CallError,
    Commands,
    add_kernel_options,
    add_variant,
    kernel_config,
    load,
)
from attngen.errors import EnvironmentFault


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("show", help="print a stage of the compilation", description=__doc__)
    add_variant(parser)
    parser.add_argument("--stage", default="functor", help="ast, ir, a pass by name, functor or kernel; or `list`")
    add_kernel_options(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the text of one stage."""
    from attngen import compiler, tracing

    if args.stage in ("ptx", "sass"):
        raise EnvironmentFault(f"stage {args.stage}: {GPU}")
    if args.stage == "list":
        print("\n".join(compiler.STAGES))
        return FINE
    if args.stage not in compiler.STAGES:
        raise CallError(f"no stage `{args.stage}`; there are {', '.join(compiler.STAGES)}")
    variant = load(args.file, args.variant)
    recorder = tracing.Recorder()
    compiler.lower(variant.module, variant.name, kernel_config(args), recorder)
    print(recorder.texts[args.stage], end="")
    return FINE
