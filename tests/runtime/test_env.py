from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attngen import env


def test_every_variable_is_described() -> None:
    for name, row in env.VARIABLES.items():
        assert name == row.name and name.startswith("ATTNGEN_")
        assert row.doc.endswith(".") and row.value and row.default
        assert f"`{name}`" in env.markdown()


def test_unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert env.cache_dir() == Path("/x/attngen")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert env.cache_dir() == Path.home() / ".cache" / "attngen"
    assert env.bundles() == () and env.cxx() is None and env.jobs() is None and env.num_threads() is None
    assert not env.disable_jit() and not env.check() and not env.check_ir() and not env.print_commands()
    assert env.debug() == 0 and env.dump_dir() is None


def test_set_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", "some/where")
    monkeypatch.setenv("ATTNGEN_BUNDLE", os.pathsep.join(["/a", "", "/b"]))
    monkeypatch.setenv("ATTNGEN_NUM_THREADS", "3")
    monkeypatch.setenv("ATTNGEN_CHECK", "1")
    assert env.cache_dir() == Path("some/where").absolute()
    assert env.bundles() == (Path("/a"), Path("/b"))
    assert env.num_threads() == 3 and env.check()


@pytest.mark.parametrize(
    ("name", "value"),
    [("ATTNGEN_CHECK", "yes"), ("ATTNGEN_JOBS", "0"), ("ATTNGEN_NUM_THREADS", "-1"), ("ATTNGEN_DEBUG", "much")],
)
def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    read = {
        "ATTNGEN_CHECK": env.check,
        "ATTNGEN_JOBS": env.jobs,
        "ATTNGEN_NUM_THREADS": env.num_threads,
        "ATTNGEN_DEBUG": env.debug,
    }[name]
    with pytest.raises(ValueError, match=f"{name} is '{value}'; it needs"):
        read()


def test_importing_attngen_imports_nothing_heavy() -> None:
    code = """
import sys, time
started = time.process_time()
import attngen
seconds = time.process_time() - started
heavy = {"torch", "tvm_ffi", "lark", "jinja2", "pydantic", "ninja", "subprocess", "numpy"} & set(sys.modules)
assert not heavy, heavy
assert seconds < 0.06, seconds
assert "Attention" in dir(attngen)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_attribute_errors() -> None:
    import attngen

    with pytest.raises(AttributeError, match="has no attribute `nonsense`"):
        _ = attngen.nonsense  # type: ignore[attr-defined]
