"""One meaning, three ways: the interpreter, the functor on scalars and the functor on vectors agree to the bit."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attngen.codegen.functor import functor_name, make_functor
from attngen.codegen.source import KernelConfig
from attngen.codegen.target import Cpu
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.nodes import Base, Binding, Const, Expr, Type, Variant
from attngen.ir.numbers import NUMBERS_F32, round_f32
from tests.codegen.cxx import runnable_targets, shared_object
from tests.codegen.random_expr import COLUMN, ROW, SCALARS, TENSORS, Grower

CONFIG = KernelConfig("cpu-avx512", 64, 64, "f32", "f32")
BASES: tuple[Base, ...] = ("i32", "i64", "f32", "bool")
COUNT = 12
LAUNCH = {"group": 3, "Hq": 6, "Hk": 2}

PROBE = """
template <class Fn, class F, class I>
void probe(const Word* args, const RowAt& at, const std::int32_t* kv, const std::int32_t* slot, const float* s,
           Results& out) {
  const Fn fn(args, {64, 64, 6, 2, 3});
  const typename Fn::Row row = fn.row(at);
  for (int i = 0; i < kKeys; i += simd::kLanes<F>) {
    const auto column = fn.template column<F, I>({load<I>(kv + i), load<I>(slot + i), at.hk});
    put(out.column_i32 + i, simd::broadcast<I>(column.column0));
    put(out.column_i64 + i, simd::broadcast<simd::Long<I>>(column.column1));
    put(out.column_f32 + i, simd::broadcast<F>(column.column2));
    put_mask<F>(out.column_bool + i, column.column3);
    put(out.logits + i, fn.logits(load<F>(s + i), row, column));
    put_mask<F>(out.mask + i, fn.template mask<F>(row, column));
    put(out.value_scale + i, fn.value_scale(column));
  }
  out.row_i32 = row.row0, out.row_i64 = row.row1, out.row_f32 = row.row2, out.row_bool = row.row3;
  out.sink = fn.sink(row);
}
"""
PRELUDE = """
#include "attngen/lanes.hpp"
{includes}
using namespace attngen;
constexpr int kKeys = 32;
struct Results {{
  std::int64_t column_i64[kKeys], row_i64;
  std::int32_t column_i32[kKeys], column_bool[kKeys], mask[kKeys], row_i32, row_bool;
  float column_f32[kKeys], logits[kKeys], value_scale[kKeys], row_f32, sink;
}};
template <class V, class T> V load(const T* p) {{
  if constexpr (simd::Vector<V>) return simd::load<V>(p); else return *p;
}}
template <class V, class T> void put(T* p, V v) {{
  if constexpr (simd::Vector<V>) simd::store<V>(p, v); else *p = v;
}}
template <class F, class M> void put_mask(std::int32_t* p, M mask) {{
  if constexpr (!simd::Vector<F>) *p = mask;
  else if constexpr (simd::Vector<M>) simd::store<M>(p, mask & 1);
  else simd::store<simd::Int<F>>(p, as_mask<F>(mask) & 1);
}}
"""
ENTRY = """
static_assert(check_functor<{fn}, Lanes<{width}, 64>>());
extern "C" void probe_{number}(int vector, const Word* args, const RowAt* at, const std::int32_t* kv,
                               const std::int32_t* slot, const float* s, Results* out) {{
  if (vector) probe<{fn}, simd::f32<{width}>, simd::i32<{width}>>(args, *at, kv, slot, s, *out);
  else probe<{fn}, float, std::int32_t>(args, *at, kv, slot, s, *out);
}}
"""
KEYS = 32


class Results(ctypes.Structure):
    _fields_ = [
        ("column_i64", ctypes.c_int64 * KEYS), ("row_i64", ctypes.c_int64),
        ("column_i32", ctypes.c_int32 * KEYS), ("column_bool", ctypes.c_int32 * KEYS), ("mask", ctypes.c_int32 * KEYS),
        ("row_i32", ctypes.c_int32), ("row_bool", ctypes.c_int32),
        ("column_f32", ctypes.c_float * KEYS), ("logits", ctypes.c_float * KEYS),
        ("value_scale", ctypes.c_float * KEYS),
        ("row_f32", ctypes.c_float), ("sink", ctypes.c_float),
    ]  # fmt: skip


def random_variant(number: int) -> Variant:
    """A variant whose every scope holds a random expression of every type."""
    column, row = Grower(100 + number, COLUMN), Grower(200 + number, ROW)
    logits = Grower(300 + number, (*ROW, "kv", "slot"), "s")
    mask = Grower(400 + number, (*ROW, "kv", "slot"))
    bindings = [Binding("column", f"column{i}", column.grow(base, 4)) for i, base in enumerate(BASES)]
    bindings += [Binding("row", f"row{i}", row.grow(base, 4)) for i, base in enumerate(BASES)]
    return Variant(
        f"random_{number}", None, SCALARS, TENSORS, bindings=tuple(bindings),
        logits=logits.grow("f32", 5), mask=mask.grow("bool", 5), sink=row.grow("f32", 4),
        value_scale=column.grow("f32", 4), scale_log2=Const(1.0, Type("f32")),
    )  # fmt: skip


VARIANTS = tuple(random_variant(number) for number in range(COUNT))


@pytest.fixture(scope="module", params=runnable_targets(), ids=lambda target: target.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target: Cpu = request.param
    folder: Path = tmp_path_factory.mktemp("triangle")
    for variant in VARIANTS:
        (folder / f"{variant.name}.hpp").write_text(make_functor(variant, CONFIG).text)
    includes = "\n".join(f'#include "{variant.name}.hpp"' for variant in VARIANTS)
    text = PRELUDE.format(includes=includes) + PROBE
    for number, variant in enumerate(VARIANTS):
        text += ENTRY.format(fn=functor_name(variant), number=number, width=target.width)
    # Without contraction, so that every operation rounds as the interpreter's.
    return shared_object(folder, "triangle", text, target, "-O1", "-ffp-contract=off")


@dataclass
class World:
    """What one launch reads: values for the interpreter, and the same as words and arrays for C++."""

    scalars: dict[str, bool | int | float]
    tensors: dict[str, Any]
    words: Any
    row: dict[str, int]
    kv: list[int]
    slot: list[int]
    s: list[float]
    keep: list[Any]  # memory that the words point into


def nested(values: list[Any], dims: tuple[int, ...]) -> Any:
    if not dims:
        return values[0]
    step = len(values) // dims[0] if dims[0] else 0
    return [nested(values[i * step : (i + 1) * step], dims[1:]) for i in range(dims[0])]


def random_tensor(source: random.Random, dtype: str, count: int) -> tuple[list[Any], bytes]:
    """Values and the bytes that hold them."""
    match dtype:
        case "i32":
            values = [source.choice([source.randint(-9, 9), source.randint(-(2**31), 2**31 - 1)]) for _ in range(count)]
            return values, struct.pack(f"{count}i", *values)
        case "i64":
            values = [source.choice([source.randint(-9, 9), source.randint(-(2**40), 2**40)]) for _ in range(count)]
            return values, struct.pack(f"{count}q", *values)
        case "i8":
            values = [source.randint(-128, 127) for _ in range(count)]
            return values, struct.pack(f"{count}b", *values)
        case "bool":
            flags = [source.random() < 0.5 for _ in range(count)]
            return flags, bytes(source.randint(1, 255) if flag else 0 for flag in flags)
        case "bf16":
            codes = [source.choice([source.getrandbits(16), 0x3F80 + source.randint(0, 99)]) for _ in range(count)]
            floats = [struct.unpack("f", struct.pack("I", code << 16))[0] for code in codes]
            return floats, struct.pack(f"{count}H", *codes)
        case "f16":
            codes = [source.getrandbits(16) for _ in range(count)]
            packed = struct.pack(f"{count}H", *codes)
            return list(struct.unpack(f"{count}e", packed)), packed
        case _:
            values = [round_f32(source.uniform(-9, 9)) for _ in range(count)]
            return values, struct.pack(f"{count}f", *values)


def scalar_word(base: str, value: Any) -> int:
    return int(value) if base != "f32" else struct.unpack("I", struct.pack("f", value))[0]


def random_world(seed: int) -> World:
    source = random.Random(seed)
    scalars = {
        "n": source.choice([0, 1, -1, 5, 2**31 - 1, -(2**31), source.randint(-99, 99)]),
        "wide": source.choice([0, -1, 2**40 + 3, -(2**63)]),
        "t": round_f32(source.choice([0.0, 1.5, -2.25, 1e30, math.inf, math.nan])),
        "flag": source.random() < 0.5,
    }
    words: list[int] = []
    for scalar in SCALARS:
        words += [scalar_word(scalar.type, scalars[scalar.name]), 0]
    tensors, keep = {}, []
    for tensor in TENSORS:
        dims = tuple(int(dim) for dim in tensor.dims)
        values, data = random_tensor(source, tensor.dtype, math.prod(dims))
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        keep.append(buffer)
        tensors[tensor.name] = nested(values, dims)
        words.append(ctypes.addressof(buffer))
        for axis, size in enumerate(dims):
            words += [size, math.prod(dims[axis + 1 :])]
    row = {name: source.randint(0, 40) for name in ROW} | {"pos": source.randint(-9, 40), "hk": source.randint(0, 1)}
    kv = [source.choice([source.randint(0, 40), source.randint(0, 2**20)]) for _ in range(KEYS)]
    slot = [source.randint(0, 2**28) for _ in range(KEYS)]
    edges = [0.0, 1.0, -1.0, 0.5, 1e10, -3e9, 2147483648.0, 6e4, -6e4, 1e38, math.inf, -math.inf, math.nan]
    s = [round_f32(source.choice([source.choice(edges), source.uniform(-9, 9)])) for _ in range(KEYS)]
    return World(scalars, tensors, (ctypes.c_int64 * len(words))(*words), row, kv, slot, s, keep)


def run(library: ctypes.CDLL, number: int, world: World, *, vector: bool) -> Results:
    results = Results()
    at = (ctypes.c_int32 * 8)(*(world.row[name] for name in ROW))
    ints, floats = ctypes.c_int32 * KEYS, ctypes.c_float * KEYS
    arrays = (ints(*world.kv), ints(*world.slot), floats(*world.s))
    getattr(library, f"probe_{number}")(int(vector), world.words, at, *arrays, ctypes.byref(results))
    return results


def same(got: float, want: float) -> bool:
    return got == want or (math.isnan(got) and math.isnan(want))


def interpret(expr: Expr, world: World, key: int) -> Any:
    indices = {**LAUNCH, **world.row, "kv": world.kv[key], "slot": world.slot[key]}
    env: Environment[Any] = Environment(indices, world.scalars, world.tensors, {"s": world.s[key]})
    return evaluate(expr, env, NUMBERS_F32)


@pytest.mark.parametrize("number", range(COUNT))
def test_interpreter_scalars_and_vectors_agree(library: ctypes.CDLL, number: int) -> None:
    variant = VARIANTS[number]
    values = {binding.name: binding.value for binding in variant.bindings}
    per_key = {f"column_{base}": values[f"column{i}"] for i, base in enumerate(BASES)}
    per_key |= {"logits": variant.logits, "mask": variant.mask, "value_scale": variant.value_scale}
    per_row = {f"row_{base}": values[f"row{i}"] for i, base in enumerate(BASES)} | {"sink": variant.sink}
    for seed in range(6):
        world = random_world(1000 * number + seed)
        scalar, vector = (run(library, number, world, vector=kind) for kind in (False, True))
        for name, expr in per_row.items():
            want, got = interpret(expr, world, 0), getattr(scalar, name)
            assert same(got, want), (name, got, want, expr)
        for name, expr in per_key.items():
            for key in range(KEYS):
                want = interpret(expr, world, key)
                one, lane = getattr(scalar, name)[key], getattr(vector, name)[key]
                assert same(one, want) and same(lane, want), (name, key, one, lane, want, expr)
