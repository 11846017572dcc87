"""math.hpp against 64-bit references: every function to 4 ulp, scalars and vectors to the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngen.codegen.target import Cpu
from attngen.ir.builtins import IN_IR
from tests.codegen.cxx import runnable_targets, shared_object

Array = Any
NAMES = (
    "exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "silu", "gelu",
    "softplus", "floor", "ceil", "round", "sign", "abs", "relu",
)  # fmt: skip
PAIRS = ("pow", "min", "max", "floor_quotient", "floor_remainder")

ONE = """
extern "C" void {name}_vector(const float* x, float* y, long n) {{
  using F = simd::f32<{width}>;
  for (long i = 0; i < n; i += {width}) simd::store<F>(y + i, math::{name}(simd::load<F>(x + i)));
}}
extern "C" void {name}_scalar(const float* x, float* y, long n) {{
  for (long i = 0; i < n; ++i) y[i] = math::{name}(x[i]);
}}
"""
TWO = """
extern "C" void {name}_vector(const float* a, const float* b, float* y, long n) {{
  using F = simd::f32<{width}>;
  for (long i = 0; i < n; i += {width}) simd::store<F>(y + i, math::{name}(simd::load<F>(a + i), simd::load<F>(b + i)));
}}
extern "C" void {name}_scalar(const float* a, const float* b, float* y, long n) {{
  for (long i = 0; i < n; ++i) y[i] = math::{name}(a[i], b[i]);
}}
"""


@pytest.fixture(scope="module", params=runnable_targets(), ids=lambda target: target.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target: Cpu = request.param
    text = '#include "attngen/math.hpp"\nusing namespace attngen;\n'
    text += "".join(ONE.format(name=name, width=target.width) for name in NAMES)
    text += "".join(TWO.format(name=name, width=target.width) for name in PAIRS)
    folder: Path = tmp_path_factory.mktemp("math")
    return shared_object(folder, "math", text, target, "-O2", "-ffp-contract=fast")


def call(library: ctypes.CDLL, name: str, *args: Array) -> Array:
    """The vector version's result, after checking that the scalar one gives the same bits."""
    results = []
    for kind in ("vector", "scalar"):
        out = np.empty_like(args[0])
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*args, out)]
        getattr(library, f"{name}_{kind}")(*pointers, ctypes.c_long(out.size))
        results.append(out)
    same = (results[0] == results[1]) | (np.isnan(results[0]) & np.isnan(results[1]))
    assert same.all(), (name, [a[~same][:3] for a in args], results[0][~same][:3], results[1][~same][:3])
    return results[0]


def ulps(got: Array, want: Array) -> Array:
    """Distance in units of the last place of the wanted value; infinite where only one is NaN or infinite."""
    with np.errstate(all="ignore"):
        single = want.astype(np.float32)
        exponent = np.maximum(np.frexp(np.where(np.isfinite(want), want, 1.0))[1] - 24, -149)
        distance = np.abs(got.astype(np.float64) - want) / np.ldexp(1.0, exponent)
        special = ~np.isfinite(single) | ~np.isfinite(got)
        equal = (single == got) | (np.isnan(single) & np.isnan(got))
        return np.where(special, np.where(equal, 0.0, np.inf), distance)


