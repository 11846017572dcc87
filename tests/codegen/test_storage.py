"""storage.hpp against torch: every code decodes exactly, and every float is rounded as torch rounds it."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from attngen.codegen.target import Cpu
from tests.codegen.cxx import runnable_targets, shared_object

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ENTRY = """
extern "C" void decode_{name}(const {name}* x, float* y, long n, int vector) {{
  using F = simd::f32<{width}>;
  if (vector) for (long i = 0; i < n; i += {width}) simd::store<F>(y + i, load_f32<F>(x + i));
  else for (long i = 0; i < n; ++i) y[i] = to_float(x[i]);
}}
extern "C" void encode_{name}(const float* x, {name}* y, long n, int vector) {{
  using F = simd::f32<{width}>;
  if (vector) for (long i = 0; i < n; i += {width}) store_f32<{name}>(y + i, simd::load<F>(x + i));
  else for (long i = 0; i < n; ++i) y[i] = from_float<{name}>(x[i]);
}}
"""


@pytest.fixture(scope="module", params=runnable_targets(), ids=lambda target: target.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target: Cpu = request.param
    text = '#include "attngen/storage.hpp"\nusing namespace attngen;\n'
    text += "".join(ENTRY.format(name=name, width=target.width) for name in TYPES)
    return shared_object(tmp_path_factory.mktemp("storage"), "storage", text, target, "-O2")


def code_type(name: str) -> type[np.unsignedinteger]:
    return np.uint16 if name in ("f16", "bf16") else np.uint8


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("vector", [0, 1], ids=["scalar", "vector"])
@pytest.mark.parametrize("name", TYPES)
def test_decode(library: ctypes.CDLL, name: str, vector: int) -> None:
    kind = code_type(name)
    codes = np.arange(np.iinfo(kind).max + 1, dtype=kind)
    got = np.empty(codes.size, np.float32)
    getattr(library, f"decode_{name}")(pointer(codes), pointer(got), ctypes.c_long(codes.size), vector)
    want = torch.from_numpy(codes).view(TYPES[name]).float().numpy()
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("vector", [0, 1], ids=["scalar", "vector"])
@pytest.mark.parametrize("name", TYPES)
def test_encode(library: ctypes.CDLL, name: str, vector: int) -> None:
    kind = code_type(name)
    exact = torch.from_numpy(np.arange(np.iinfo(kind).max + 1, dtype=kind)).view(TYPES[name]).float()
    exact = exact[exact.isfinite()].sort().values
    middles = (exact[1:].double() + exact[:-1].double()).div(2).float()
    inf = torch.tensor(float("inf"))
    around = [exact, middles, middles.nextafter(inf), middles.nextafter(-inf)]
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 464.0, 465.0, 61439.0, 61440.0])
    values = torch.cat([*around, special])
    values = values[: values.numel() // 16 * 16].contiguous()
    x = np.concatenate([values.numpy(), np.resize(special.numpy(), 16)])
    got = np.empty(x.size, kind)
    getattr(library, f"encode_{name}")(pointer(x), pointer(got), ctypes.c_long(x.size), vector)
    # Some versions of torch give NaN where e4m3 saturates.
    inside = np.clip(x, -448.0, 448.0) if name == "e4m3" else x
    want = torch.from_numpy(inside).to(TYPES[name]).view(torch.uint16 if kind is np.uint16 else torch.uint8).numpy()
    nan = np.isnan(torch.from_numpy(want).view(TYPES[name]).float().numpy())
    assert np.array_equal(got[~nan], want[~nan])
    assert np.isnan(torch.from_numpy(got[nan]).view(TYPES[name]).float().numpy()).all()
