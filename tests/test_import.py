"""`import attngen` is free, and a warm start imports no parser and no compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def python(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_free() -> None:
    code = """
import sys
opened = []
started = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
sys.addaudithook(lambda event, args: opened.append(event) if event in started else None)
import attngen
heavy = {"torch", "lark", "jinja2", "pydantic", "tvm_ffi"} & set(sys.modules)
assert not heavy, heavy
assert not opened, opened
assert "load" in dir(attngen) and "Attention" in dir(attngen)
"""
    python(code)


def test_unknown_attribute() -> None:
    python("import attngen\nassert not hasattr(attngen, 'nothing_of_that_name')")


def test_warm_start_imports_no_compiler(tmp_path: Path) -> None:
    code = f"""
import sys
import attngen
from attngen.codegen.source import KernelConfig
kernel = attngen.load({str(EXAMPLES / "gemma2.attn")!r}).compile(KernelConfig("cpu", 16, 16, "f32", "f32"))
print(*sorted({{"lark", "jinja2", "pydantic", "ninja", "attngen.compiler"}} & set(sys.modules)))
"""
    assert "attngen.compiler" in python(code, ATTNGEN_CACHE_DIR=str(tmp_path))
    assert python(code, ATTNGEN_CACHE_DIR=str(tmp_path)) == ""
