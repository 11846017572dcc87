"""A picture of a plan: one self-contained HTML page with the workers' time lines and the key ranges of the rows."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Final

from attngen.runtime.limits import PlanConfig
from attngen.runtime.plan import Planner
from attngen.runtime.plan_records import Item, Plan, item_cost, plan_stats

_WIDTH: Final = 1160.0
_MARGIN: Final = 64.0
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #667085; --paper: #ffffff; --card: #f4f6f9; --line: #d5dae3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaf0; --dim: #98a2b3; --paper: #12161d; --card: #1b212b; --line: #343c4a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px; max-width: 1240px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 4px; }
p { color: var(--dim); margin: 0 0 12px; max-width: 78ch; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; margin: 20px 0; }
dl div { background: var(--card); border-radius: 8px; padding: 10px 14px; }
dt { color: var(--dim); font-size: 12px; } dd { margin: 0; font-size: 19px; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
text { fill: var(--dim); font-size: 11px; } .axis { stroke: var(--line); stroke-width: 1; }
.mean { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 5 4; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 16px; font-size: 12px; color: var(--dim); margin: 8px 0; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
"""
# Diagonal stripes over a piece that leaves partials to merge.
_STRIPES: Final = (
    '<defs><pattern id="split" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="2" height="6" fill="#ffffff" fill-opacity="0.55"/></pattern></defs>'
)


def write_report(planner: Planner, path: str | os.PathLike[str]) -> None:
    """Write the page of the planner's last plan."""
    Path(path).write_text(render(planner.read(), planner.config), encoding="utf-8")


def render(plan: Plan, config: PlanConfig) -> str:
    """The page as text."""
    stats = plan_stats(plan, config)
    tiles = ", ".join(f"{count} of {name}" for name, count in stats["tiles"].items()) or "none"
    facts = {
        "Workers": stats["workers"],
        "Requests": stats["requests"],
        "Query rows": stats["rows"],
        "Keys": sum(plan.kv_len),
        "Levels": stats["levels"],
        "Items": " + ".join(str(items) for items in stats["queues"]),
        "Makespan / mean": f"{stats['makespan_over_mean']:.3f}",
        "Merges": stats["merges"],
        "Partial rows": stats["partial_rows"],
        "Most parts of a merge": stats["most_parts"],
        "Plan size": f"{stats['bytes'] / 1024:.1f} KiB",
        "Tiles, rows x keys": tiles,
    }
    cards = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>attngen plan</title><style>{_STYLE}</style></head><body>
