from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attngen.codegen.source import KernelSource
from attngen.errors import EnvironmentFault
from attngen.runtime import cache, host
from tests.runtime.tiny_kernel import CONFIG, TinyVariant

HERE = Path(__file__).parents[2]
BUILD_ONE = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from tests.runtime.tiny_kernel import CONFIG, TinyVariant
from attngen.runtime import cache
variant = TinyVariant()
print(cache.entry(variant.key(CONFIG), lambda: variant.lower(CONFIG)))
"""


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that gets a line for every compilation; sleeping first makes races likely."""
    log = tmp_path / "compilations"
    log.touch()
    wrapper = tmp_path / "counting-g++"
    wrapper.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) echo "$$" >> {log}; sleep 0.3;; esac\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("ATTNGEN_CXX", str(wrapper))
    return log


def build_one() -> Path:
    variant = TinyVariant()
    return cache.entry(variant.key(CONFIG), lambda: variant.lower(CONFIG))


def fail() -> KernelSource:
    raise AssertionError("a warm hit must not lower the variant")


def test_eight_processes_build_one_variant_once(fresh_cache: Path, compilations: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", BUILD_ONE], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    printed = {process.communicate()[0].strip() for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(printed) == 1 and Path(printed.pop()).parent == fresh_cache
    assert len(compilations.read_text().split()) == 1
    assert not list((fresh_cache / ".tmp").iterdir())


def test_eight_threads_build_one_variant_once(fresh_cache: Path, compilations: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(build_one())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert len(compilations.read_text().split()) == 1


def test_a_process_killed_half_way_leaves_nothing_that_loads(fresh_cache: Path, compilations: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUILD_ONE], stdout=subprocess.DEVNULL)
    while not compilations.read_text():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    key = TinyVariant().key(CONFIG)
    assert cache.find(key) is None and list((fresh_cache / ".tmp").iterdir())
    assert (build_one() / "kernel.so").is_file()
    assert not [path for path in (fresh_cache / ".tmp").iterdir() if path.name.startswith(key)]


def test_old_remains_of_other_keys_go_too(fresh_cache: Path) -> None:
    for name, age in (("old.x", 2 * 86400), ("young.x", 60)):
        (fresh_cache / ".tmp" / name).mkdir(parents=True)
        os.utime(fresh_cache / ".tmp" / name, (time.time() - age, time.time() - age))
    build_one()
    assert [path.name for path in (fresh_cache / ".tmp").iterdir()] == ["young.x"]


def test_a_warm_hit_needs_no_lock_no_compiler_and_no_writing(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_one()
    monkeypatch.setenv("PATH", "/nowhere")
    shutil.rmtree(fresh_cache / ".locks")
    before = sorted(fresh_cache.rglob("*"))
    assert cache.entry(folder.name, fail) == folder
    assert sorted(fresh_cache.rglob("*")) == before


def test_a_damaged_entry_is_built_again(fresh_cache: Path) -> None:
    folder = build_one()
    with open(folder / "kernel.so", "ab") as opened:
        opened.truncate(100)
    assert cache.find(folder.name) is None
    assert build_one() == folder and cache.find(folder.name) == folder


def test_a_cache_below_a_file_is_a_plain_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentFault, match=r"file/cache: Not a directory.*ATTNGEN_CACHE_DIR"):
        build_one()


@pytest.mark.parametrize("folder", ["/proc/attngen", "/sys/attngen"])
def test_an_unwritable_cache_is_a_plain_fault(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", folder)
    with pytest.raises(EnvironmentFault, match=f"Can't write kernels to {folder}.*ATTNGEN_CACHE_DIR"):
        build_one()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_read_and_not_written(fresh_cache: Path) -> None:
    folder = build_one()
    fresh_cache.chmod(0o555)
    try:
        assert cache.entry(folder.name, fail) == folder
    finally:
        fresh_cache.chmod(0o755)


def test_content_decides_not_file_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "attngen"
    (package / "ir").mkdir(parents=True)
    source = package / "ir" / "nodes.py"

    def fingerprint() -> str:
        cache.fingerprint.cache_clear()
        return cache.fingerprint()

    real = fingerprint()
    monkeypatch.setattr(cache, "_PACKAGE", package)
    try:
        source.write_text("a = 1\n")
        first = fingerprint()
        os.utime(source, (1, 1))
        assert fingerprint() == first
        stat = source.stat()
        source.write_text("a = 2\n")
        os.utime(source, (stat.st_atime, stat.st_mtime))
        assert fingerprint() != first
    finally:
        monkeypatch.undo()
        assert fingerprint() == real


def test_keys_keep_their_parts_apart() -> None:
    assert cache.make_key("ab", "c") != cache.make_key("a", "bc") != cache.make_key("abc")
    assert cache.make_key("a") == cache.make_key("a") != cache.make_key("a", of="host")


def test_disable_jit(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_DISABLE_JIT", "1")
    with pytest.raises(EnvironmentFault, match=r"is in no bundle and not in .*ATTNGEN_DISABLE_JIT"):
        build_one()


def test_clear(fresh_cache: Path) -> None:
    folder = build_one()
    assert cache.clear() == 1 and not folder.exists() and not cache.entries() and cache.clear() == 0


# Bundles


def test_a_bundle_runs_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle"
    host_folder = host.folder()
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(host, "folder", lambda: host_folder)
    cache.export([build_one()], bundle)
    cache.export([build_one()], bundle)  # again is fine
    monkeypatch.setenv("ATTNGEN_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("ATTNGEN_BUNDLE", str(bundle))
    monkeypatch.setenv("PATH", "/nowhere")
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from tests.runtime.tiny_kernel import CONFIG, TinyVariant
kernel = TinyVariant().compile(CONFIG)
print(kernel.folder, kernel.handle != 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.split() == [str(bundle / TinyVariant().key(CONFIG)), "True"], ran.stderr
    assert not (tmp_path / "other").exists()


def test_use_bundle(fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngen.runtime.store._used_bundles", [])
    with pytest.raises(EnvironmentFault, match=r"is no bundle .*attngen build --out"):
        cache.use_bundle(tmp_path)
    folder = build_one()
    monkeypatch.setattr(host, "folder", lambda: folder)
    cache.export([folder], tmp_path / "bundle")
    cache.clear()
    cache.use_bundle(tmp_path / "bundle")
    assert cache.entry(folder.name, fail) == tmp_path / "bundle" / folder.name


def test_a_bundle_that_does_not_help_is_named(
    fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNGEN_BUNDLE", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentFault, match=r"ATTNGEN_BUNDLE names .*nothing, which is no bundle"):
        build_one()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "bundle.json").write_text('{"fingerprint": "of long ago", "entries": []}')
    monkeypatch.setenv("ATTNGEN_DISABLE_JIT", "1")
    with pytest.raises(EnvironmentFault, match="nothing was made by another version of attngen"):
        build_one()
