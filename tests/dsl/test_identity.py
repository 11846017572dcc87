"""Text → tree → text → tree gives the same tree."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.dsl import ast, parse, unparse
from attngen.dsl.unparse import expression
from tests.dsl.corpus import WELL_FORMED, text_of


@pytest.mark.parametrize("path", WELL_FORMED, ids=lambda path: path.stem)
def test_identity(path: Path) -> None:
    tree = parse(text_of(path), path.name)
    text = unparse(tree)
    assert parse(text) == tree
    assert unparse(parse(text)) == text


NAMES = st.sampled_from(["x", "kv", "pos", "mask", "range", "query", "iff", "n_2", "_", "on", "information"])
NODES = st.builds(ast.Name, NAMES)
NUMBERS = st.one_of(
    st.integers(0, 2**63 - 1),
    st.floats(0, 3.4e38, allow_nan=False).map(abs),
    st.just(math.inf),
)
LEAVES = st.one_of(NODES, st.builds(ast.Number, NUMBERS), st.builds(ast.Bool, st.booleans()))
BINARY = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"])
COMPARE = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


def several(inner: st.SearchStrategy[ast.Expr], least: int = 0) -> st.SearchStrategy[tuple[ast.Expr, ...]]:
    return st.lists(inner, min_size=least, max_size=3).map(tuple)


def grown(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    subscripts = st.builds(ast.Subscript, inner, several(inner, 1))
    callees = st.one_of(NODES, st.builds(ast.Subscript, NODES, several(inner, 1)))
    keywords = st.lists(st.builds(ast.Keyword, NAMES, inner), max_size=2, unique_by=lambda word: word.name).map(tuple)
    chains = st.lists(st.tuples(COMPARE, inner), min_size=1, max_size=3)
    return st.one_of(
        st.builds(ast.Unary, st.sampled_from(["-", "+", "~"]), inner),
        st.builds(ast.Binary, BINARY, inner, inner),
        st.builds(
            lambda first, rest: ast.Compare((first, *(r[1] for r in rest)), tuple(r[0] for r in rest)), inner, chains
        ),
        st.builds(ast.Conditional, inner, inner, inner),
        st.builds(ast.Call, callees, several(inner), keywords),
        subscripts,
        st.builds(ast.Comprehension, NODES, inner, NODES, inner),
        st.builds(ast.Tuple, several(inner, 2)),
    )


@settings(max_examples=300, deadline=None)
@given(st.recursive(LEAVES, grown, max_leaves=20))
def test_every_expression_survives(expr: ast.Expr) -> None:
    text = expression(expr)
    declared = parse(f"mask f: {text}\n").declarations[0]
    assert isinstance(declared, ast.MaskDef)
    assert declared.body.result == expr, text
