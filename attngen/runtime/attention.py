"""Attention over a KV cache: made once, planned once a step, run once a layer."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Literal, ParamSpec

import torch

from attngen import env
from attngen.codegen.source import APPEND_ROWS, Manifest
from attngen.runtime import compiled
from attngen.runtime.arguments import Slots, check_dense, check_no_gradient
from attngen.runtime.engine import make_engine
from attngen.runtime.kv import BlockSparse, Dense, Layout, Paged, Ragged, split_pool
from attngen.runtime.limits import Limits
from attngen.runtime.module import Kernel
from attngen.runtime.plan import Ints, Level
from attngen.runtime.plan_report import write_report
from attngen.runtime.setup import Compilable, Keys, LseBase, Options, check_bool, compile_variant

__all__ = ["Attention", "BlockSparse", "Dense", "Level", "Limits", "Paged", "Ragged", "State", "workspace_bytes"]

_Arguments = ParamSpec("_Arguments")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a state comes from: the base of its lse (None with softmax off) and why it can't be merged, if it can't."""

    lse: Literal["natural", "log2"] | None
    unmergeable: str | None = None


class State(tuple[torch.Tensor, "torch.Tensor | None"]):
    """(out, lse) as a run gives it, which knows whether it may be merged."""

    origin: Origin


