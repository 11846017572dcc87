"""The well-formed files that several tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))
PRELUDE = sorted((ROOT / "attngen" / "prelude").glob("*.attn"))
FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.attn"))
WELL_FORMED = [*EXAMPLES, *PRELUDE, *FIXTURES]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")
