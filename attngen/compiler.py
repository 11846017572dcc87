"""READ THIS FIRST: the compiler as one straight function, from a syntax tree to the text of a kernel.

The names of the stages of `lower` are the names that `attngen show --stage` takes, that ATTNGEN_DEBUG=3 prints and
that ATTNGEN_DUMP_DIR writes.  Users load variants through `attngen.loading`, which imports this module (and with it the
parser) only when the cache does not hold what they ask for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attngen import dsl, env, ir
from attngen.codegen.generate import generate
from attngen.codegen.source import KernelConfig, KernelSource
from attngen.dsl.ast import Module
from attngen.errors import AttnError, Diagnostic
from attngen.ir.nodes import Variant
from attngen.tracing import Trace, environment_trace, no_trace

__all__ = ["STAGES", "build", "check", "check_module", "environment_trace", "lower", "parse"]

STAGES: Final = ("ast", "ir", "specialise", *(rewrite.__name__ for rewrite in ir.PASSES), "functor", "kernel")


def lower(module: Module, name: str, config: KernelConfig, trace: Trace = no_trace) -> KernelSource:
    """The kernel of one variant in one configuration; raises AttnError with every mistake that a stage finds."""
    trace("ast", module)
    variant = trace("ir", build(module, name))
    with ir.limited_depth(variant.span, module.sources):
        variant = trace("specialise", ir.specialise(variant, config.head_dim, config.head_dim_v))
        for rewrite in ir.PASSES:
            variant = trace(rewrite.__name__, rewrite(variant))
            if env.check_ir():
                ir.validate(variant, rewrite.__name__)
        source = trace("functor", generate(variant, config))
    return trace("kernel", source)


def parse(source: Path | str, filename: str | None = None) -> Module:
    """The syntax tree of a file (a Path) or of a text that `filename` names, with everything that it imports."""
    return dsl.parse_module(source, filename)


def build(module: Module, name: str) -> Variant:
    """The typed IR of one variant, validated: what the reference evaluates and the passes start from."""
    variant = ir.build(module, name)
    with ir.limited_depth(variant.span, module.sources):
        ir.validate(variant)
    return variant


def check(path: Path | str) -> list[Diagnostic]:
    """Every mistake in a file and in all its variants; empty where there is none."""
    try:
        check_module(parse(Path(path)))
    except AttnError as error:
        return list(error.diagnostics)
    return []


def check_module(module: Module) -> tuple[str, ...]:
    """The names of the variants, in order; raises AttnError with the mistakes of all of them and of all helpers."""
    return tuple(variant.name for variant in ir.build_all(module))
