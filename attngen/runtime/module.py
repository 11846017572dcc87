"""A compiled kernel, loaded: its manifest, and the handle that launches know it by."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from attngen.codegen.source import Manifest
from attngen.errors import EnvironmentFault
from attngen.runtime import toolchain
from attngen.runtime.build import MANIFEST


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of this process; `handle` is the host library's."""

    folder: Path
    manifest: Manifest
    handle: int


@functools.cache
def load_kernel(folder: Path) -> Kernel:
    """Load a finished entry of the cache or of a bundle; kernels stay loaded as long as the process."""
    manifest = Manifest.from_json((folder / MANIFEST).read_text())
    toolchain.check_isa(manifest.isa, f"The kernel of `{manifest.variant}` ({manifest.config.target})")
    from attngen.runtime import host  # here, since checking a variant must not load tvm_ffi

    on_gpu = manifest.warps > 0
    path = folder / ("kernel.cubin" if on_gpu else "kernel.so")
    library = host.library()
    if on_gpu:  # loaded by the first Attention on a device, so that nothing here needs one
        return Kernel(folder, manifest, library.open_cubin(str(path), 32 * manifest.warps, manifest.shared_bytes))
    try:
        handle = library.open_kernel(str(path))
    except RuntimeError as fault:
        if isinstance(fault, EnvironmentFault):
            raise
        raise EnvironmentFault(f"The kernel {path} does not load: {fault}") from None
    return Kernel(folder, manifest, handle)
