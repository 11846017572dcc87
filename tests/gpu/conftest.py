"""Everything here is skipped where there is no GPU; a table of what was judged is printed at the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SLOW = "sanitizer"  # marks what runs only when asked for: pytest tests/gpu -m sanitizer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{SLOW}: runs compute-sanitizer, which takes minutes")
    if torch.cuda.is_available():
        torch.set_num_threads(min(2, torch.get_num_threads()))  # the references of all workers share the cores


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without_gpu = pytest.mark.skip(reason="torch.cuda.is_available() is False: tests/gpu needs a GPU")
    unasked = pytest.mark.skip(reason=f"slow; `-m {SLOW}` runs it")
    asked = SLOW in str(config.getoption("-m"))
    for item in items:
        if HERE not in item.path.parents:
            continue
        if not torch.cuda.is_available():
            item.add_marker(without_gpu)
        elif item.get_closest_marker(SLOW) and not asked:
            item.add_marker(unasked)


@pytest.fixture
def device() -> str:
    """Where the tests that are shared with the CPU run here."""
    return "cuda"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases were right, by each value of each factor that a test recorded as ("case", factor, value)."""
    tables: dict[str, Counter[tuple[str, str]]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if getattr(report, "when", None) != "call":
                continue
            for name, value in report.user_properties:
                if str(name).startswith("case."):
                    tables.setdefault(str(name)[5:], Counter())[str(value), outcome] += 1
    for factor, counts in tables.items():
        words = []
        for value in dict.fromkeys(value for value, _ in counts):
            failed = counts[value, "failed"]
            words.append(f"{value} {counts[value, 'passed']}" + (f" (WRONG: {failed})" if failed else ""))
        terminalreporter.write_line(f"{factor}: {', '.join(words)}")
