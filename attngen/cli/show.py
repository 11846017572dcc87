"""`attngen show FILE --stage STAGE`: what the compiler makes of a variant at one stage."""

from __future__ import annotations

import argparse
from typing import Final

from attngen.cli.report import (
    FINE,
    CallError,
    Commands,
    add_kernel_options,
    add_rows,
    add_variant,
    kernel_configs,
    load,
)
from attngen.codegen.source import KernelConfig
from attngen.loading import LoadedVariant

_BUILT: Final = ("ptx", "sass")  # what the compiler of GPU kernels makes of the text


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("show", help="print a stage of the compilation", description=__doc__)
    add_variant(parser)
    parser.add_argument(
        "--stage", default="functor", help="ast, ir, a pass by name, functor, kernel; ptx, sass; or `list`"
    )
    add_kernel_options(parser)
    add_rows(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the text of one stage."""
    from attngen import compiler, tracing

    if args.stage == "list":
        print("\n".join((*compiler.STAGES, *_BUILT)))
        return FINE
    if args.stage not in (*compiler.STAGES, *_BUILT):
        raise CallError(f"no stage `{args.stage}`; there are {', '.join((*compiler.STAGES, *_BUILT))}")
    config, *others = kernel_configs(args, (16,))
    if others:
        raise CallError("--rows names several kernels; name one to show")
    variant = load(args.file, args.variant)
    if args.stage in _BUILT:
        print(_built(variant, config, args.stage), end="")
        return FINE
    recorder = tracing.Recorder()
    compiler.lower(variant.module, variant.name, config, recorder)
    print(recorder.texts[args.stage], end="")
    return FINE


def _built(variant: LoadedVariant, config: KernelConfig, stage: str) -> str:
    from attngen.runtime import build_cubin, cache

    if not config.rows:
        raise CallError(f"stage {stage} is of GPU targets; {config.target} is none")
    folder = cache.entry(variant.key(config), lambda: variant.lower(config))
    return build_cubin.ptx(folder) if stage == "ptx" else build_cubin.sass(folder)
