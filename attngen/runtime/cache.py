"""Compiled kernels by content: a key names one finished folder, built once however many ask for it at once.

A lookup opens the entry and takes no lock.  A miss builds under the key's lock in a folder of its own, which is
published by renaming it when it is whole, so a process that dies half-way leaves nothing that anyone would load.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from attngen import env
from attngen.codegen.source import KernelSource
from attngen.errors import EnvironmentFault
from attngen.runtime.build import RECORD, Recipe, build, job_count, kernel_recipe, trace
from attngen.runtime.toolchain import out_of_space

BUNDLE: Final = "bundle.json"
_STALE_SECONDS: Final = 24 * 3600
_PACKAGE: Final = Path(__file__).resolve().parent.parent

# What decides the text and the code of a kernel, and of the host library.
_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "kernels": (
        "dtypes.py", "compiler.py", "dsl", "ir", "codegen", "prelude", "include", "runtime/build.py",
        "../grammar/attn.lark",
    ),
    "host": ("include/attngen/work.hpp", "include/attngen/bounds.hpp", "runtime/native", "runtime/build.py"),
}  # fmt: skip
_SUFFIXES: Final = (".py", ".hpp", ".cpp", ".cuh", ".h", ".jinja", ".attn", ".lark")

_used_bundles: list[Path] = []


class _Locks:
    """One lock a key, forgotten in a forked child, where nobody is left to release them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.guard = threading.Lock()
        self.by_key: dict[str, threading.Lock] = {}


_locks = _Locks()


# Keys -------------------------------------------------------------------------------------------


def make_key(*parts: str, of: Literal["kernels", "host"] = "kernels") -> str:
    """The name of the entry for these parts and this attngen; equal content, equal key, whatever the file times."""
    digest = hashlib.sha256(fingerprint(of).encode())
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


@cache
def fingerprint(of: Literal["kernels", "host"] = "kernels") -> str:
    """A hash of the content of attngen's own code that decides what a build gives."""
    digest = hashlib.sha256()
    for name in _PARTS[of]:
        for file in _files(str(_PACKAGE / name)):
            with open(file, "rb") as opened:
                data = opened.read()
            digest.update(f"{os.path.basename(file)} {len(data)}\n".encode())
            digest.update(data)
    return digest.hexdigest()


def _files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    found: list[str] = []
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.is_dir():
                    found += _files(entry.path)
                elif entry.name.endswith(_SUFFIXES):
                    found.append(entry.path)
    return found


# Lookup and build -------------------------------------------------------------------------------


def entry(key: str, make: Callable[[], KernelSource]) -> Path:
    """The folder of a kernel: from a bundle, else from the cache, else built from what `make` gives."""
    return get(key, lambda: kernel_recipe(make()))


def get(key: str, make: Callable[[], Recipe]) -> Path:
    """The folder of any entry; `make` is called only where it has to be built, by one caller a key."""
    if found := find(key):
        return found
    _check_bundles()
    if env.disable_jit():
        raise EnvironmentFault(
            f"Kernel {key} is in no bundle and not in {env.cache_dir()}, and ATTNGEN_DISABLE_JIT forbids to compile it."
            f"{_bundle_hint()}"
        )
    root = env.cache_dir()
    with _thread_lock(key):
        if found := find(key):
            return found
        _make_folders(root)
        with _file_lock(root / ".locks" / f"{key}.lock", root):
            if found := find(key):
                return found
            try:
                return _build_entry(root, key, make())
            except EnvironmentFault as fault:
                raise EnvironmentFault(f"{fault}{_bundle_hint()}") from fault.__cause__


def find(key: str) -> Path | None:
    """The finished entry of this key, where there is one."""
    for root in (*_used_bundles, *env.bundles(), env.cache_dir()):
        if _is_whole(root / key):
            trace(2, f"found {key} in {root}")
            return root / key
    return None


def entries() -> list[tuple[Path, dict[str, Any]]]:
    """Every finished entry of the cache with the record of its build, newest first."""
    root = env.cache_dir()
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if not path.name.startswith(".") and _is_whole(path)]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [(path, json.loads((path / RECORD).read_text())) for path in found]


def clear() -> int:
    """Remove every entry of the cache and whatever failed builds left; gives the number of entries."""
    root = env.cache_dir()
    count = len(entries())
    if root.is_dir():
        for path in root.iterdir():
            if path.name != ".locks" and (path.name.startswith(".") or (path / RECORD).exists()):
                shutil.rmtree(path, ignore_errors=True)
    return count


