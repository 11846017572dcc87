"""Loading variants: the warm path, which opens finished entries of the cache and imports no parser and no compiler.

A source closure (a file and what it imports) that was once checked without a mistake leaves a stamp in the cache, and a
kernel that was once built leaves an entry.  Where both are found, nothing is parsed and nothing is lowered.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from attngen import env
from attngen.codegen.source import KernelConfig, KernelSource
from attngen.codegen.target import TARGETS
from attngen.runtime import cache
from attngen.runtime.module import Kernel, load_kernel
from attngen.runtime.toolchain import resolve_target

if TYPE_CHECKING:
    from attngen.dsl.ast import Module
    from attngen.ir.nodes import Variant

_IMPORT: Final = re.compile(r"""^[ \t]*from[ \t]+(?:"([^"\n]+)"|'([^'\n]+)')[ \t]+import\b""", re.MULTILINE)
TEXT: Final = "<text>"  # the path of a variant that lies in no file


@dataclass(frozen=True)
class LoadedVariant:
    """A checked variant, ready to be compiled for any configuration.

    `sources` is the text of every file of its closure by path, the root first.
    """

    name: str
    path: str
    sources: dict[str, str] = field(repr=False)
    closure_key: str = field(repr=False)

    @cached_property
    def module(self) -> Module:
        """The syntax tree of the texts that were loaded; parses on first use."""
        if _closure(self.path, self.sources[self.path]) != self.sources:
            raise ValueError(f"a file that {self.path} imports has changed since it was loaded: load it again")
        return _parse(self.path, self.sources[self.path])

    @cached_property
    def ir(self) -> Variant:
        """The typed IR before any pass; built on first use."""
        variant: Variant = _compiler().build(self.module, self.name)
        return variant

    def lower(self, config: KernelConfig) -> KernelSource:
        """The text of the kernel for a configuration; dumps the stages that the environment asks for."""
        compiler = _compiler()
        trace = compiler.environment_trace(self.name)
        source: KernelSource = compiler.lower(self.module, self.name, config, trace)
        return source

    def key(self, config: KernelConfig) -> str:
        """The front key: everything that the kernel's text depends on, known without making the text."""
        return cache.make_key(self.closure_key, self.name, json.dumps(asdict(config), sort_keys=True))

    def compile(self, config: KernelConfig) -> Kernel:
        """The kernel, built where the cache doesn't have it; target "cpu" is the best that this machine can run."""
        targets = [(row.name, row.isa) for row in TARGETS.values()]
        config = replace(config, target=resolve_target(config.target, targets))
        return load_kernel(cache.entry(self.key(config), lambda: self.lower(config)))


class NoSuchVariant(ValueError):
    """The file is right, but the variant asked for can't be chosen in it."""


def load(path: str | os.PathLike[str], name: str | None = None) -> LoadedVariant:
    """The variant of that name (needed where there are several) in a file; raises AttnError where it is wrong."""
    return _select(load_all(path), str(path), name)


def parse(text: str, name: str | None = None) -> LoadedVariant:
    """Like `load`, from text; its imports are relative to the current folder."""
    return _select(_checked(TEXT, TEXT, _closure(TEXT, text)), "the text", name)


def _closure(root: str, text: str | None) -> dict[str, str]:
    """The files that the parser would read, found by their import lines alone; unreadable ones are left to it."""
    sources: dict[str, str] = {} if text is None else {root: text}
    pending = [root] if text is not None else []
    while pending:
        importing = pending.pop(0)
        folder = Path.cwd() if importing == TEXT else Path(importing).parent
        for double, single in _IMPORT.findall(sources[importing]):
            path = Path(os.path.normpath(folder / (double or single)))
            if str(path) not in sources and (text := _read(path)) is not None:
                sources[str(path)] = text
                pending.append(str(path))
    return sources


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def load_all(path: str | os.PathLike[str]) -> list[LoadedVariant]:
    """Every variant of a file, in order; raises AttnError where one is wrong."""
    root = Path(path).absolute()
    sources = _closure(str(root), _read(root))
    if not sources:
        _compiler().parse(Path(path))  # raises, and says why it can't be read
    return _checked(str(root), os.fspath(path), sources)


def _select(variants: list[LoadedVariant], path: str, name: str | None) -> LoadedVariant:
    """The variant of that name, or the only one."""
    for variant in variants:
        if variant.name == name or (name is None and len(variants) == 1):
            return variant
    names = ", ".join(variant.name for variant in variants)
    if not variants:
        raise NoSuchVariant(f"{path} holds no `attention` block")
    if name is None:
        raise NoSuchVariant(f"{path} holds several variants ({names}): name one (command line: --variant)")
    raise NoSuchVariant(f"{path} holds no variant `{name}`; it has {names}")


def _checked(path: str, shown: str, sources: dict[str, str]) -> list[LoadedVariant]:
    """The variants of a closure, checked now unless a stamp says that they were; mistakes name the path as `shown`."""
    folder = str(Path(path).parent)
    named = ((os.path.relpath(file, folder), text) for file, text in sources.items())
    key = cache.make_key(*(part for pair in named for part in pair))
    names = _read_stamp(key)
    if names is None:
        names = list(_compiler().check_module(_parse(shown, sources[path])))
        _write_stamp(key, names)
    return [LoadedVariant(name, path, sources, key) for name in names]


def _parse(path: str, text: str) -> Module:
    module: Module = _compiler().parse(text, None if path == TEXT else path)
    return module


def _compiler() -> ModuleType:
    """The compiler, imported on the first miss: a warm start must not pay for the parser and pydantic."""
    return importlib.import_module("attngen.compiler")


def _stamp(key: str) -> Path:
    return env.cache_dir() / ".checked" / key


def _read_stamp(key: str) -> list[str] | None:
    """The names of the variants in a closure that was checked before, or None."""
    try:
        names = json.loads(_stamp(key).read_text())
    except (OSError, ValueError):
        return None
    return names if isinstance(names, list) else None


def _write_stamp(key: str, names: list[str]) -> None:
    """Remember that a closure is right.  A cache that can't be written only costs the next start its speed."""
    stamp = _stamp(key)
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=stamp.parent, delete=False) as file:
            json.dump(names, file)
        Path(file.name).replace(stamp)
    except OSError:
        return
