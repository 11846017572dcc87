"""Finished folders by key: each made once, however many processes and threads ask for it at once.

A lookup opens the entry and takes no lock.  A miss fills a folder of its own under the key's lock and publishes it by
renaming it when it is whole, so a process that dies half-way leaves nothing that anyone would load.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from attngen import env
from attngen.errors import EnvironmentFault

RECORD: Final = "build.json"  # written last; holds at least the "output" of an entry and its "bytes"
BUNDLE: Final = "bundle.json"
_STALE_SECONDS: Final = 24 * 3600
_OWN_FOLDERS: Final = (".tmp", ".failed", "checked")  # beside the entries; locks stay, since someone may hold one
_used_bundles: list[Path] = []


class _Locks:
    """One lock a key, forgotten in a forked child, where nobody is left to release them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.guard = threading.Lock()
        self.by_key: dict[str, threading.Lock] = {}


_locks = _Locks()


# Entries ----------------------------------------------------------------------------------------


def obtain(key: str, fill: Callable[[Path], None], fingerprint: str = "") -> Path:
    """The entry of this key: from a bundle, else from the cache, else made by `fill` in an empty folder.

    `fingerprint` says which attngen asks, so that a bundle of another one can be named as the reason of a miss.
    """
    if found := find(key):
        return found
    hint = _bundle_hint(fingerprint)
    if env.disable_jit():
        raise EnvironmentFault(
            f"Kernel {key} is in no bundle and not in {env.cache_dir()}, and ATTNGEN_DISABLE_JIT forbids to compile "
            f"it.{hint}"
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
                _make_entry(root, key, fill)
            except EnvironmentFault as fault:
                raise EnvironmentFault(f"{fault}{hint}") from fault.__cause__
            return root / key


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
            if path.name in _OWN_FOLDERS or (path / RECORD).exists():
                shutil.rmtree(path, ignore_errors=True)
    return count


def unwritable(path: Path, reason: object) -> EnvironmentFault:
    """The fault of a cache that can't be written, naming the folder and the variable that moves it."""
    return EnvironmentFault(
        f"Can't write kernels to {path}: {reason}. Set ATTNGEN_CACHE_DIR to a writable folder with some free space."
    )


def trace(level: int, message: str) -> None:
    """Tell of lookups and builds on stderr, where ATTNGEN_DEBUG asks for it."""
    if env.debug() >= level:
        print(f"attngen: {message}", file=sys.stderr)


def _is_whole(folder: Path) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text())
        return bool((folder / record["output"]).stat().st_size == record["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make_entry(root: Path, key: str, fill: Callable[[Path], None]) -> None:
    """Fill a folder of our own and publish it; the caller holds the key's lock."""
    scratch = root / ".tmp"
    try:
        _remove_stale(scratch, key)
        folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=scratch))
        try:
            fill(folder)
            _sync(folder)
            _publish(folder, root / key)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as fault:
        raise unwritable(root, fault.strerror or fault) from fault


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
        raise unwritable(root, fault.strerror or fault) from fault


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
            raise unwritable(root, fault) from fault
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _same_file(handle, path):
                break
        except OSError as fault:
            os.close(handle)
            raise unwritable(root, fault) from fault
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
def build_slot(count: int) -> Iterator[None]:
    """Wait for one of `count` slots that all processes share: many that build at once share the machine's memory."""
    names = [env.cache_dir() / ".locks" / f"slot-{i}" for i in range(count)]
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


def export(built: Iterable[Path], out: str | os.PathLike[str], fingerprint: str) -> None:
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
        _write_bundle_record(target, fingerprint)
    except OSError as fault:
        raise EnvironmentFault(f"Can't write the bundle {target}: {fault.strerror or fault}.") from fault


def _write_bundle_record(target: Path, fingerprint: str) -> None:
    names = sorted(path.name for path in target.iterdir() if not path.name.startswith(".") and _is_whole(path))
    record = {"fingerprint": fingerprint, "entries": names}
    draft = target / f".{BUNDLE}.{os.getpid()}"
    draft.write_text(json.dumps(record, indent=1))
    draft.rename(target / BUNDLE)


def _check_bundle(path: Path, source: str) -> None:
    if not (path / BUNDLE).is_file():
        raise EnvironmentFault(
            f"{source} names {path}, which is no bundle (it has no {BUNDLE}). "
            f"Make one with `attngen build --out {path}`."
        )


def _bundle_hint(fingerprint: str) -> str:
    """Why a bundle that was given may not hold what is wanted; refuses one that is none."""
    for path in env.bundles():
        _check_bundle(path, "ATTNGEN_BUNDLE")
    given = (*_used_bundles, *env.bundles())
    for path in given:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads((path / BUNDLE).read_text())["fingerprint"] != fingerprint:
                return f" The bundle {path} was made by another version of attngen: make it again with this one."
    if given:
        return f" The bundle {given[0]} lacks this kernel: `attngen build` with the same options adds it."
    return ""
