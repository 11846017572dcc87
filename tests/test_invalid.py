"""The invalid corpus: each tests/invalid/NAME.attn is wrong, and NAME.txt is all that its author is shown.

Files that start with `ir_` are well formed and wrong in meaning; the others are wrong in spelling or in their imports.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen import dsl
from attngen.errors import CATALOGUE, SYNTAX, AttnError
from tests.conftest import Golden

FOLDER = Path(__file__).parent / "invalid"
CASES = sorted(path.name for path in FOLDER.glob("*.attn"))


def mistakes(name: str) -> AttnError:
    """What is wrong with a file of the corpus; paths in messages are relative to its folder."""
    with pytest.raises(AttnError) as caught:
        module = dsl.parse_module(Path(name))
        assert name.startswith("ir_"), "the front end finds nothing wrong"
        from attngen import compiler

        compiler.check_module(module)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_invalid(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    fault = mistakes(name)
    assert all(diagnostic.id in CATALOGUE for diagnostic in fault.diagnostics)
    golden(FOLDER / f"{Path(name).stem}.txt", f"{fault}\n")


def test_every_expected_text_has_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {Path(name).stem for name in CASES}


def test_every_syntax_id_is_in_the_corpus() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.txt"))
    assert [id for id in SYNTAX if f"error[{id}]" not in shown] == []
