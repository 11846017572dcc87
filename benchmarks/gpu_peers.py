"""FlashInfer's fa2 path over the tensors of a benchmark case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_cases import CAP, PAGE, WINDOW, Batch, Call, Case

_WORKSPACE_BYTES = 512 << 20
_ALIBI = 2  # FlashInfer's PosEncodingMode


def version() -> str | None:
    """FlashInfer's version; None where it isn't installed."""
    try:
        import flashinfer
    except ImportError:
        return None
    return str(flashinfer.__version__)


def compile_modules(cases: Iterable[Case]) -> None:
    """Compile all modules that the cases need at once; one after the other each would leave most cores idle."""
    from flashinfer.jit.attention import modules
    from flashinfer.jit.core import build_jit_specs

    # What its wrappers load; a version without the private name loads the public one's.
    module = getattr(modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module)

    bf16 = torch.bfloat16
    wanted = {(c.head_dim, _ALIBI * (c.kind == "alibi"), c.kind == "window", c.kind == "soft cap") for c in cases}
    build_jit_specs(
        [
            module("fa2", bf16, bf16, bf16, torch.int32, dim, dim, position, window, cap, False)
            for dim, position, window, cap in sorted(wanted)
        ]
    )


def flashinfer_fa2(case: Case, batch: Batch) -> Call:
    """A planned wrapper's run, into one `out`."""
    return _decode(case, batch) if case.decode else _prefill(case, batch)


def _workspace(device: torch.device) -> torch.Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _prefill(case: Case, batch: Batch) -> Call:
    import flashinfer

    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(batch.device), "NHD", backend="fa2")
    options: dict[str, Any] = {
        "soft cap": {"logits_soft_cap": CAP},
        "alibi": {"pos_encoding_mode": "ALIBI"},
        "window": {"window_left": WINDOW},
    }.get(case.kind, {})
    wrapper.plan(
        batch.qo_indptr.to(batch.device),
        batch.kv_indptr.to(batch.device),
        case.num_qo_heads,
        case.num_kv_heads,
        case.head_dim,
        causal=case.causal,
        q_data_type=batch.dtype,
        **options,
    )
    k, v = batch.kv.unbind(0)
    out = torch.empty_like(batch.q)
    return lambda: wrapper.run(batch.q, k, v, out=out)


def decode_plan(case: Case, batch: Batch) -> tuple[Any, Callable[[], object]]:
    """The tensor-core decode wrapper, and its plan() as a call; page numbers lie on the GPU already."""
    import flashinfer

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(batch.device), "NHD", use_tensor_cores=True, backend="fa2"
    )
    indptr, indices, last = batch.kv_indptr, batch.kv_indices.to(batch.device), batch.last_page_len
    heads = case.num_qo_heads, case.num_kv_heads, case.head_dim
    return wrapper, lambda: wrapper.plan(indptr, indices, last, *heads, PAGE, q_data_type=batch.dtype)


def _decode(case: Case, batch: Batch) -> Call:
    wrapper, plan = decode_plan(case, batch)
    plan()
    out = torch.empty_like(batch.q)
    return lambda: wrapper.run(batch.q, batch.kv, out=out)
