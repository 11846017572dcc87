"""Imports, the prelude, and the names of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attngen.dsl import ast, parse_module, prelude_names
from attngen.dsl.modules import PRELUDE, TEXT
from attngen.errors import AttnError

VARIANT = "attention a:\n    mask: causal\n"


def write(folder: Path, **files: str) -> Path:
    """Write NAME.attn files; the first is the root."""
    for name, text in files.items():
        (folder / f"{name}.attn").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.attn"


def ids(source: Path | str) -> list[str]:
    with pytest.raises(AttnError) as caught:
        parse_module(source)
    return [diagnostic.id for diagnostic in caught.value.diagnostics]


def user_files(module: ast.Module) -> list[str]:
    return [key for key in module.files if not key.startswith(PRELUDE)]


def test_files_are_keyed_by_absolute_path_with_the_root_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    write(tmp_path / "lib", inner='from "../deep.attn" import c\nmask m: kv < c\n')
    write(tmp_path, deep="const c: i32 = 4\n", root=f'from "lib/inner.attn" import m\n{VARIANT}')
    monkeypatch.chdir(tmp_path)
    module = parse_module(Path("root.attn"))
    assert module.root == str(tmp_path / "root.attn")
    assert user_files(module) == [str(tmp_path / name) for name in ("root.attn", "lib/inner.attn", "deep.attn")]
    for key in user_files(module):
        for item in module.files[key].imports:
            assert os.path.abspath(os.path.join(os.path.dirname(key), item.path)) in module.files


def test_spans_carry_the_path_that_the_user_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, root=f'from "other.attn" import f\n{VARIANT}', other="mask f: kv < 4\n")
    monkeypatch.chdir(tmp_path.parent)
    module = parse_module(Path(tmp_path.name) / "root.attn")
    shown = [file.span.file for key, file in module.files.items() if not key.startswith(PRELUDE)]
    assert shown == [f"{tmp_path.name}/root.attn", f"{tmp_path.name}/other.attn"]
    assert set(shown) < set(module.sources)


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        root=f'from "left.attn" import l\nfrom "right.attn" import r\n{VARIANT}',
        left='from "base.attn" import c\nmask l: kv < c\n',
        right='from "./base.attn" import c\nmask r: kv > c\n',
        base="const c: i32 = 4\n",
    )
    assert len(user_files(parse_module(root))) == 4


def test_a_text_has_no_file_and_imports_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write(tmp_path, other="mask f: kv < 4\n")
    monkeypatch.chdir(tmp_path)
    module = parse_module(f'from "other.attn" import f\n{VARIANT}')
    assert module.root == TEXT
    assert user_files(module) == [TEXT, str(other)]
    named = parse_module(VARIANT, "elsewhere/name.attn")
    assert named.root == str(tmp_path / "elsewhere" / "name.attn")


def test_a_string_that_ends_in_attn_is_a_path(tmp_path: Path) -> None:
    root = write(tmp_path, root=VARIANT)
    assert parse_module(str(root)).root == str(root)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"root": f'from "none.attn" import f\n{VARIANT}'}, ["import-not-found"]),
        ({"root": f'from "root.attn" import f\n{VARIANT}'}, ["import-cycle"]),
        (
            {"root": f'from "b.attn" import f\n{VARIANT}', "b": 'from "root.attn" import a\nmask f: kv < 4\n'},
            ["import-cycle"],
        ),
        ({"root": f'from "b.attn" import g\n{VARIANT}', "b": "mask f: kv < 4\n"}, ["import-name-missing"]),
        ({"root": f'from "b.attn" import f\n{VARIANT}', "b": "mask f: kv <\n"}, ["unexpected-end"]),
        ({"root": f'from "b.attn" import f, g\n{VARIANT}', "b": ""}, ["import-name-missing"] * 2),
        ({"root": f'from "b\\0.attn" import f\n{VARIANT}'}, ["import-not-found"]),
        ({"root": "# nothing\n"}, ["empty-file"]),
        ({"root": ""}, ["empty-file"]),
    ],
)
def test_mistakes(tmp_path: Path, files: dict[str, str], found: list[str]) -> None:
    assert ids(write(tmp_path, **files)) == found


def test_mistakes_of_several_files_are_reported_together(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        root=f'from "b.attn" import f\nfrom "c.attn" import g\nfrom "d.attn" import h\n{VARIANT}',
        b="mask f: kv <\n",
        c="mask g: )\n",
    )
    with pytest.raises(AttnError) as caught:
        parse_module(root)
    found = {(Path(d.span.file).name, d.id) for d in caught.value.diagnostics}
    wanted = {("b.attn", "unexpected-end"), ("c.attn", "unbalanced-bracket"), ("root.attn", "import-not-found")}
    assert found == wanted
    assert str(caught.value).count("-->") == 3 and "mask g: )" in str(caught.value)


def test_a_missing_root_is_a_diagnostic(tmp_path: Path) -> None:
    assert ids(tmp_path / "none.attn") == ["import-not-found"]
    assert ids(tmp_path) == ["import-not-found"]


def test_a_file_that_is_not_utf8_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "root.attn"
    path.write_bytes("# é\n#".encode() + b"\xff\n")
    with pytest.raises(AttnError) as caught:
        parse_module(path)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.id, diagnostic.span.line, diagnostic.span.column) == ("not-utf8", 2, 2)


def test_the_prelude_comes_with_every_module() -> None:
    module = parse_module(VARIANT)
    assert f"{PRELUDE}/masks.attn" in module.files
    assert set(module.files) - {TEXT} <= set(module.sources)
    usual = {"causal", "window", "local", "prefix_lm", "same_document", "dilated", "block_causal", "streaming", "alibi"}
    assert usual | {"soft_cap", "rope", "rope_pairs", "rmsnorm", "t5_bucket"} <= prelude_names()


def test_no_name_of_the_prelude_is_declared_twice() -> None:
    files = parse_module(VARIANT).files
    names = [item.name for key, file in files.items() if key.startswith(PRELUDE) for item in file.declarations]
    assert len(names) == len(set(names))