<h1>Plan</h1>
<p>What each worker does, over the planner's own estimate of time, in units of one decode tile.</p><dl>{cards}</dl>
<h2>Workers over time</h2>
<p>A colour is a request (queries × keys). Striped pieces leave partials that are merged; plain ones write their rows
straight through. The dashed line is the mean load of the queue's workers.</p>{_legend(plan)}{_time_lines(plan, config)}
<h2>Rows and the keys they visit</h2>
<p>One line a query row of the first KV head, from top to bottom; left to right along the key list. Pale stretches are
masked key by key, strong ones need no mask. Levels stand below one another.</p>{_pattern(plan, config)}
</body></html>
"""


def _colour(request: int) -> str:
    # Steps of the golden angle keep neighbours apart however many requests there are.
    return f"hsl({request * 137.508 % 360:.0f} {62 - request % 3 * 8}% {48 + request % 2 * 9}%)"


def _legend(plan: Plan, most: int = 24) -> str:
    shown = range(min(plan.header.batch, most))
    labels = [
        f'<span><i style="background:{_colour(b)}"></i>request {b}: '
        f"{plan.qo_indptr[b + 1] - plan.qo_indptr[b]} × {plan.kv_len[b]}</span>"
        for b in shown
    ]
    if plan.header.batch > most:
        labels.append(f"<span>and {plan.header.batch - most} more</span>")
    return f'<div class="legend">{"".join(labels)}</div>'


def _describe(item: Item, number: int, cost: float) -> str:
    return (
        f"item {number}: request {item.request}, KV head {item.kv_head}, level {item.level}, packed rows "
        f"{item.packed_begin}..{item.packed_begin + item.packed_count}, keys {item.kv_begin}..{item.kv_end}, "
        f"unmasked {item.full_from}..{item.full_to}, cost {cost:.1f}"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "", opacity: float = 1.0) -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    faint = f' fill-opacity="{opacity:g}"' if opacity < 1.0 else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}" height="{height:.2f}" '
        f'fill="{fill}"{faint}>{tip}</rect>'
    )


def _time_lines(plan: Plan, config: PlanConfig) -> str:
    workers = plan.header.num_workers
    lane = max(2.0, min(22.0, 900.0 / workers))
    costs = [item_cost(item, plan, config) for item in plan.items]
    loads = [sum(costs[plan.worker[w] : plan.worker[w + 1]]) for w in range(workers)]
    span = max([*loads, 1e-9])
    scale = (_WIDTH - _MARGIN - 10) / span
    gap = 1.0 if lane > 5 else 0.3
    shapes = [_STRIPES]
    for worker in range(workers):
        x, y = _MARGIN, worker * lane
        for number in range(plan.worker[worker], plan.worker[worker + 1]):
            item, width = plan.items[number], costs[number] * scale
            title = _describe(item, number, costs[number])
            own = plan.segments[item.segment_begin : item.segment_begin + item.segment_count]
            split = any(segment.merge >= 0 for segment in own)
            shapes.append(_rect(x, y, width - gap, lane - gap, _colour(item.request), "" if split else title))
            if split:
                shapes.append(_rect(x, y, width - gap, lane - gap, "url(#split)", title))
            x += width
    height = workers * lane
    step = max(1, -(-workers * 14 // int(height + 1)))
    shapes += [
        f'<text x="{_MARGIN - 8:.0f}" y="{worker * lane + lane / 2 + 4:.1f}" text-anchor="end">{worker}</text>'
        for worker in range(0, workers, step)
    ]
    for first, count in zip(config.first_workers, config.queues, strict=True):
        mean = _MARGIN + sum(loads[first : first + count]) / count * scale
        top, bottom = first * lane, (first + count) * lane
        shapes.append(f'<line class="mean" x1="{mean:.1f}" x2="{mean:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
    shapes += _axis(height, span, scale)
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {height + 26:.0f}" role="img">{"".join(shapes)}</svg>'


def _axis(y: float, span: float, scale: float, marks: int = 8) -> list[str]:
    lines = [f'<line class="axis" x1="{_MARGIN}" x2="{_MARGIN + span * scale:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>']
    for mark in range(marks + 1):
        value = span * mark / marks
        label = f"{value:.0f}" if span >= 10 * marks else f"{value:.1f}"
        anchor = "end" if mark == marks else "middle"  # the last would leave the picture
        lines.append(f'<text x="{_MARGIN + value * scale:.1f}" y="{y + 16:.1f}" text-anchor="{anchor}">{label}</text>')
    return lines


def _pattern(plan: Plan, config: PlanConfig) -> str:
    numbered = [(n, i) for n, i in enumerate(plan.items) if i.kv_head == 0 and i.kv_begin < i.kv_end]
    items = [item for _, item in numbered]
    if not items:
        return "<p>No row visits a key.</p>"
    rows = max(item.packed_begin + item.packed_count for item in items)
    levels = 1 + max(item.level for item in items)
    line = max(0.05, min(14.0, 420.0 / rows))
    span = max(item.kv_end for item in items)
    scale = (_WIDTH - _MARGIN - 10) / span
    band = rows * line + 14
    shapes = []
    for number, item in numbered:
        y, height = item.level * band + item.packed_begin * line, item.packed_count * line
        height = max(0.3, height - (0.6 if height > 3 else 0.0))
        tip = _describe(item, number, item_cost(item, plan, config))
        colour = _colour(item.request)
        shapes.append(
            _rect(_MARGIN + item.kv_begin * scale, y, (item.kv_end - item.kv_begin) * scale, height, colour, tip, 0.35)
        )
        if item.full_from < item.full_to:
            width = (item.full_to - item.full_from) * scale
            shapes.append(_rect(_MARGIN + item.full_from * scale, y, width, height, colour, tip))
    for level in range(levels):
        y = level * band + rows * line / 2 + 4
        shapes.append(f'<text x="{_MARGIN - 8:.0f}" y="{y:.1f}" text-anchor="end">level {level}</text>')
    shapes += _axis(levels * band, float(span), scale)
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {levels * band + 26:.0f}" role="img">{"".join(shapes)}</svg>'
