"""A variant put to the test: compiled, run on a random batch, and judged against the reference."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from attngen.dtypes import STORAGE
from attngen.ir.nodes import Variant
from attngen.loading import LoadedVariant
from attngen.random_batch import RandomBatch, Shape, random_batch
from attngen.reference import Verdict, judge, reference, rounded
from attngen.runtime.attention import Attention, Limits, Paged

Keys: TypeAlias = Literal["raw", "transformed"]


@dataclass(frozen=True, slots=True)
class Trial:
    """What came out: the errors beside their bounds, seconds to compile, milliseconds to run."""

    variant: str
    target: str
    verdict: Verdict
    untouched: bool  # output rows that belong to no request kept what they held
    compile_s: float
    run_ms: float

    @property
    def ok(self) -> bool:
        """Whether the kernel is right on this batch."""
        return self.verdict.ok and self.untouched

    def sentence(self) -> str:
        """The line that `attngen run` prints."""
        verdict = self.verdict
        judged = f"error {verdict.error:.2e} (bound {verdict.bound:.2e})"
        times = f"compiled in {self.compile_s:.1f} s, ran in {self.run_ms:.2f} ms"
        return f"{'ok' if self.ok else 'WRONG'}: {self.variant} on {self.target}: {judged}, {times}"

    def as_json(self) -> dict[str, Any]:
        """The line that `attngen run --json` prints."""
        errors = asdict(self.verdict)
        times = {"compile_s": round(self.compile_s, 3), "run_ms": round(self.run_ms, 4)}
        backend, _, level = self.target.partition("-")
        where = {"target": backend, "level": level}
        return {"ok": self.ok, "variant": self.variant, **where, **errors, **times}


def attention(
    variant: LoadedVariant, shape: Shape, *, target: str = "cpu", keys: Keys = "raw", fast_math: bool = False
) -> Attention:
    """An Attention whose limits hold exactly this shape, on the device of the target."""
    return Attention(
        variant,
        num_qo_heads=shape.num_qo_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        head_dim_v=shape.head_dim_v,
        dtype=torch_type(shape.dtype),
        kv_dtype=torch_type(shape.kv_dtype or shape.dtype),
        kv=Paged(page_size=shape.page_size, layout=shape.layout),
        limits=limits(shape),
        device=device_of(target),
        target=target,
        keys=keys,
        fast_math=fast_math,
    )


def device_of(target: str) -> str:
    """Where a target runs: "cpu" or "cuda"."""
    return "cpu" if target.startswith("cpu") else "cuda"


def plan_batch(variant: LoadedVariant, shape: Shape, **options: Any) -> tuple[Attention, RandomBatch]:
    """An Attention with a plan of a random batch."""
    batch = random_batch(variant.ir, shape)
    attn = attention(variant, shape, **options)
    for_plan, _ = split_parameters(attn, batch.params)
    attn.plan(**batch.plan_arguments(), **for_plan)
    return attn, batch


def limits(shape: Shape) -> Limits:
    """The smallest limits that hold the shape."""
    return Limits(
        batch=max(1, len(shape.requests)),
        q_tokens=max(1, sum(q for q, _ in shape.requests)),
        q_len=max([1, *(q for q, _ in shape.requests)]),
        kv_tokens=max(1, sum(kv for _, kv in shape.requests)),
    )


def torch_type(name: str) -> torch.dtype:
    """The torch type of a row of dtypes.STORAGE."""
    dtype: torch.dtype = getattr(torch, STORAGE[name].torch)
    return dtype


def split_parameters(attn: Attention, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variant's parameters that plan() takes, and those that run() takes."""
    plan = {parameter.name for parameter in attn.manifest.parameters if parameter.phase == "plan"}
    return (
        {name: value for name, value in params.items() if name in plan},
        {name: value for name, value in params.items() if name not in plan},
    )


def try_variant(variant: LoadedVariant, shape: Shape, *, repeats: int = 3, **options: Any) -> Trial:
    """Compile, run and judge; `run_ms` is the shortest of `repeats` runs after the first."""
    started = time.perf_counter()
    attn = attention(variant, shape, **options)
    compile_s = time.perf_counter() - started
    # A pool of transformed keys is random data like any other, to which the key stage is not applied again.
    meant = replace(variant.ir, key=None) if attn.options.keys == "transformed" else variant.ir
    batch = random_batch(meant, shape)
    there = batch.to(device_of(attn.manifest.config.target))
    for_plan, _ = split_parameters(attn, batch.params)
    _, for_run = split_parameters(attn, there.params)
    attn.plan(**batch.plan_arguments(), **for_plan)
    out, lse = there.outputs()
    outputs = {"out": out} | ({"lse": lse} if meant.softmax else {})
    times = [
        _timed(lambda: attn.run(there.q, (there.k_pool, there.v_pool), **outputs, **for_run), out.device)
        for _ in range(1 + repeats)
    ]
    out, lse, rows = out.cpu(), lse.cpu(), batch.qo_indptr[-1]
    untouched = bool(out[rows:].isnan().all() and lse[rows:].isnan().all())
    verdict = verdict_of(meant, batch, out, lse if meant.softmax else None)
    run_ms = 1e3 * min(times[1:] or times)
    return Trial(variant.name, attn.manifest.config.target, verdict, untouched, compile_s, run_ms)


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds until what the call starts is done."""
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def verdict_of(variant: Variant, batch: RandomBatch, out: torch.Tensor, lse: torch.Tensor | None) -> Verdict:
    """Judge outputs of the batch against the reference."""
    from_reference = batch.for_reference()
    exact = reference(variant, from_reference)
    plain = rounded(variant, from_reference, out.dtype)
    return judge(out, lse, exact, plain)
