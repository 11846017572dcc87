"""Shared by all tests: golden files, rewritten with `pytest --golden` or ATTNGEN_GOLDEN=write (`make golden`)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("ATTNGEN_CHECK_IR", "1")  # a pass that breaks the IR fails whichever test runs it


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(path, text)` compares text with the file, or rewrites the file under `--golden`."""
    rewrite = bool(request.config.getoption("--golden")) or os.environ.get("ATTNGEN_GOLDEN") == "write"

    def compare(path: Path, text: str) -> None:
        if rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing: run `make golden`"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs: run `make golden` and review the diff"

    return compare


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The driver of runtime/fake_gpu.py; one a process, as kernels stay loaded in it."""
    from tests.runtime.fake_gpu import fake_driver

    return fake_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def device() -> str:
    """Where tests that take it run; tests/gpu runs the same ones elsewhere."""
    return "cpu"
