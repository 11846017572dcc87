"""Files that are almost right: a changed example builds a valid variant or shows its mistake, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from attngen import dsl
from attngen.errors import AttnError
from attngen.ir import build_all, validate

ROOT = Path(__file__).parents[2]
SOURCES = [
    path.read_text(encoding="utf-8")
    for pattern in ("examples/*.attn", "tests/invalid/ir_*.attn")
    for path in sorted(ROOT.glob(pattern))
]
TOKEN = re.compile(r"\w+|\s+|[^\w\s]+")
WORDS = """
b h hk q kv pos row slot q_len lse D Dv d s x v n 0 1 -1 2.5 true inf 3000000000 i64 f32 sum mean max exp rotate_half KV
causal window window(4) in_document in_document[causal] rope (1,2) x[0] t[h] + * // % & | < == ** <<
"""


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """A source with up to three of its words replaced."""
    tokens = TOKEN.findall(draw(st.sampled_from(SOURCES)))
    words = [i for i, token in enumerate(tokens) if token.strip()]
    for _ in range(draw(st.integers(1, 3))):
        tokens[draw(st.sampled_from(words))] = draw(st.sampled_from(WORDS.split()))
    return "".join(tokens)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(mutants())
def test_mutants_build_or_show_their_mistake(text: str) -> None:
    try:
        for variant in build_all(dsl.parse_module(text + "\n")):
            validate(variant)
    except AttnError as fault:
        assert str(fault)
        assert all(diagnostic.span.line > 0 for diagnostic in fault.diagnostics)
