"""Appending to a pool on a GPU: one launch of the Attention's append kernel or, without an Attention, torch's scatter.

Slots on the GPU are read there, so that a CUDA graph sees their new values; those on the host are copied first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
import tvm_ffi

from attngen import env
from attngen.runtime import host
from attngen.runtime.attention import Attention
from attngen.runtime.device import Gpu, find_gpu
from attngen.runtime.kv import Layout

_FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16, *_FP8)
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def append_by_kernel(
    attention: Attention,
    gpu: Gpu,
    spec: tuple[int, ...],
    rows: tuple[tuple[Any, ...], ...],
    tensors: tuple[Any, Any, torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    positions: torch.Tensor | None,
    longest: int,
    values: Sequence[Any],
) -> None:
    """Launch on the current stream.  `tensors` are the pool, K or both and V or None, and the new k and v."""
    kernel = attention.append_kernel
    if gpu.is_capturing() and not _is_loaded(kernel.handle, gpu.index):
        raise ValueError(
            "append_kv() is captured into a CUDA graph before it has run; call it once before the capture, "
            "which loads its kernel"
        )
    append = _appender(kernel.handle, gpu.dlpack, spec, attention.options.num_qo_heads, rows)
    _loaded.add((kernel.handle, gpu.index))
    append(*tensors, slots, positions, gpu.stream(), longest, *values)


_loaded: Final[set[tuple[int, int]]] = set()


def _is_loaded(handle: int, index: int) -> bool:
    return (handle, index) in _loaded


@functools.lru_cache(maxsize=256)
def _appender(
    handle: int, device: tuple[int, int], spec: tuple[int, ...], num_qo_heads: int, rows: tuple[tuple[Any, ...], ...]
) -> Any:
    """The host library's function for a pool; made once, since that loads the kernel."""
    zeros = torch.zeros(64, dtype=torch.uint8, device=f"cuda:{device[1]}")
    parameters = [list(row) for row in rows]
    return host.library().cuda_append(
        handle, list(device), list(spec), num_qo_heads, tvm_ffi.from_dlpack(zeros), parameters
    )


@functools.cache
def checks() -> bool:
    """Whether slots on a GPU are checked, which waits for it; read once."""
    return env.check()


def is_capturing(tensor: torch.Tensor) -> bool:
    """Whether work on the tensor's device is captured into a CUDA graph."""
    gpu = find_gpu(tensor.device)
    return gpu is not None and gpu.is_capturing()


def on_gpu(value: torch.Tensor, name: str, gpu: Gpu) -> torch.Tensor:
    """i32 there: a tensor of the GPU as it is or converted, one of the host copied without waiting."""
    if value.is_cuda:
        if value.ndim != 1 or value.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{name} is {value.dtype}{list(value.shape)} on {value.device}; it needs 1 dimension of int32 or int64"
            )
        return value.to(torch.int32).contiguous()
    if gpu.is_capturing():
        raise ValueError(
            f"argument `{name}` is on the CPU; while a CUDA graph is captured it needs a tensor on {gpu.torch_device}, "
            "whose new values each replay reads"
        )
    return value.pin_memory().to(gpu.torch_device, non_blocking=True)


def scatter(layout: Layout, k_pool: torch.Tensor, v_pool: Any, k: Any, v: Any, slots: torch.Tensor) -> None:
    """Write k and v at slots on the GPU, without a kernel of attngen's and without waiting."""
    halves = (k_pool, v_pool) if v_pool is not None else _split(k_pool)
    pools = [_rows(layout, half, name) for half, name in zip(halves, ("K", "V"), strict=True)]
    for name, pool, new in zip("kv", pools, (k, v), strict=True):
        wanted = (len(slots), *pool.shape[-2:])
        if new.shape != wanted or new.device != pool.device or new.dtype not in _FLOATS:
            raise ValueError(
                f"argument `{name}` is {new.dtype}{list(new.shape)} on {new.device}; it needs a float type, "
                f"[tokens = {wanted[0]}, Hk = {wanted[1]}, D = {wanted[2]}] on {pool.device}"
            )
    if len(slots) == 0 or any(pool.shape[0] == 0 for pool in pools):
        return
    size = pools[0].shape[1]
    inside = (slots >= 0) & (slots < pools[0].shape[0] * size)
    # Tokens that are left out write once more what another writes or, where all are left out, what is there already:
    # nothing on the host depends on which they are, so a graph can hold this.  (x[some] would wait for its number.)
    some = inside.to(torch.int32).argmax(dim=0, keepdim=True)
    target = torch.where(inside, slots, slots.index_select(0, some)).clamp(0, pools[0].shape[0] * size - 1).long()
    block, offset = target // size, target % size
    for pool, new in zip(pools, (k, v), strict=True):
        bits = pool.view(_BITS[pool.element_size()])
        fresh = _rounded(new, pool.dtype).contiguous().view(bits.dtype)
        fresh = torch.where(inside[:, None, None], fresh, fresh.index_select(0, some))
        fresh = torch.where(inside.index_select(0, some), fresh, bits[block, offset])
        bits[block, offset] = fresh


def _split(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if both.ndim < 2 or both.shape[1] != 2:
        raise ValueError(
            f"the pool is {both.dtype}{list(both.shape)}; as one tensor it needs K and V along dimension 1"
        )
    return both[:, 0], both[:, 1]


def _rows(layout: Layout, half: torch.Tensor, name: str) -> torch.Tensor:
    """A pool as [blocks, tokens, heads, lanes]."""
    may_be_blocked, may_be_flat = layout.flat
    size = layout.block[1]
    if half.ndim == 3 and may_be_flat:
        return half[:, None]
    nhd = half.transpose(1, 2) if half.ndim == 4 and layout.layout == "HND" else half
    if not may_be_blocked or half.ndim != 4 or nhd.shape[1] != size:
        raise ValueError(f"the {name} pool is {half.dtype}{list(half.shape)}; {layout} needs blocks of {size} tokens")
    if half.stride(-1) != 1 or any(
        step == 0 < count - 1 for step, count in zip(half.stride(), half.shape, strict=True)
    ):
        raise ValueError(f"the {name} pool has strides {half.stride()}; it needs memory of its own for every element")
    return nhd


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Nearest even; fp8 saturates, NaN stays."""
    if dtype in _FP8 and x.dtype != dtype:
        most = torch.finfo(dtype).max
        x = x.float().clamp(-most, most)
    return x.to(dtype)
