"""The examples of the repository, lowered to kernel sources for tests."""

from __future__ import annotations

import functools
from pathlib import Path

from attngen import compiler
from attngen.codegen.source import KernelConfig, KernelSource

ROOT = Path(__file__).parents[2]
EXAMPLES = tuple(sorted(path.stem for path in (ROOT / "examples").glob("*.attn")))
CONFIG = KernelConfig("cpu-avx512", 128, 128, "bf16", "bf16")


@functools.cache
def lowered(example: str, config: KernelConfig = CONFIG) -> tuple[KernelSource, ...]:
    """The kernels of every variant in an example; the text names the example's file and no folder."""
    text = (ROOT / "examples" / f"{example}.attn").read_text()
    module = compiler.parse(text, f"{example}.attn")
    return tuple(compiler.lower(module, name, config) for name in compiler.check_module(module))


def functor_of(source: KernelSource) -> str:
    """The name of a kernel's functor."""
    return next(line.split()[1] for line in source.files["functor.hpp"].splitlines() if line.startswith("struct "))
