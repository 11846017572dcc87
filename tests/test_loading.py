"""Loading: choosing a variant, stamps of checked closures, keys that follow content, and traces of a compilation."""

from __future__ import annotations

from pathlib import Path

import pytest

import attngen
from attngen import compiler, loading
from attngen.codegen.source import KernelConfig
from attngen.loading import NoSuchVariant, load, load_all, parse

CONFIG = KernelConfig("cpu-avx2", 16, 16, "f32", "f32")
TWO = "attention one:\n    mask: kv <= pos\n\nattention two:\n    mask: kv < pos\n"
LIBRARY = "mask near(n: i32): pos - kv < n\n"
USER = 'from "library.attn" import near\n\nattention a:\n    mask: near(4)\n'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "library.attn").write_text(LIBRARY)
    (tmp_path / "user.attn").write_text(USER)
    return tmp_path / "user.attn"


def test_choosing_a_variant() -> None:
    assert parse(TWO, "two").name == "two"
    assert parse("attention only:\n    mask: kv <= pos\n").name == "only"
    with pytest.raises(NoSuchVariant, match=r"several variants \(one, two\)"):
        parse(TWO)
    with pytest.raises(NoSuchVariant, match="no variant `three`"):
        parse(TWO, "three")
    with pytest.raises(NoSuchVariant, match="no `attention`"):
        parse(LIBRARY)


def test_mistakes_surface_when_loading(user: Path) -> None:
    user.write_text(USER.replace("near(4)", "near(4.5)"))
    for _ in range(2):  # a wrong file leaves no stamp
        with pytest.raises(attngen.AttnError):
            load(user)


def test_a_missing_file_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(attngen.AttnError, match="no such file"):
        load(tmp_path / "missing.attn")


def test_a_checked_closure_is_not_parsed_again(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(user)
    monkeypatch.setattr(loading, "_compiler", lambda: pytest.fail("parsed again"))
    again = load(user)
    assert again.key(CONFIG) == first.key(CONFIG) and list(again.sources) == list(first.sources)


def test_keys_follow_the_whole_closure(user: Path) -> None:
    first = load(user)
    (user.parent / "library.attn").write_text(LIBRARY.replace("<", "<="))
    second = load(user)
    assert first.key(CONFIG) != second.key(CONFIG)
    (user.parent / "library.attn").write_text(LIBRARY)
    assert load(user).key(CONFIG) == first.key(CONFIG)
    moved = user.parent / "elsewhere"
    moved.mkdir()
    for name in ("user.attn", "library.attn"):
        (moved / name).write_text((user.parent / name).read_text())
    assert load(moved / "user.attn").key(CONFIG) == first.key(CONFIG)


def test_a_file_that_changes_after_loading_is_refused(user: Path) -> None:
    """A kernel is stored under the key of the texts that were loaded, so it must be made of these."""
    variant = load(user)
    (user.parent / "library.attn").write_text(LIBRARY.replace("<", "<="))
    with pytest.raises(ValueError, match="changed since it was loaded"):
        variant.lower(CONFIG)
    (user.parent / "library.attn").write_text(LIBRARY)
    unchanged = load(user)
    user.write_text("attention other:\n    mask: kv == pos\n")  # the root's text is held, so it may change
    assert "near" not in unchanged.lower(CONFIG).manifest.variant and unchanged.name == "a"


def test_text_imports_from_the_current_folder(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user.parent)
    variant = parse(USER)
    assert len(variant.sources) == 2
    assert variant.lower(CONFIG).manifest.variant == "a"


def test_a_cache_that_cannot_be_written_costs_only_time(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(user))  # a file, so that no folder can be made in it
    assert load(user).name == "a"


def test_dumps_are_named_after_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_DUMP_DIR", str(tmp_path / "dump"))
    parse(TWO, "two").lower(CONFIG)
    names = sorted(path.name for path in (tmp_path / "dump" / "two").iterdir())
    assert [name.split("_", 1)[1].split(".")[0] for name in names] == list(compiler.STAGES)


@pytest.mark.parametrize(("level", "shown"), [("2", ()), ("3", ("ir", "scope")), ("4", ("ir", "functor", "kernel"))])
def test_debugging_prints_stages(
    level: str, shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNGEN_DEBUG", level)
    parse(TWO, "one").lower(CONFIG)
    printed = capsys.readouterr().err
    for stage in compiler.STAGES:
        assert (f"--- {stage} ---" in printed) >= (stage in shown)
    assert bool(printed) == bool(shown)


def test_the_same_source_gives_the_same_text() -> None:
    first, second = (parse(TWO, "one").lower(CONFIG) for _ in range(2))
    assert first.files == second.files and first.manifest == second.manifest


def test_every_variant_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "two.attn"
    path.write_text(TWO)
    assert [variant.name for variant in load_all(path)] == ["one", "two"]
    assert compiler.check(path) == []
    path.write_text(TWO.replace("kv < pos", "kv < nowhere"))
    assert [diagnostic.id for diagnostic in compiler.check(path)] == ["unknown-name"]