class Attention:
    """A variant over a KV cache of one layout.  Serves one thread at a time; any number share its kernels."""

    def __init__(
        self,
        variant: Compilable,
        *,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        kv: Layout,
        limits: Limits,
        head_dim_v: int | None = None,
        kv_dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        target: str | None = None,
        lse: LseBase = "natural",
        keys: Keys = "raw",
        batch_invariant: bool = False,
        fast_math: bool = False,
        num_workers: int | None = None,
    ) -> None:
        """Compile (or find) the kernel and allocate everything that plan() and run() will ever need.

        variant          what attngen.load() or attngen.parse() gives
        num_qo_heads     query heads, a multiple of `num_kv_heads`; KV head h // (num_qo_heads / num_kv_heads) is h's
        head_dim         elements of a query and a key: a multiple of 8, on a GPU up to 256
        dtype            of q and out: torch.bfloat16, torch.float16 or, on the CPU, torch.float32
        kv               how the cache lies in memory: Paged(…), Ragged(), Dense(…) or BlockSparse(…)
        limits           the largest batch, in requests, rows and keys; the workspace holds any batch inside them
        head_dim_v       elements of a value and of an output row (default: head_dim)
        kv_dtype         of the pool, also torch.float8_e4m3fn or torch.float8_e5m2 (default: dtype)
        device           "cpu", "cuda" (torch's current one) or "cuda:1": where all tensors of run() are
        target           what to compile for (default: the best that the device runs): "cpu-amx", "cpu-avx512",
                         "cpu-avx2", or a GPU's, such as "sm90"
        lse              the base of the log-sum-exp that run() returns: "natural" or "log2"
        keys             "transformed" where the pool holds keys after the variant's key stage (append_kv)
        batch_invariant  a request gives the same bits alone and in any batch
        fast_math        approximate transcendental functions
        num_workers      parts that a plan divides its work into (default: the threads of the CPU engine, or as many
                         CTAs as the GPU holds at once; on a GPU, of each kernel)

        ValueError for an argument that can't work, AttnError for a variant that can't be compiled so, and
        EnvironmentFault where the machine lacks a compiler, an instruction or a GPU.

        On a GPU, plan() and run() put their work on torch's current stream, in the order of the calls also where that
        changes.  A captured CUDA graph holds a run for all later plans; replay it where plan() is ordered before it (on
        the same stream, say), and keep the Attention as long as the graph.
        """
        self.options = Options(
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            kv=kv,
            limits=limits,
            head_dim_v=head_dim_v,
            kv_dtype=kv_dtype,
            device=device,
            target=target,
            lse=lse,
            keys=keys,
            batch_invariant=batch_invariant,
            fast_math=fast_math,
            num_workers=num_workers,
        )
        self._variant = variant
        self.kernels = compile_variant(variant, self.options)
        self.kernel = self.kernels[0]
        self._engine = make_engine(self.options, self.kernels, self.options.plan_config(self.kernels))
        self._planner = self._engine.planner
        self._handle = compiled.Handle(self._engine.launch)
        self._check = env.check()
        self._lists: tuple[Any, ...] = ()  # that kernels read where they are: kept as long as the plan
        manifest = self.manifest
        self._plan_slots = Slots(manifest, lambda p: p.phase == "plan", "is an argument of run(), not of plan()")
        self._run_slots = Slots(
            manifest,
            lambda p: p.phase == "run",
            "is an argument of plan(), not of run(): which keys the mask skips depends on it",
        )
        self._names = ("q", "kv", "kv", "out", "lse", *self._run_slots.names)
        self._scalars = [place for place, p in enumerate(manifest.parameters) if p.phase == "plan"]
        self._has_lse = manifest.softmax
        self._raw_origin = Origin(self.options.lse if manifest.softmax else None)
        self._origin = Origin(self._raw_origin.lse, _unmergeable(manifest))

    @property
    def manifest(self) -> Manifest:
        """What the kernel is: its parameters, tiles and configuration; on a GPU, the first one's."""
        return self.kernel.manifest

    @functools.cached_property
    def append_kernel(self) -> Kernel:
        """What append_kv() launches on a GPU for this Attention's pool; built on first use, if the cache lacks it."""
        return self._variant.compile(replace(self.manifest.config, rows=APPEND_ROWS))

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

        All but `scalars` are lists of integers, or int32 or int64 tensors on the CPU; on a GPU, `kv_indices` and
        `kv_positions` may be int32 tensors there, which kernels then read in place, unchecked (ATTNGEN_CHECK=1 checks):

        qo_indptr      [B + 1]  the query rows of request b are qo_indptr[b] to qo_indptr[b + 1]
        kv_indptr      [B + 1]  Paged: its pages are kv_indices[kv_indptr[b]:kv_indptr[b + 1]]; Ragged: its rows of the
                                pool; BlockSparse: an entry a block row, and one; Dense: not given
        kv_indices     pages or blocks of the pool, in the order of the keys (Paged, BlockSparse)
        kv_len         [B]      keys of each request, new ones included; or, for Paged, `last_page_len` [B]
        kv_positions   logical position of the first key of each listed block (default: list order)
        levels         views that several requests share, as prefix_tree() makes them
        num_blocks     blocks of the pool, so that a wrong index is named here instead of at run()
        scalars        the variant's parameters that its mask bounds read, by name

        ValueError for an argument that is missing, unknown or inconsistent, a batch beyond the limits, or one that a
        captured CUDA graph can't hold; there is then no plan to run.
        """
        engine = self._engine
        engine.begin()  # first of all: after a plan that fails there is none
        values: list[Any] = []
        if scalars or self._scalars:
            names = self._plan_slots.names
            values = [_number(*pair) for pair in zip(names, self._plan_slots.place(scalars), strict=True)]
            check_dense(names, values)
            engine.planned(values)
        if self._check:
            kv_indices, kv_positions = _on_host(kv_indices), _on_host(kv_positions)
            levels = [_level_on_host(level) for level in levels] if isinstance(levels, (list, tuple)) else levels
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
            arena=engine.arena,
        )
        engine.commit()
        self._lists = (kv_indices, kv_positions, levels)

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
        if raw is not False:
            check_bool("argument `raw`", raw)
        if out is None:
            out = self._fresh(q, (self.options.num_qo_heads, self.options.lanes_v), self.options.dtype)
        if lse is None and self._has_lse:
            lse = self._fresh(q, (self.options.num_qo_heads,), torch.float32)
        values = self._run_slots.place(params)
        check_no_gradient(self._names, (q, k, v, out, lse, *values))
        if torch.compiler.is_compiling():
            compiled.launch(self._handle.number, q, k, v, out, lse, raw, values)
        else:
            try:
                self._engine.launch(q, k, v, out, lse, raw, *values)
            except RuntimeError:
                check_dense(self._names, (q, k, v, out, lse, *values), str(self._engine.device))
                raise
        state = State((out, lse))
        state.origin = self._raw_origin if raw else self._origin
        return state

    def plan_stats(self) -> dict[str, Any]:
        """What the last plan looks like: items, balance, partials, bytes and the tiles it uses."""
        return self._planner.stats()

    def plan_report(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the last plan: workers over time by request, and the pattern of blocks."""
        write_report(self._planner, path)

    def release_graphs(self) -> None:
        """Say that all CUDA graphs which captured a run are gone, so that plans needn't fit their tensors any more."""
        self._engine.release_graphs()

    def _fresh(self, q: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if not getattr(q, "shape", ()):
            raise ValueError(f"argument `q` is a {type(q).__name__}; it needs a tensor [rows, Hq, D]")
        rows = q.shape[0]
        device = self._engine.device
        # A graph outlives the plan that it was traced or captured with.
        if torch.compiler.is_compiling() or self._engine.is_capturing():
            return torch.zeros((rows, *shape), dtype=dtype, device=device)
        tensor = torch.empty((rows, *shape), dtype=dtype, device=device)
        if rows > (planned := self._planner.num_rows):
            tensor[planned:].zero_()
        return tensor


def _number(name: str, value: Any) -> Any:
    """What a 0-d tensor holds; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.ndim or value.is_meta:
        return value
    if not value.is_cpu:
        raise ValueError(
            f"argument `{name}` is a tensor on {value.device}; plan() needs a number: reading it would wait for the GPU"
        )
    return value.item()


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) and value.is_cuda else value


def _level_on_host(level: Any) -> Any:
    if not isinstance(level, Level):
        return level  # for the planner to refuse
    return replace(level, kv_indices=_on_host(level.kv_indices), kv_positions=_on_host(level.kv_positions))


def _takes(
    constructor: Callable[Concatenate[Attention, _Arguments], None],
) -> Callable[[Callable[[Compilable, Options], int]], Callable[_Arguments, int]]:
    """Gives a function of a variant and its options the signature of Attention, whose defaults thus stand once."""
    signature = inspect.signature(constructor)
    own = signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation="int")

    def give(function: Callable[[Compilable, Options], int]) -> Callable[_Arguments, int]:
        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> int:
            bound = own.bind(*args, **kwargs)
            bound.apply_defaults()
            return function(bound.arguments.pop("variant"), Options(**bound.arguments))

        call.__dict__["__signature__"] = own
        return call

    return give


@_takes(Attention.__init__)
def workspace_bytes(variant: Compilable, options: Options) -> int:
    """Bytes that an Attention made with these arguments will allocate; a function of its limits, not of any batch.

    On a GPU, bytes of its memory; as much pinned memory as three plans take comes on top.

    Tiles decide it, so the kernel is built where the cache doesn't have it.
    """
    config = options.plan_config(compile_variant(variant, options))
    return config.workspace(options.lanes_v).total


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
