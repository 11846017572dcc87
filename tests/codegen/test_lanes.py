"""Vector stages: permutations, sums and tables of random expressions mean what the interpreter says."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import pytest

from attngen.codegen.functor import functor_name, make_functor
from attngen.codegen.source import KernelConfig
from attngen.codegen.target import Cpu
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import binary, call, cast, f32, i32, negative, select
from attngen.ir.nodes import Binding, Const, Expr, Index, LaneAt, LaneSum, Let, Load, TensorParam, Type, Var, Variant
from attngen.ir.numbers import NUMBERS
from attngen.ir.types import F32, VEC
from tests.codegen.cxx import runnable_targets, shared_object

LANE_COUNTS = (8, 40, 64, 128)
COUNT = 6
D = Index("d", Type("i32", vec=True))
TABLE = Var("lane0", VEC)
TABLE_VALUE = binary("-", cast(binary("%", D, i32(5)), "f32"), f32(2.0))
TENSORS = (TensorParam("w", "bf16", ("D",)),)


def grow(source: random.Random, depth: int, scope: tuple[Var, ...] = ()) -> Expr:
    """A vec of small whole numbers, so that no order of summation rounds."""
    if depth == 0:
        leaves: list[Expr] = [Var("x", VEC), Var("x", VEC), TABLE, Load("w", (D,), VEC), cast(D, "f32"), *scope]
        return source.choice(leaves)
    a = grow(source, depth - 1, scope)
    match source.choice(
        ["+", "-", "*", "half", "half", "pair", "pair", "index", "lane", "sum", "select", "max", "let"]
    ):
        case "+" | "-" as op:
            return binary(op, a, grow(source, depth - 1, scope))
        case "*":
            return binary("*", a, source.choice([TABLE, f32(2.0), negative(Load("w", (D,), VEC))]))
        case "half" | "pair" as partner:
            return LaneAt(a, partner, None, VEC)
        case "index":
            index = binary("-", i32(source.choice([3, 39, 70])), D) if source.random() < 0.5 else binary("*", D, i32(2))
            return LaneAt(a, "index", index, VEC)
        case "lane":
            return binary("-", a, LaneAt(grow(source, 1, scope), "index", i32(source.randint(-2, 9)), F32))
        case "sum":
            total = LaneSum(a, F32)
            return binary("+", grow(source, depth - 1, scope), call("clamp", total, f32(-64.0), f32(64.0)))
        case "select":
            return select(binary("<", D, i32(source.randint(1, 40))), a, grow(source, depth - 1, scope))
        case "max":
            return call("max", a, grow(source, depth - 1, scope))
        case _:
            name = f"a{source.randint(0, 10**9)}"
            return Let(name, a, grow(source, depth - 1, (*scope, Var(name, VEC), Var(name, VEC))), VEC)


def lane_variant(number: int, lanes: int) -> Variant:
    return Variant(
        f"lanes_{number}_{lanes}", None, (), TENSORS, query=grow(random.Random(number * 1000 + lanes), 4),
        bindings=(Binding("lane", "lane0", TABLE_VALUE),), scale_log2=Const(1.0, F32),
    )  # fmt: skip


VARIANTS = {(number, lanes): lane_variant(number, lanes) for number in range(COUNT) for lanes in LANE_COUNTS}
ENTRY = """
static_assert(check_functor<{fn}, Lanes<{width}, {lanes}>>());
extern "C" void query_{number}_{lanes}(const Word* args, float* x, int scalar) {{
  {fn} fn(args, {{ {lanes}, {lanes}, 4, 2, 2 }});
  {fn}::Tables tables;
  use_tables(fn, tables);
  const {fn}::Row row{{}};
  if (scalar) {{
    Lanes<1, {lanes}> lanes(x);
    fn.query(lanes, row);
  }} else {{
    Lanes<{width}, {lanes}> lanes(x);
    fn.query(lanes, row);
  }}
}}
"""


@pytest.fixture(scope="module", params=runnable_targets(), ids=lambda target: target.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target: Cpu = request.param
    folder: Path = tmp_path_factory.mktemp("lanes")
    text = '#include "attngen/lanes.hpp"\n'
    for (_, lanes), variant in VARIANTS.items():
        config = KernelConfig(target.name, lanes, lanes, "f32", "f32")
        (folder / f"{variant.name}.hpp").write_text(make_functor(variant, config).text)
        text += f'#include "{variant.name}.hpp"\n'
    text += "using namespace attngen;\n"
    for (number, lanes), variant in VARIANTS.items():
        text += ENTRY.format(fn=functor_name(variant), number=number, lanes=lanes, width=target.width)
    return shared_object(folder, "lanes", text, target, "-O1", "-ffp-contract=fast")


@pytest.mark.parametrize(("number", "lanes"), VARIANTS)
def test_vector_stage(library: ctypes.CDLL, number: int, lanes: int) -> None:
    source = random.Random(number)
    x = [float(source.randint(-3, 3)) for _ in range(lanes)]
    weights = [source.choice([0x3F80, 0x4000, 0xBF80, 0x0000]) for _ in range(lanes)]  # 1, 2, -1, 0 in bf16
    tensors: dict[str, Any] = {"w": [{0x3F80: 1.0, 0x4000: 2.0, 0xBF80: -1.0, 0: 0.0}[code] for code in weights]}
    indices: dict[str, Any] = {"d": tuple(range(lanes))}
    env: Environment[Any] = Environment(indices, {}, tensors, {"x": tuple(x)}, {}, lanes)
    env = env.bind(lane0=evaluate(TABLE_VALUE, env, NUMBERS))
    query = VARIANTS[number, lanes].query
    assert query is not None
    want = evaluate(query, env, NUMBERS)
    want = want * lanes if len(want) == 1 else want
    buffer = (ctypes.c_uint16 * lanes)(*weights)
    words = (ctypes.c_int64 * 3)(ctypes.addressof(buffer), lanes, 1)
    for scalar in (0, 1):
        padding = [float("nan")] * 16
        got = (ctypes.c_float * (lanes + 16))(*x, *padding)
        getattr(library, f"query_{number}_{lanes}")(words, got, scalar)
        assert list(got)[:lanes] == list(want), (scalar, query)
