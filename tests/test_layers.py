"""Who may import whom: the table of docs/architecture.md, read from the syntax tree of every module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "attngen"
MODULES = sorted(PACKAGE.rglob("*.py"))

# layer -> prefixes of attngen modules that it may import (besides its own)
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "env": (),
    "dtypes": (),
    "dsl": ("attngen.errors",),
    "ir": ("attngen.errors", "attngen.dtypes"),
    "codegen": ("attngen.errors", "attngen.dtypes", "attngen.ir"),
    "runtime": ("attngen.errors", "attngen.env", "attngen.dtypes", "attngen.codegen.source"),
}
EXTRA = {"ir/build": ("attngen.dsl.ast",)}  # a file, or a folder of that name
TOP = tuple(
    f"attngen.{name}"
    for name in ("compiler", "loading", "tracing", "reference", "random_batch", "trial", "torch_ops", "cli")
)

# third-party or standard module -> where it may be imported
CONFINED: dict[str, tuple[str, ...]] = {
    "torch": ("runtime/", "reference", "torch_ops", "random_batch", "trial", "cli/bench"),
    "subprocess": ("runtime/toolchain", "runtime/build"),
    "jinja2": ("codegen/render",),
    "lark": ("dsl/",),
}


def imports(path: Path) -> list[str]:
    """Every module that the file imports, at the top or inside a function; type-checking imports count too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def place(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_layers(path: Path) -> None:
    here = place(path)
    layer = here.split("/")[0]
    if layer not in ALLOWED:
        return
    allowed = (*ALLOWED[layer], f"attngen.{layer}")
    for prefix, extra in EXTRA.items():
        if here == prefix or here.startswith((prefix + "/", prefix + "_")):
            allowed += extra
    wrong = [name for name in imports(path) if name.startswith("attngen") and not within(name, allowed)]
    assert not wrong, f"attngen/{here}.py may not import {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_confined_modules(path: Path) -> None:
    here = place(path)
    for name in imports(path):
        top = name.split(".")[0]
        if top in CONFINED:
            assert here.startswith(CONFINED[top]), f"attngen/{here}.py imports {top}"


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_environment_is_read_in_one_place(path: Path) -> None:
    if place(path) == "env":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}:
            raise AssertionError(f"attngen/{place(path)}.py:{node.lineno} reads the environment; use attngen.env")


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_nobody_imports_the_top(path: Path) -> None:
    here = place(path)
    if here == "__init__" or within("attngen." + here.replace("/", "."), TOP) or here == "__main__":
        return
    assert not [name for name in imports(path) if within(name, TOP)]
