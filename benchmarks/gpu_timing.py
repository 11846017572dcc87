"""Timing on one GPU: CUDA-graph replay behind a flush of the L2 cache, and the clock that the card ran at."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

REPEATS = 21
_FLUSH_BYTES = 256 << 20  # several times any L2


class Timer:
    """Replays of a captured call; the flush is outside of what is timed."""

    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call as a graph."""
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        replay: Callable[[], object] = graph.replay
        replay()
        torch.cuda.synchronize()
        return replay

    def series(self, replay: Callable[[], object], rest: float) -> tuple[float, int | None]:
        """The median microseconds of REPEATS replays after a rest, and the SM clock in MHz under the last of them.

        The card is power-limited and slows down as it warms up, so every candidate starts from the same rest.
        """
        time.sleep(rest)
        times, clock = [], None
        for number in range(REPEATS):
            self._flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            if number == REPEATS - 1:
                clock = sm_clock()  # while the GPU is at work
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        return statistics.median(times), clock


class DryTimer:
    """The same calls on a CPU, to try the script itself: its figures mean nothing."""

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call as it is."""
        return call

    def series(self, replay: Callable[[], object], rest: float) -> tuple[float, int | None]:
        """The time of one call."""
        start = time.perf_counter()
        replay()
        return (time.perf_counter() - start) * 1e6, None


def sm_clock() -> int | None:
    """The SM clock in MHz, where NVML can be asked (torch needs nvidia-ml-py for it)."""
    try:
        return int(torch.cuda.clock_rate())
    except (RuntimeError, ModuleNotFoundError, AttributeError):
        return None


def host_microseconds(call: Callable[[], object], calls: int) -> float:
    """The median time that a call keeps the host busy; the GPU may lag behind."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    torch.cuda.synchronize()
    return statistics.median(times) / 1000
