"""Generated pages are fresh, links lead somewhere, and the code blocks of the manual work."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from attngen import loading
from attngen.errors import AttnError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(path: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(path.read_text()) if name == language]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["diagnostics.md", "debugging.md", "language.md"])
def test_generated_pages_are_fresh(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generator().PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text()))
    for target in LINK.findall(prose):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "language.md"], ids=lambda path: path.name)
def test_variants_of_the_manual_are_right(path: Path) -> None:
    assert blocks(path, "attn")
    for text in blocks(path, "attn"):
        loading.parse(text)


def test_readme_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), names)
    assert bool(names["out"].isfinite().all())  # type: ignore[attr-defined]


def test_code_of_running_runs() -> None:
    names: dict[str, object] = {}
    for code in blocks(ROOT / "docs" / "running.md", "python"):
        exec(compile(code, "running.md", "exec"), names)
    assert "paged" in names


def test_readme_diagnostic_is_what_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (variant,) = blocks(ROOT / "README.md", "attn")
    (shown,) = blocks(ROOT / "README.md", "text")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "gemma2.attn").write_text(variant.replace("cap * tanh", "cpa * tanh"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttnError) as raised:
        loading.load("examples/gemma2.attn")
    assert str(raised.value).strip() == shown.strip()


def test_readme_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
