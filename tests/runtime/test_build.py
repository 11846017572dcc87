from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from attngen.codegen.source import KernelSource
from attngen.errors import EnvironmentFault
from attngen.runtime import build, cache, toolchain
from tests.runtime.tiny_kernel import CONFIG, TinyVariant


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def source(text: str, *flags: str) -> KernelSource:
    return KernelSource({"kernel.cpp": text}, "kernel.cpp", flags, TinyVariant().lower(CONFIG).manifest)


def make(text: str, *flags: str) -> Path:
    return cache.entry(cache.make_key(text, *flags), lambda: source(text, *flags))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_entry_holds_the_kernel_its_source_and_how_it_was_built() -> None:
    folder = make("int f() { return 3; }")
    assert {path.name for path in folder.iterdir()} == {"kernel.cpp", "kernel.so", "manifest.json", "build.json"}
    [(path, record)] = cache.entries()
    assert path == folder
    assert record["what"].startswith("`tiny`") and record["compiler"] and record["bytes"] > 0


def test_a_compile_error_is_a_short_fault_of_attngen_at_the_line_of_the_variant(fresh_cache: Path) -> None:
    with pytest.raises(toolchain.CompileFault) as caught:
        make('#line 7 "gemma.attn"\nint f() { return x; }\n' + "int g() { return y; }\n" * 200)
    message = str(caught.value)
    assert "fault of attngen" in message and "gemma.attn:7:" in message and len(message.splitlines()) < 8
    log = Path(message.rsplit("whole log: ", 1)[1])
    assert log.is_relative_to(fresh_cache) and len(log.read_text().splitlines()) > 200
    assert (log.parent / "kernel.cpp").is_file()
    assert not cache.entries()


def test_a_failed_build_can_be_tried_again() -> None:
    key = cache.make_key("again")
    with pytest.raises(toolchain.CompileFault):
        cache.entry(key, lambda: source("nonsense"))
    assert cache.entry(key, lambda: source("int f() { return 3; }")).is_dir()


def test_an_option_the_compiler_lacks_is_said_plainly() -> None:
    with pytest.raises(EnvironmentFault, match="does not know `-mno-such-thing`"):
        make("int f();", "-mno-such-thing")
    with pytest.raises(EnvironmentFault, match="does not know `pentium9`"):
        make("int f();", "-march=pentium9")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"No C\+\+ compiler.*apt install g\+\+.*ATTNGEN_CXX"):
        make("int f();")
    monkeypatch.setenv("ATTNGEN_CXX", "no-such-compiler")
    with pytest.raises(EnvironmentFault, match="ATTNGEN_CXX names `no-such-compiler`"):
        make("int f();")


def test_an_old_compiler_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNGEN_CXX", script(tmp_path / "g++-9", 'echo "g++ (Debian 9.3.0-1) 9.3.0"'))
    with pytest.raises(EnvironmentFault, match=r"9\.3\.0; attngen needs GCC 11 or later"):
        make("int f();")


def test_a_killed_compiler_is_a_want_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (
        'test "$1" = --version && { echo "g++ 12.2.0"; exit; }\n'
        'echo "g++: fatal error: Killed signal terminated program cc1plus" >&2; exit 1'
    )
    monkeypatch.setenv("ATTNGEN_CXX", script(tmp_path / "g++", text))
    with pytest.raises(EnvironmentFault, match=r"want of memory.*ATTNGEN_JOBS"):
        make("int f();")


@pytest.mark.parametrize("limit", [0, 700, 9000])
def test_a_full_disk_is_a_plain_fault_and_leaves_no_entry(fresh_cache: Path, limit: int) -> None:
    # A limit on the size of files stands for a full disk: 0 stops our own writes, 9000 the linker's.
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.runtime.tiny_kernel import CONFIG, TinyVariant
from attngen.errors import EnvironmentFault
from attngen.runtime import cache, toolchain
toolchain.find_cxx()
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    cache.entry("k", lambda: TinyVariant().lower(CONFIG))
except EnvironmentFault as fault:
    print(fault)
else:
    print("built")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert f"Can't write kernels to {fresh_cache}" in ran.stdout and "ATTNGEN_CACHE_DIR" in ran.stdout, ran.stdout
    assert not cache.entries()
    assert make("int f() { return 3; }").is_dir()  # with room again, all is well


def test_jobs_follow_memory_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= build.job_count() <= 4096
    monkeypatch.setattr(build, "_JOB_BYTES", 1 << 60)
    assert build.job_count() == 1
    monkeypatch.setenv("ATTNGEN_JOBS", "7")
    assert build.job_count() == 7


def test_commands_are_printed_on_request(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    make("int f() { return 3; }")
    assert not capfd.readouterr().err
    monkeypatch.setenv("ATTNGEN_PRINT_COMMANDS", "1")
    make("int f() { return 4; }")
    assert "-std=c++20 -O3" in capfd.readouterr().err


def test_cpu_resolves_to_the_first_target_that_runs_here() -> None:
    targets = [("cpu-amx", ("amx_bf16", "avx512f")), ("cpu-avx512", ("avx512f",)), ("cpu-avx2", ("avx2", "fma"))]
    resolve = toolchain.resolve_target
    assert resolve("cpu", targets, frozenset({"avx2", "fma", "avx512f"})) == "cpu-avx512"
    assert resolve("cpu", targets, frozenset({"avx2", "fma"})) == "cpu-avx2"
    assert resolve("cpu-amx", targets, frozenset()) == "cpu-amx"
    with pytest.raises(EnvironmentFault, match="lacks fma, which even the plainest CPU target, `cpu-avx2`, needs"):
        resolve("cpu", targets, frozenset({"avx2"}))


def test_limits_of_this_test_process_are_its_own() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
