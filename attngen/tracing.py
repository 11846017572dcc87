"""Watching a compilation: every stage hands its result to a trace, under the stage's name."""

from __future__ import annotations

import pprint
import sys
from pathlib import Path
from typing import Protocol, TypeVar

from attngen import env
from attngen.codegen.source import KernelSource
from attngen.ir.nodes import Variant
from attngen.ir.printer import print_variant

T = TypeVar("T")


class Trace(Protocol):
    """What `lower` calls after each stage; gives the value back."""

    def __call__(self, stage: str, value: T) -> T:
        """See the result of a stage."""
        ...


def no_trace(stage: str, value: T) -> T:
    """See nothing."""
    return value


class Recorder:
    """Keeps the text of every stage, in order."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def __call__(self, stage: str, value: T) -> T:
        """Keep the text of the stage."""
        self.texts[stage] = render(stage, value)
        return value


class EnvironmentTrace:
    """Prints stages to stderr and writes them to a folder, as ATTNGEN_DEBUG and ATTNGEN_DUMP_DIR ask."""

    def __init__(self, debug: int, folder: Path | None) -> None:
        self.debug = debug
        self.folder = folder
        self.count = 0

    def __call__(self, stage: str, value: T) -> T:
        """Print and write the stage, where asked."""
        generated = stage in ("functor", "kernel")
        if self.debug >= (4 if generated else 3):
            print(f"--- {stage} ---\n{render(stage, value)}", file=sys.stderr)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            suffix = {"functor": "hpp", "kernel": "cpp"}.get(stage, "txt")
            (self.folder / f"{self.count:02d}_{stage}.{suffix}").write_text(render(stage, value))
        self.count += 1
        return value


def environment_trace(name: str) -> Trace:
    """The trace that the environment asks for; dumps of one kernel share a folder of that name."""
    folder = env.dump_dir()
    if folder is None and env.debug() < 3:
        return no_trace
    return EnvironmentTrace(env.debug(), folder / name if folder else None)


def render(stage: str, value: object) -> str:
    """The text of a stage's result: a tree, printed IR, or the generated files."""
    match value:
        case Variant():
            return print_variant(value).rstrip() + "\n"
        case KernelSource():
            chosen = {name: text for name, text in value.files.items() if (name == value.main) == (stage == "kernel")}
            return "\n".join(text.rstrip() + "\n" for text in chosen.values())
        case _:
            return pprint.pformat(value, width=120) + "\n"
