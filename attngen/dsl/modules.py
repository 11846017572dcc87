"""A file with everything that it imports, and the prelude, ready for ir.build."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from attngen.dsl import ast
from attngen.dsl.parser import normalise, parse
from attngen.dsl.syntax import nearest
from attngen.errors import AttnError, Report, Span

PRELUDE: Final = "<prelude>"  # the folder of the prelude in `Module.files`
TEXT: Final = "<text>"  # the name of a text that has no file


def parse_module(source: str | os.PathLike[str], filename: str | None = None) -> ast.Module:
    """The module of a file (a path, or a string that ends in `.attn`) or of a text that `filename` names.

    `files` is keyed by absolute path: `os.path.abspath(os.path.join(os.path.dirname(importer), path))` is the key of
    what an import names.  The prelude's files come last, as `<prelude>/masks.attn` and so on; every file sees their
    names unless it declares or imports its own.  `sources` is keyed by `Span.file`, the path as its reader knows it.
    """
    loader = _Loader()
    if isinstance(source, str) and ("\n" in source or not source.endswith(".attn")):
        shown = filename if filename is not None else TEXT
        key = os.path.abspath(shown) if filename is not None else TEXT
        loader.add(key, shown, normalise(source))
    else:
        shown = os.fspath(source)
        key = os.path.abspath(shown)
        loader.read(key, shown, None)
    loader.report.raise_if_any()
    _check_not_empty(loader.files[key], shown, loader.report)
    loader.report.raise_if_any()
    files, sources = _prelude()
    return ast.Module(key, {**loader.files, **files}, {**loader.report.sources, **sources})


def prelude_names() -> frozenset[str]:
    """Every name that the prelude declares."""
    files, _ = _prelude()
    return frozenset(item.name for file in files.values() for item in file.declarations)


@cache
def _prelude() -> tuple[dict[str, ast.File], dict[str, str]]:
    files, sources = {}, {}
    for path in sorted((Path(__file__).parents[1] / "prelude").glob("*.attn")):
        key = f"{PRELUDE}/{path.name}"
        sources[key] = path.read_text(encoding="utf-8")
        files[key] = parse(sources[key], key)
    return files, sources


def _check_not_empty(file: ast.File, shown: str, report: Report) -> None:
    if not file.declarations:
        help = "write an `attention NAME:` with its stages indented below"
        report.add("empty-file", "this file declares nothing", Span(shown, 1, 1, 1, 1), help)


class _Loader:
    """Reads the closure of imports depth first, and collects the mistakes of all files."""

    def __init__(self) -> None:
        self.report = Report()
        self.files: dict[str, ast.File] = {}
        self.shown: dict[str, str] = {}  # key -> the path that spans of the file carry
        self.open: list[str] = []  # the chain of imports that led here
        self.failed: set[str] = set()

    def read(self, key: str, shown: str, importer: Span | None) -> None:
        """Load the file at `key`; what can't be read is the importer's mistake, where there is one."""
        if key in self.files or key in self.failed:
            return
        self.failed.add(key)
        try:
            data = Path(key).read_bytes()
        except (OSError, ValueError) as fault:
            why = "there is no such file" if isinstance(fault, FileNotFoundError) else _reason(fault)
            message = f"can't read {_quoted(shown)}: {why}"
            help = "give the path relative to the importing file" if importer else None
            self.report.add("import-not-found", message, importer or Span(shown, 1, 1, 1, 1), help)
            return
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as fault:
            line = data.count(b"\n", 0, fault.start) + 1
            column = len(data[data.rfind(b"\n", 0, fault.start) + 1 : fault.start].decode("utf-8")) + 1
            self.report.sources[shown] = data.decode("utf-8", errors="replace")
            message = f"byte 0x{data[fault.start]:02x} is not UTF-8"
            self.report.add("not-utf8", message, Span(shown, line, column, line, column + 1), "save the file as UTF-8")
            return
        self.failed.discard(key)
        self.add(key, shown, normalise(text))

    def add(self, key: str, shown: str, text: str) -> None:
        """Parse a text and load what it imports."""
        self.report.sources[shown] = text
        self.shown[key] = shown
        try:
            file = parse(text, shown)
        except AttnError as fault:
            self.failed.add(key)
            self.report.diagnostics += fault.diagnostics
            return
        self.files[key] = file
        self.open.append(key)
        for item in file.imports:
            self._import(key, item)
        self.open.pop()

    def _import(self, importer: str, item: ast.Import) -> None:
        key = os.path.abspath(os.path.join(os.path.dirname(importer), item.path))
        if key in self.open:
            chain = [self.shown[part] for part in (*self.open[self.open.index(key) :], key)]
            message = f"import cycle: {' imports '.join(map(_quoted, chain))}"
            self.report.add("import-cycle", message, item.span, "move what both need to a third file")
            return
        shown = os.path.normpath(os.path.join(os.path.dirname(self.shown[importer]), item.path))
        self.read(key, self.shown.get(key, shown), item.span)
        if key in self.files:
            self._check_names(self.files[key], item)

    def _check_names(self, file: ast.File, item: ast.Import) -> None:
        declared = {part.name for part in file.declarations if not isinstance(part, ast.Attention)}
        attentions = {part.name for part in file.declarations if isinstance(part, ast.Attention)}
        for name in item.names:
            if name.name in declared:
                continue
            message = f"{_quoted(item.path)} has no `{name.name}` to import"
            if name.name in attentions:
                message, guess = f"`{name.name}` is an attention, which can't be imported", None
            else:
                guess = nearest(name.name, declared)
            help = f"did you mean `{guess}`?" if guess else "a const, def or mask that the file declares itself"
            self.report.add("import-name-missing", message, name.span, help)


def _quoted(path: str) -> str:
    return f'"{path}"' if path.isprintable() else ascii(path)


def _reason(fault: OSError | ValueError) -> str:
    text = fault.strerror if isinstance(fault, OSError) and fault.strerror else "the path is not valid"
    return text[:1].lower() + text[1:]
