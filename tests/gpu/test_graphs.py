"""CUDA graphs, streams, threads of control: plans between replays, scalars on the device, fork and torch.compile."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen.loading import parse

ROOT = Path(__file__).parents[2]
HQ, HK, D, PAGE, PAGES = 8, 2, 64, 16, 400
LIMITS = attngen.Limits(batch=16, q_tokens=256, kv_tokens=PAGES * PAGE)
VARIANT = """
attention served:
    scalar n: i32 in 1..1048576
    scalar gain: f32
    tensor sinks: f32[Hq]
    mask: causal & (pos - kv < n)
    logits(s): s * gain
    sink: sinks[h]
"""
Requests = list[tuple[int, int]]


def attention(device: str, **options: Any) -> attngen.Attention:
    chosen: dict[str, Any] = {"kv": attngen.Paged(PAGE), "limits": LIMITS, "device": device} | options
    return attngen.Attention(
        parse(VARIANT), num_qo_heads=HQ, num_kv_heads=HK, head_dim=D, dtype=torch.bfloat16, **chosen
    )


def lists(requests: Requests) -> dict[str, Any]:
    """Arguments of plan(); pages from the end of the pool on."""
    qo_indptr, kv_indptr = [0], [0]
    for rows, keys in requests:
        qo_indptr.append(qo_indptr[-1] + rows)
        kv_indptr.append(kv_indptr[-1] + -(-keys // PAGE))
    indices = [PAGES - 1 - i for i in range(kv_indptr[-1])]
    return dict(qo_indptr=qo_indptr, kv_indptr=kv_indptr, kv_indices=indices, kv_len=[keys for _, keys in requests])


def batches(count: int, seed: int = 0) -> list[Requests]:
    """Steps of a server: decodes that grow, prefills now and then, requests that come and go."""
    random = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    steps = []
    for number in range(count):
        requests = [(1, draw(0, 700)) for _ in range(draw(0, 8))]
        if number % 3 == 0:
            rows = draw(1, 120)
            requests.append((rows, rows + draw(0, 200)))
        steps.append(requests)
    return steps


class Tensors:
    """What a run takes, at fixed addresses."""

    def __init__(self, device: str, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=random).to(device, torch.bfloat16)

        self.q, self.pool = normal(256, HQ, D), (normal(PAGES, PAGE, HK, D), normal(PAGES, PAGE, HK, D))
        self.sinks = torch.randn(HQ, generator=random).to(device)
        self.gain = torch.tensor(1.0, device=device)
        self.out = torch.full((256, HQ, D), math.nan, dtype=torch.bfloat16, device=device)
        self.lse = torch.full((256, HQ), math.nan, device=device)

    def run(self, attn: attngen.Attention) -> None:
        attn.run(self.q, self.pool, out=self.out, lse=self.lse, gain=self.gain, sinks=self.sinks)

    def clear(self) -> None:
        self.out.fill_(math.nan)
        self.lse.fill_(math.nan)

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.out.clone(), self.lse.clone()


def assert_same(one: Any, other: Any) -> None:
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first.nan_to_num(nan=-77.0), second.nan_to_num(nan=-77.0))


def eager(device: str, tensors: Tensors, requests: Requests, n: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    attn = attention(device)
    attn.plan(**lists(requests), n=n)
    tensors.clear()
    tensors.run(attn)
    return tensors.state()


def captured(attn: attngen.Attention, tensors: Tensors, requests: Requests) -> torch.cuda.CUDAGraph:
    attn.plan(**lists(requests), n=4096)
    tensors.run(attn)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensors.run(attn)
    return graph


def test_a_graph_runs_every_later_plan(device: str) -> None:
    """One capture, 200 replays with other lengths, a mask bound of the plan and a scalar on the device."""
    tensors, attn = Tensors(device), attention(device)
    graph = captured(attn, tensors, [(1, 30)])
    reference = attention(device)
    for number, requests in enumerate(batches(200)):
        n = 5 + 37 * (number % 11)
        tensors.gain.fill_(0.5 + number % 5)
        attn.plan(**lists(requests), n=n)
        tensors.clear()
        graph.replay()
        replayed = tensors.state()
        reference.plan(**lists(requests), n=n)
        tensors.clear()
        tensors.run(reference)
        assert_same(replayed, tensors.state())


def test_a_graph_of_several_layers(device: str) -> None:
    """One plan for all runs of a capture, each with a pool of its own."""
    layers, attn = [Tensors(device, seed) for seed in range(3)], attention(device)
    attn.plan(**lists([(1, 30)]), n=4096)
    for layer in layers:
        layer.run(attn)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer.run(attn)
    for requests in batches(20, seed=1):
        attn.plan(**lists(requests), n=300)
        for layer in layers:
            layer.clear()
        graph.replay()
        states = [layer.state() for layer in layers]
        for layer, state in zip(layers, states, strict=True):
            assert_same(state, eager(device, layer, requests, 300))


def test_a_plan_that_a_graph_cannot_hold_is_refused(device: str) -> None:
    """At plan(), with the graph and its last plan left as they were."""
    tensors, attn = Tensors(device), attention(device)
    q, out, lse = tensors.q[:8], tensors.out[:8], tensors.lse[:8]
    attn.plan(**lists([(1, 30)]), n=4096)
    small_pool = (tensors.pool[0][-100:], tensors.pool[1][-100:])
    indices = {"kv_indices": [99 - i for i in range(2)]}
    attn.plan(**lists([(1, 30)]) | indices, n=4096)
    run: dict[str, Any] = dict(out=out, lse=lse, gain=tensors.gain, sinks=tensors.sinks)
    attn.run(q, small_pool, **run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attn.run(q, small_pool, **run)
    with pytest.raises(ValueError, match=r"captured CUDA graph.*Rows = 8.*needs 9"):
        attn.plan(**lists([(9, 30)]) | indices, n=4096)
    with pytest.raises(ValueError, match=r"captured CUDA graph.*Slots = 1600"):
        attn.plan(**lists([(1, 30)]), n=4096)
    attn.plan(**lists([(8, 30)]) | indices, n=4096)
    graph.replay()
    torch.cuda.synchronize()
    assert not out.isnan().any()
    del graph
    attn.release_graphs()
    attn.plan(**lists([(9, 30)]), n=4096)
    tensors.run(attn)


def test_planning_inside_a_capture_is_refused(device: str) -> None:
    tensors, attn = Tensors(device), attention(device)
    attn.plan(**lists([(1, 30)]), n=4096)
    tensors.run(attn)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="plan"), torch.cuda.graph(graph):
        attn.plan(**lists([(1, 31)]), n=4096)
    torch.cuda.synchronize()


def test_plans_in_a_row_do_not_race(device: str) -> None:
    """Each run sees its own plan although the host is many plans ahead of the GPU."""
    tensors, attn = Tensors(device), attention(device)
    steps = [requests for requests in batches(60, seed=2) if requests]
    expected = [eager(device, tensors, requests) for requests in steps]
    results = []
    busy = torch.randn(4096, 4096, device=device)
    for requests in steps:
        busy = busy @ busy * 1e-3  # keeps the GPU behind the host
        attn.plan(**lists([(1, 5)]), n=4096)  # one that is never run
        attn.plan(**lists(requests), n=4096)
        tensors.clear()
        tensors.run(attn)
        results.append(tensors.state())
    for state, wanted in zip(results, expected, strict=True):
        assert_same(state, wanted)


def test_two_streams_with_an_attention_each(device: str) -> None:
    steps = batches(40, seed=3)
    pairs = [(Tensors(device, seed), attention(device), torch.cuda.Stream()) for seed in (1, 2)]
    expected = [[eager(device, tensors, requests) for requests in steps] for tensors, _, _ in pairs]
    torch.cuda.synchronize()
    results: list[list[Any]] = [[], []]
    for requests in steps:
        for found, (tensors, attn, stream) in zip(results, pairs, strict=True):
            with torch.cuda.stream(stream):
                attn.plan(**lists(requests), n=4096)
                tensors.clear()
                tensors.run(attn)
                found.append(tensors.state())
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected, strict=True):
        for state, right in zip(found, wanted, strict=True):
            assert_same(state, right)


def test_an_attention_that_changes_streams(device: str) -> None:
    """Plans and runs keep their order when the current stream changes between them."""
    tensors, attn = Tensors(device), attention(device)
    steps = batches(30, seed=4)
    expected = [eager(device, tensors, requests) for requests in steps]
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    outs = []
    torch.cuda.synchronize()
    for number, requests in enumerate(steps):
        with torch.cuda.stream(streams[number % 3]):
            attn.plan(**lists(requests), n=4096)
        with torch.cuda.stream(streams[(number + number // 3) % 3]):
            out, lse = torch.full_like(tensors.out, math.nan), torch.full_like(tensors.lse, math.nan)
            attn.run(tensors.q, tensors.pool, out=out, lse=lse, gain=tensors.gain, sinks=tensors.sinks)
            outs.append((out, lse))
    torch.cuda.synchronize()
    for state, wanted in zip(outs, expected, strict=True):
        assert_same(state, wanted)


def test_torch_compile_holds_a_run_in_one_graph(device: str) -> None:
    tensors, attn = Tensors(device), attention(device)
    graphs = 0

    def count(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return module.forward

    @torch.compile(fullgraph=True, backend=count)
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> Any:
        out, lse = attn.run(2 * q, (k, v), gain=0.5, sinks=sinks)
        assert lse is not None
        return out + 1, lse

    for requests in ([(1, 30), (40, 90)], [(1, 200)], [(3, 9)]):
        attn.plan(**lists(requests), n=4096)
        out, lse = model(tensors.q, *tensors.pool, tensors.sinks)
        tensors.clear()
        attn.run(2 * tensors.q, tensors.pool, out=tensors.out, lse=tensors.lse, gain=0.5, sinks=tensors.sinks)
        rows = sum(rows for rows, _ in requests)
        assert torch.equal(out[:rows], tensors.out[:rows] + 1) and torch.equal(lse[:rows], tensors.lse[:rows])
    assert graphs == 1


def test_a_run_allocates_nothing(device: str) -> None:
    tensors, attn = Tensors(device), attention(device)
    steps = batches(10, seed=6)
    for requests in steps:
        attn.plan(**lists(requests), n=4096)
        tensors.run(attn)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for requests in steps:
        attn.plan(**lists(requests), n=4096)
        tensors.run(attn)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_plan_and_run_do_not_wait_for_the_gpu(device: str) -> None:
    """With host integers and numbers; torch counts its own waits alone, so the GPU is kept busy and asked."""
    tensors, attn = Tensors(device), attention(device)
    attn.plan(**lists([(1, 30)]), n=4096)
    tensors.run(attn)
    torch.cuda.synchronize()
    busy = torch.randn(8192, 8192, device=device)
    done = torch.cuda.Event()
    for _ in range(20):
        busy = busy @ busy * 1e-4
    done.record()
    attn.plan(**lists([(1, 60), (20, 40)]), n=4096)
    tensors.run(attn)
    assert not done.query(), "plan() or run() waited for the GPU"
    torch.cuda.synchronize()


FORKED = """
import os, sys, torch, attngen
from tests.gpu.test_graphs import *
compiled = attngen.load("examples/causal.attn")   # before any use of the GPU
torch.set_num_threads(1)
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            tensors, attn = Tensors("cuda"), attention("cuda")
            attn.plan(**lists([(1, 300), (5, 9)]), n=4096)
            tensors.run(attn)
            status = 2 if tensors.out[:6].isnan().any() else 0
        finally:
            os._exit(status)
    children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
tensors, attn = Tensors("cuda"), attention("cuda")
attn.plan(**lists([(1, 300)]), n=4096)
tensors.run(attn)
sys.exit(0 if statuses == [0, 0] and not tensors.out[:1].isnan().any() else 1)
"""


def test_use_after_fork() -> None:
    """Before a process has used the GPU, its children can; so loading a variant must not."""
    ran = subprocess.run(
        [sys.executable, "-c", FORKED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