def grid(low: float, high: float) -> Array:
    """A dense grid of the interval, every magnitude inside it, and the special values."""
    linear = np.linspace(low, high, 1 << 17, dtype=np.float64).astype(np.float32)
    bits = np.arange(0, 0x7F800000, 8209, dtype=np.uint32).view(np.float32)
    every = np.concatenate([bits, -bits])
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, -3.4e38])
    whole = np.concatenate([linear, every[(every >= low) & (every <= high)], special])
    return np.ascontiguousarray(np.resize(whole, -(-whole.size // 16) * 16))


def by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    return lambda x: function(torch.from_numpy(x)).numpy()


def gelu(x: Array) -> Array:
    return x * 0.5 * torch.special.erfc(torch.from_numpy(-x * np.sqrt(0.5))).numpy()


def softplus(x: Array) -> Array:
    return np.where(np.isnan(x), x, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


CASES: dict[str, tuple[float, float, Callable[[Array], Array]]] = {
    "exp": (-110.0, 95.0, np.exp),
    "exp2": (-155.0, 135.0, np.exp2),
    "log": (0.0, 3e38, np.log),
    "log2": (0.0, 3e38, np.log2),
    "log1p": (-1.0, 3e38, np.log1p),
    "sqrt": (0.0, 3e38, np.sqrt),
    "rsqrt": (0.0, 3e38, lambda x: 1.0 / np.sqrt(x)),
    "sin": (-3e38, 3e38, np.sin),
    "cos": (-3e38, 3e38, np.cos),
    "tanh": (-15.0, 15.0, np.tanh),
    "sigmoid": (-110.0, 110.0, lambda x: 1.0 / (1.0 + np.exp(-x))),
    "erf": (-6.0, 6.0, by_torch(torch.special.erf)),
    "silu": (-110.0, 110.0, lambda x: x * (1.0 / (1.0 + np.exp(-x)))),
    "gelu": (-15.0, 15.0, gelu),
    "softplus": (-110.0, 110.0, softplus),
    "floor": (-3e9, 3e9, np.floor),
    "ceil": (-3e9, 3e9, np.ceil),
    "round": (-3e9, 3e9, np.rint),
    "sign": (-3e38, 3e38, lambda x: np.where(np.isnan(x), 0.0, np.sign(x))),
    "abs": (-3e38, 3e38, np.abs),
    "relu": (-3e38, 3e38, lambda x: np.fmax(x, 0.0)),
}
EXACT = ("floor", "ceil", "round", "sign", "abs", "relu")


@pytest.mark.parametrize("name", NAMES)
def test_function(library: ctypes.CDLL, name: str) -> None:
    low, high, reference = CASES[name]
    points = [grid(low, high)]
    if high > 1e30:
        points += [grid(max(low, -100.0), 100.0), grid(max(low, -1e5), 1e5)]
    for x in points:
        with np.errstate(all="ignore"):
            want = reference(x.astype(np.float64))
        distance = ulps(call(library, name, x), want)
        worst = int(np.argmax(distance))
        bound = 0.0 if name in EXACT else 0.5 + 1e-6 if name == "sqrt" else 4.0
        assert distance[worst] <= bound, f"{name}({x[worst]!r}) is {distance[worst]} ulp from {want[worst]!r}"


def test_pow(library: ctypes.CDLL) -> None:
    source = np.random.default_rng(5)
    base = np.exp2(source.uniform(-126, 127, 1 << 17)).astype(np.float32)
    close = source.uniform(0.0, 4.0, 1 << 17).astype(np.float32)
    x = np.concatenate([base, close, -close])
    y = np.concatenate(
        [source.uniform(-1, 1, base.size), source.uniform(-40, 40, close.size), np.arange(close.size) % 31]
    )
    edges = np.float32(
        [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-40]
    )
    x = np.concatenate([x, np.repeat(edges, edges.size)])
    y = np.concatenate([y.astype(np.float32), np.tile(edges, edges.size)])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    distance = ulps(call(library, "pow", x, y), want)
    worst = int(np.argmax(distance))
    assert distance[worst] <= 4.0, (x[worst], y[worst], want[worst])


@pytest.mark.parametrize("name", ["min", "max"])
def test_of_a_number_and_a_nan_the_number(library: ctypes.CDLL, name: str) -> None:
    edges = np.float32([0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.0, -3.0])
    a, b = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    want = {"min": np.fmin, "max": np.fmax}[name](a, b)
    assert np.array_equal(call(library, name, a, b), want, equal_nan=True)


def test_float_floor_division(library: ctypes.CDLL) -> None:
    edges = np.float32([0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.0, 0.1, 1e30, np.inf, np.nan, 3.0, -3.0, 1e-3, 100.0, -0.3])
    a, b = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    with np.errstate(all="ignore"):
        quotient = np.where(b == 0, np.float32(0), np.floor(a / b))
        rest = np.where(b == 0, np.float32(0), a - b * quotient)
    assert np.array_equal(call(library, "floor_quotient", a, b), quotient, equal_nan=True)
    assert np.array_equal(call(library, "floor_remainder", a, b), rest, equal_nan=True)


def test_every_builtin_is_covered() -> None:
    assert set(NAMES) | set(PAIRS) >= IN_IR - {"clamp"}
