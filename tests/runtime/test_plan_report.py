"""The report is one well-formed page that shows every item and loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attngen.codegen.source import Tile
from attngen.runtime.limits import Limits
from attngen.runtime.plan_report import write_report

from . import plans

TILES = (Tile(16, 16, 2.0, 1.0, 0.5), Tile(64, 16, 2.0, 2.0, 0.5))


class Balanced(HTMLParser):
    """Fails on a tag that isn't closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("q_len", [[], [0], [1, 1, 1], [1, 70, 0, 3]])
def test_report(tmp_path: Path, q_len: list[int]) -> None:
    batch = plans.paged_batch(q_len, [100 * (b + 1) for b in range(len(q_len))], 16)
    config = plans.make_config(
        batch, num_qo_heads=4, num_workers=5, tiles=TILES, has_mask=True, key_bounds=plans.CAUSAL
    )
    planner = plans.make_planner(config)
    planner.plan(**batch.paged())
    plan = planner.read()
    write_report(planner, tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"(src|href)=|https?://|@import", text)
    shown = {int(number) for number in re.findall(r"<title>item (\d+):", text)}
    assert shown == set(range(len(plan.items)))


def test_levels_are_shown(tmp_path: Path) -> None:
    batch = plans.paged_batch([1, 1, 2], [80, 90, 70], 16)
    for pages in batch.pages[1:]:
        pages[:3] = batch.pages[0][:3]
    limits = Limits(batch=3, q_tokens=4, kv_tokens=240, levels=2)
    config = plans.make_config(batch, tiles=TILES, limits=limits)
    planner = plans.make_planner(config)
    planner.plan(qo_indptr=batch.qo_indptr, kv_len=batch.kv_len, levels=plans.levels_of(batch, 3))
    write_report(planner, tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert "level 0" in text and "level 1" in text and "url(#split)" in text