def _is_whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text())
        return bool((folder / record["output"]).stat().st_size == record["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _build_entry(root: Path, key: str, recipe: Recipe) -> Path:
    """Build into a folder of our own and publish it; the caller holds the key's lock."""
    scratch = root / ".tmp"
    try:
        _remove_stale(scratch, key)
        folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=scratch))
        try:
            with _slot(root):
                build(recipe, folder, root / ".failed" / key)
            _sync(folder)
            _publish(folder, root / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as fault:
        raise out_of_space(root, fault) from fault
    return root / key


def _publish(folder: Path, final: Path) -> None:
    """Make a finished folder the entry of its key."""
    # NOTE: renaming a directory is atomic, renaming its files one by one is not.
    os.chmod(folder, 0o755)
    if final.exists():
        # An entry that someone damaged: move it out of the way first, since a rename can't replace a full directory.
        final.rename(folder.with_name(folder.name + ".damaged"))
        shutil.rmtree(folder.with_name(folder.name + ".damaged"), ignore_errors=True)
    folder.rename(final)
    _sync_folder(final.parent)


def _sync(folder: Path) -> None:
    """Bring a folder's content to the disk, so that a full one is noticed now and not by a later load."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_stale(scratch: Path, key: str) -> None:
    """Remove what killed builds left: of this key, whose lock we hold, and of others after a day."""
    limit = time.time() - _STALE_SECONDS
    for path in scratch.iterdir():
        with contextlib.suppress(OSError):
            if path.name.startswith(f"{key}.") or path.stat().st_mtime < limit:
                shutil.rmtree(path, ignore_errors=True)


def _make_folders(root: Path) -> None:
    try:
        for name in (".locks", ".tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise out_of_space(root, fault.strerror or fault) from fault


# Locks ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _thread_lock(key: str) -> Iterator[None]:
    global _locks
    if _locks.pid != os.getpid():
        _locks = _Locks()
    with _locks.guard:
        lock = _locks.by_key.setdefault(key, threading.Lock())
    with lock:
        yield


@contextlib.contextmanager
def _file_lock(path: Path, root: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, whatever ends it."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as fault:
            raise out_of_space(root, fault) from fault
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _same_file(handle, path):
                break
        except OSError as fault:
            os.close(handle)
            raise out_of_space(root, fault) from fault
        os.close(handle)  # its last holder removed the file that we waited for
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _slot(root: Path) -> Iterator[None]:
    """Wait for one of the machine's build slots: many processes that build at once share its memory."""
    names = [root / ".locks" / f"slot-{i}" for i in range(job_count())]
    while True:
        for name in names:
            handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            try:
                yield
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)
            return
        time.sleep(0.02)


# Bundles ----------------------------------------------------------------------------------------


def use_bundle(folder: str | os.PathLike[str]) -> None:
    """Search a folder of prebuilt kernels (`attngen build --out`) before the cache, in this process."""
    path = Path(folder).expanduser().absolute()
    _check_bundle(path, "The folder given to use_bundle")
    if path not in _used_bundles:
        _used_bundles.append(path)


def export(built: Iterable[Path], out: str | os.PathLike[str]) -> None:
    """Copy finished entries into a bundle, which loads where there is no compiler."""
    target = Path(out).expanduser().absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for source in built:
            if _is_whole(target / source.name):
                continue
            copy = Path(tempfile.mkdtemp(prefix=f".{source.name}.", dir=target))
            try:
                shutil.copytree(source, copy, dirs_exist_ok=True)
                _sync(copy)
                _publish(copy, target / source.name)
            finally:
                shutil.rmtree(copy, ignore_errors=True)
        _write_bundle_record(target)
    except OSError as fault:
        raise EnvironmentFault(f"Can't write the bundle {target}: {fault.strerror or fault}.") from fault


def _write_bundle_record(target: Path) -> None:
    names = sorted(path.name for path in target.iterdir() if not path.name.startswith(".") and _is_whole(path))
    record = {"kernels": fingerprint("kernels"), "host": fingerprint("host"), "entries": names}
    draft = target / f".{BUNDLE}.{os.getpid()}"
    draft.write_text(json.dumps(record, indent=1))
    draft.rename(target / BUNDLE)


def _check_bundles() -> None:
    for path in env.bundles():
        _check_bundle(path, "ATTNGEN_BUNDLE")


def _check_bundle(path: Path, source: str) -> None:
    if not (path / BUNDLE).is_file():
        raise EnvironmentFault(
            f"{source} names {path}, which is no bundle (it has no {BUNDLE}). Make one with `attngen build --out {path}`."
        )


def _bundle_hint() -> str:
    """Why a bundle that was given may not hold what is wanted."""
    for path in (*_used_bundles, *env.bundles()):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads((path / BUNDLE).read_text())["kernels"] != fingerprint("kernels"):
                return f" The bundle {path} was made by another version of attngen: make it again with this one."
    return ""
