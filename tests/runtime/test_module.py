from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attngen.codegen.source import Manifest
from attngen.errors import EnvironmentFault
from attngen.runtime import cache
from attngen.runtime.module import load_kernel
from tests.runtime.tiny_kernel import CONFIG, TinyVariant


def test_a_kernel_is_loaded_once() -> None:
    first, second = TinyVariant().compile(CONFIG), TinyVariant().compile(CONFIG)
    assert first is second and first.handle
    assert first.manifest.variant == "tiny"
    assert Manifest.from_json(first.manifest.to_json()) == first.manifest


def test_instructions_that_this_machine_lacks_are_refused_before_loading() -> None:
    with pytest.raises(EnvironmentFault, match=r"kernel of `tiny` \(cpu-tiny\) needs quantum, which this processor"):
        TinyVariant(isa=("quantum",)).compile(CONFIG)


def test_an_object_that_is_no_kernel_is_a_plain_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = TinyVariant().compile(CONFIG).folder
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text((folder / "manifest.json").read_text())
    (broken / "kernel.so").write_text("no ELF at all")
    with pytest.raises(EnvironmentFault, match=r"kernel\.so does not load"):
        load_kernel(broken)


def test_a_kernel_without_its_symbols_is_a_plain_fault() -> None:
    source = TinyVariant().lower(CONFIG)
    source.files["kernel.cpp"] = "int nothing() { return 0; }"
    folder = cache.entry(cache.make_key("no symbols"), lambda: source)
    with pytest.raises(EnvironmentFault, match="exports no attngen_cpu_worker"):
        load_kernel(folder)


def test_a_warm_start_imports_no_compiler() -> None:
    TinyVariant().compile(CONFIG)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.runtime.tiny_kernel import CONFIG, TinyVariant
TinyVariant().compile(CONFIG)
import attngen.runtime.attention
loaded = {{"lark", "jinja2", "pydantic", "ninja"}} & set(sys.modules)
loaded |= {{name for name in sys.modules if name.startswith(("attngen.dsl", "attngen.ir", "attngen.compiler"))}}
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
