"""Every example is one variant that `attngen run FILE` can feed from the file alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen import dsl, ir
from attngen.dsl import ast, parse
from tests.dsl.corpus import EXAMPLES, text_of


def only_attention(path: Path) -> ast.Attention:
    (attention,) = (item for item in parse(text_of(path)).declarations if isinstance(item, ast.Attention))
    return attention


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_one_documented_attention(path: Path) -> None:
    assert parse(text_of(path)).doc
    only_attention(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_tells_how_to_make_its_data(path: Path) -> None:
    for item in only_attention(path).items:
        if isinstance(item, ast.Tensor):
            assert item.range is not None or item.type.base == "bool", item.name
        elif isinstance(item, ast.Scalar):
            assert item.range is not None and item.default is not None, item.name


def test_names_of_variants_are_unique() -> None:
    names = [only_attention(path).name for path in EXAMPLES]
    assert len(names) == len(set(names)) >= 40


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_builds(path: Path) -> None:
    ir.validate(ir.build(dsl.parse_module(path), only_attention(path).name))
