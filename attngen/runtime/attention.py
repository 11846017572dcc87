"""Attention over a KV cache: made once, planned once a step, run once a layer."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from attngen import env
from attngen.codegen.source import Manifest
from attngen.runtime import compiled, host, workspace
from attngen.runtime.arguments import TYPES, Slots, specification
from attngen.runtime.kv import BlockSparse, Dense, Paged, Ragged, pool_words, split_pool
from attngen.runtime.limits import Limits
from attngen.runtime.plan import Ints, Level, Planner
from attngen.runtime.plan_report import write_report
from attngen.runtime.setup import Compilable, Options, thread_count

__all__ = ["Attention", "BlockSparse", "Dense", "Level", "Limits", "Paged", "Ragged", "State"]

_LSE_SCALE: Final = {"natural": math.log(2.0), "log2": 1.0}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a state comes from: the base of its lse (None with softmax off) and why it can't be merged, if it can't."""

    lse: Literal["natural", "log2"] | None
    unmergeable: str | None = None


class State(tuple[torch.Tensor, "torch.Tensor | None"]):
    """(out, lse) as a run gives it, which knows whether it may be merged."""

    origin: Origin


class Attention:
    """A variant over a KV cache of one layout.  Serves one thread at a time; any number share its kernels.

    `Attention(variant, num_qo_heads=…, num_kv_heads=…, head_dim=…, dtype=…, kv=Paged(…), limits=Limits(…))`, and
    head_dim_v, kv_dtype, lse, keys, batch_invariant, fast_math, target, num_workers where the defaults won't do.
    """

    def __init__(self, variant: Compilable, **options: Any) -> None:
        """Compile (or find) the kernel and allocate everything that plan() and run() will ever need."""
        self.options = Options(**options)
        self.kernel = variant.compile(self.options.kernel_config)
        threads = thread_count()
        config = self.options.plan_config(self.kernel, threads)
        library = host.library()
        self._planner = Planner(config, library.planner)
        self._partials = workspace.allocate(config.workspace(self.options.lanes_v))
        self._run, self._planned = self._launcher(library, threads)
        self._handle = compiled.Handle(self._run)
        self._rows = 0
        manifest = self.manifest
        self._plan_slots = Slots(manifest, lambda p: p.phase == "plan", "is an argument of run(), not of plan()")
        self._run_slots = Slots(
            manifest,
            lambda p: p.phase == "run",
            "is an argument of plan(), not of run(): which keys the mask skips depends on it",
        )
        self._scalars = [place for place, p in enumerate(manifest.parameters) if p.phase == "plan"]
        self._has_lse = manifest.softmax
        self._raw_origin = Origin(self.options.lse if manifest.softmax else None)
        self._origin = Origin(self._raw_origin.lse, _unmergeable(manifest))

    @property
    def manifest(self) -> Manifest:
        """What the kernel is: its parameters, tiles and configuration."""
        return self.kernel.manifest

    def plan(
        self,
        *,
        qo_indptr: Ints,
        kv_indptr: Ints | None = None,
        kv_indices: Ints | None = None,
        kv_len: Ints | None = None,
        last_page_len: Ints | None = None,
        kv_positions: Ints | None = None,
        levels: Sequence[Level] = (),
        num_blocks: int | None = None,
        **scalars: Any,
    ) -> None:
        """Lay out the work of one batch, for every run until the next plan.

        `scalars` are the variant's parameters that its mask bounds read.  `num_blocks`, the pool's, lets wrong indices
        be named here instead of at run().
        """
        values = [value.item() if _is_scalar(value) else value for value in self._plan_slots.place(scalars)]
        self._planned(*values)
        self._rows = 0
        self._planner.plan(
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            kv_len=kv_len,
            last_page_len=last_page_len,
            kv_positions=kv_positions,
            levels=levels,
            scalars=[int(values[place]) for place in self._scalars],
            num_blocks=num_blocks,
        )
        self._rows = int(qo_indptr[-1])

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        raw: bool = False,
        **params: Any,
    ) -> State:
        """Attend as planned and return (out, lse); with softmax off lse is None.

        `raw` leaves the variant's sink and output stages to the caller, who merges states first.  Rows of `out` and
        `lse` beyond the planned ones stay as they are; in fresh tensors they are 0.
        """
        k, v = split_pool(kv)
        if getattr(q, "requires_grad", False) and torch.is_grad_enabled():
            raise ValueError(
                "argument `q` requires a gradient, and attngen computes none; call run() under torch.no_grad()"
            )
        if out is None:
            out = self._fresh(q, (self.options.num_qo_heads, self.options.lanes_v), self.options.dtype)
        if lse is None and self._has_lse:
            lse = self._fresh(q, (self.options.num_qo_heads,), torch.float32)
        values = self._run_slots.place(params)
        if torch.compiler.is_compiling():
            compiled.launch(self._handle.number, q, k, v, out, lse, raw, values)
        else:
            self._run(q, k, v, out, lse, raw, *values)
        state = State((out, lse))
        state.origin = self._raw_origin if raw else self._origin
        return state

    def plan_stats(self) -> dict[str, Any]:
        """What the last plan looks like: items, balance, partials, bytes and the tiles it uses."""
        return self._planner.stats()

    def plan_report(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the last plan: workers over time by request, and the pattern of blocks."""
        write_report(self._planner, path)

    def _launcher(self, library: Any, threads: int) -> tuple[Any, Any]:
        options, config = self.options, self.manifest.config
        heads = (options.num_qo_heads, options.num_kv_heads)
        words = [TYPES[config.dtype], *heads, int(self.manifest.softmax), threads, int(env.check())]
        run, planned = library.launcher(
            self.kernel.handle,
            pool_words(options.kv, config.kv_dtype, heads[1], config.head_dim, config.head_dim_v),
            words,
            _LSE_SCALE[options.lse],
            self._planner.arena,
            self._partials.out,
            self._partials.lse,
            self._partials.arrived,
            specification(self.manifest, heads),
        )
        return run, planned

    def _fresh(self, q: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not getattr(q, "shape", ()):
            raise ValueError(f"argument `q` is a {type(q).__name__}; it needs a tensor [rows, Hq, D]")
        rows = q.shape[0]
        if torch.compiler.is_compiling():  # a graph outlives the plan that it was traced with
            return torch.zeros((rows, *shape), dtype=dtype)
        tensor = torch.empty((rows, *shape), dtype=dtype)
        if rows > self._rows:
            tensor[self._rows :].zero_()
        return tensor


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0


def _unmergeable(manifest: Manifest) -> str | None:
    """Why states of complete runs of a variant can't be merged."""
    found = []
    if manifest.has_sink:
        found.append("a sink, which each state counts already")
    if manifest.has_output:
        found.append("an output stage, which each state went through already")
    if not manifest.softmax:
        found.append("softmax off, so that its states have no lse")
    return f"`{manifest.variant}` has {' and '.join(found)}; run it with raw=True" if found else None
