"""Appending new tokens to a KV cache."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from attngen import env
from attngen.runtime import append_gpu, host
from attngen.runtime.arguments import Slots, check_dense, check_no_gradient, specification
from attngen.runtime.attention import Attention
from attngen.runtime.device import Gpu, find_gpu
from attngen.runtime.kv import BlockSparse, Dense, Layout, Paged, Ragged, pool_words, split_pool
from attngen.runtime.plan import Ints, host_ints
from attngen.runtime.setup import dtype_name, thread_count


def append_kv(
    pool: Any,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    kv: Layout | None = None,
    attention: Attention | None = None,
    qo_indptr: Ints | None = None,
    kv_indptr: Ints | None = None,
    kv_indices: Ints | None = None,
    kv_len: Ints | None = None,
    slots: Ints | None = None,
    positions: Ints | None = None,
    **params: Any,
) -> None:
    """Write new tokens k, v ([tokens, Hk, D]) into a pool of the layout `kv` (default: the attention's).

    Where to: either as plan() has it, `qo_indptr`, `kv_indptr`, `kv_indices` and `kv_len` (lengths that count the new
    tokens, which are each request's last), or `slots`, the row of the pool for every token (block · block size +
    offset; a negative one leaves its token out).

    On a GPU, `slots` and `positions` may be tensors there: then nothing waits, and a captured CUDA graph reads their
    new values.  They are not checked (ATTNGEN_CHECK=1 checks); a token whose slot the pool doesn't have is left out.

    An `attention` made with keys="transformed" sends each key through its variant's key stage, in fp32, before it is
    rounded; `params` are the parameters which that stage reads, and with `slots` it needs `positions`.  Values round to
    nearest even; f16 and bf16 overflow to infinity, fp8 saturates at its largest finite value.
    """
    layout = _layout(kv, attention)
    k_pool, v_pool = split_pool(pool)
    names, tensors = ("k", "v", "pool", "pool", *params), (k, v, k_pool, v_pool, *params.values())
    for name, tensor in zip(names[:2], tensors[:2], strict=True):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 3:
            got = f"{list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
            raise ValueError(f"argument `{name}` is {got}; it needs a tensor [tokens, Hk, D]")
    check_no_gradient(names, tensors)
    check_dense(names, tensors)
    gpu = _gpu(k_pool, attention)
    transforms, num_qo_heads, rows, values = _transform(attention, params)
    spec = pool_words(layout, dtype_name(k_pool), k.shape[-2], k.shape[-1], v.shape[-1])
    if attention is not None:
        config = attention.manifest.config
        heads = attention.options.num_kv_heads
        spec = pool_words(layout, config.kv_dtype, heads, config.head_dim, config.head_dim_v)
    if slots is None:
        requests = (qo_indptr, kv_indptr, kv_indices, kv_len)
        slot_rows, places = _map(layout, k.shape[0], *requests)
    else:
        given = {"qo_indptr": qo_indptr, "kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_len": kv_len}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"arguments `slots` and `{name}` are both given; they say the same thing twice")
        slot_rows = _int32(slots, "slots", gpu)
        if transforms and positions is None:
            raise ValueError("missing argument `positions`: with `slots`, the key stage needs every token's position")
        places = None if positions is None else _int32(positions, "positions", gpu)
    if gpu is None:
        kernel = attention.kernel.handle if attention is not None and transforms else 0
        append = _appender(kernel, tuple(spec), num_qo_heads, tuple(map(tuple, rows)))
        append(k_pool, v_pool, k, v, slot_rows, places, *values)
        return
    longest = _check_slots(slot_rows, places, _num_slots(layout, k_pool, v_pool))
    slot_rows = append_gpu.on_gpu(slot_rows, "slots", gpu)
    if attention is None:
        append_gpu.scatter(layout, k_pool, v_pool, k, v, slot_rows)
        return
    places = append_gpu.on_gpu(places, "positions", gpu) if places is not None and transforms else None
    tensors = (k_pool, v_pool, k, v)
    append_gpu.append_by_kernel(
        attention, gpu, tuple(spec), tuple(map(tuple, rows)), tensors, slot_rows, places, longest, values
    )


@functools.lru_cache(maxsize=256)
def _appender(kernel: int, spec: tuple[int, ...], num_qo_heads: int, rows: tuple[tuple[Any, ...], ...]) -> Any:
    """The host library's function for a pool, made once: an append a layer and step is a call of it."""
    parameters = [list(row) for row in rows]
    return host.library().append(kernel, list(spec), num_qo_heads, thread_count(), parameters, env.check())


def _gpu(k_pool: Any, attention: Attention | None) -> Gpu | None:
    """Where the pool has to be."""
    if attention is not None:
        return attention.options.gpu
    return find_gpu(k_pool.device) if isinstance(k_pool, torch.Tensor) and k_pool.is_cuda else None


def _num_slots(layout: Layout, k_pool: torch.Tensor, v_pool: Any) -> int:
    """Rows of the pool."""
    flat = layout.flat[1] and k_pool.ndim == (4 if v_pool is None else 3)
    return int(k_pool.shape[0]) * (1 if flat else layout.block[1])


def _check_slots(slots: torch.Tensor, positions: torch.Tensor | None, num_slots: int) -> int:
    """Refuse what the host can see to be wrong; the largest position + 1, or 0 where it isn't known."""
    there = slots.is_cuda or (positions is not None and positions.is_cuda)
    if there:
        if not append_gpu.checks() or append_gpu.is_capturing(slots):
            return 0
        slots, positions = slots.cpu(), None if positions is None else positions.cpu()
    if slots.numel() == 0:
        return 0
    if int(slots.max()) >= num_slots:
        token = int((slots >= num_slots).int().argmax())
        raise ValueError(f"slot {int(slots[token])} of token {token} is outside the pool, which has {num_slots} rows")
    if positions is None or len(positions) != len(slots):
        return 0
    wrong = (positions < 0) & (slots >= 0)
    if bool(wrong.any()):
        token = int(wrong.int().argmax())
        raise ValueError(f"position {int(positions[token])} of token {token} is negative")
    return int(positions.max()) + 1


def _layout(kv: Layout | None, attention: Attention | None) -> Layout:
    if kv is None and attention is None:
        raise ValueError("missing argument `kv`: without an attention, the pool's layout has to be given")
    if kv is not None and attention is not None and kv != attention.options.kv:
        raise ValueError(f"kv is {kv}, but the attention reads {attention.options.kv}")
    layout = kv if attention is None else attention.options.kv
    if not isinstance(layout, (Paged, Ragged, Dense, BlockSparse)):
        raise ValueError(f"kv is {layout!r}; it needs Paged(…), Ragged(), Dense(…) or BlockSparse(…)")
    return layout


def _transform(attention: Attention | None, params: dict[str, Any]) -> tuple[bool, int, list[list[Any]], Sequence[Any]]:
    """Whether keys are transformed, the number of query heads, and the key stage's parameters."""
    if attention is None or attention.options.keys == "raw" or not attention.manifest.has_key:
        if params:
            raise ValueError(
                f"argument `{next(iter(params))}` is given, but no key stage is applied that could read it"
            )
        return False, 1 if attention is None else attention.options.num_qo_heads, [], []
    manifest, options = attention.manifest, attention.options
    places = Slots(manifest, lambda p: p.in_key, "is not read by the key stage")
    rows = specification(manifest, (options.num_qo_heads, options.num_kv_heads), for_append=True)
    return True, options.num_qo_heads, rows, places.place(params)


def _map(
    layout: Layout,
    count: int,
    qo_indptr: Ints | None,
    kv_indptr: Ints | None,
    kv_indices: Ints | None,
    kv_len: Ints | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The slot and the position of every token."""
    affine = isinstance(layout, (Ragged, Dense))
    rows = _int32(_given(qo_indptr, "qo_indptr"), "qo_indptr")
    lengths = _int32(_given(kv_len, "kv_len"), "kv_len")
    if isinstance(layout, Dense):
        if kv_indptr is not None:
            raise ValueError("argument `kv_indptr` is given, but a Dense cache has one row a request")
        lists = torch.arange(len(lengths) + 1, dtype=torch.int32)
    else:
        lists = _int32(_given(kv_indptr, "kv_indptr"), "kv_indptr")
    if affine and kv_indices is not None:
        raise ValueError(f"argument `kv_indices` is given, but a {type(layout).__name__} cache has no indices")
    indices = lists[:0] if affine else _int32(_given(kv_indices, "kv_indices"), "kv_indices")
    for name, tensor in (("qo_indptr", rows), ("kv_indptr", lists)):
        if len(tensor) != len(lengths) + 1:
            raise ValueError(f"{name} has {len(tensor)} entries; it needs {len(lengths) + 1} (one a request, and 1)")
    if int(rows[-1]) != count:
        raise ValueError(f"qo_indptr ends at {int(rows[-1])}; k has {count} tokens")
    slots, positions = torch.empty(count, dtype=torch.int32), torch.empty(count, dtype=torch.int32)
    host.library().map_slots(rows, lists, indices, affine, lengths, layout.block[1], slots, positions)
    return slots, positions


def _given(value: Ints | None, name: str) -> Ints:
    if value is None:
        raise ValueError(f"missing argument `{name}`: it or `slots` says where the tokens go")
    return value


def _int32(value: Ints, name: str, gpu: Gpu | None = None) -> torch.Tensor:
    """A contiguous 1-d int32 tensor of the same numbers; for a pool on a GPU also one there, as it is."""
    tensor: torch.Tensor = host_ints(value, name)
    if gpu is not None and tensor.is_cuda:
        return tensor
    if tensor.dtype == torch.int32 and tensor.ndim == 1 and tensor.is_cpu and tensor.is_contiguous():
        return tensor
    if tensor.ndim != 1 or tensor.dtype not in (torch.int32, torch.int64) or tensor.device.type != "cpu":
        raise ValueError(f"{name} is {tensor.dtype}{list(tensor.shape)}; it needs 1 dimension of int32 or int64 on cpu")
    if tensor.dtype == torch.int64 and tensor.numel():
        for extreme in (int(tensor.min()), int(tensor.max())):
            if not -(2**31) <= extreme < 2**31:
                raise ValueError(f"{name} has {extreme}; it needs numbers of 32 bits")
    return tensor.to(torch.int32).contiguous()
