"""The tables of code generation: every operation of the IR has a spelling, every target says what it needs."""

from __future__ import annotations

import re
import struct
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngen.codegen import bounds, cxx_ops
from attngen.codegen.bounds import bound_programs
from attngen.codegen.cxx_ops import literal
from attngen.codegen.target import GPUS, TARGETS, find_target
from attngen.ir.builtins import IN_IR
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import COMPARISONS, binary, call, i32, select
from attngen.ir.nodes import Base, Binary, Const, Index, KeyBounds, Scalar, ScalarParam, Unary, Variant
from attngen.ir.numbers import NUMBERS, round_f32
from attngen.ir.passes import plan_scalars
from attngen.ir.types import BOOL, F32, I32
from tests.codegen.cxx import INCLUDE


def test_every_builtin_has_a_spelling() -> None:
    assert set(cxx_ops.FUNCTIONS) == IN_IR


def test_every_operator_has_a_spelling() -> None:
    binary_ops = set(get_args(get_type_hints(Binary)["op"]))
    integer = binary_ops - {"/"}
    arithmetic = {"+", "-", "*", "/", "//", "%"}
    assert set(cxx_ops.BINARY["i32"]) == set(cxx_ops.BINARY["i64"]) == integer
    assert set(cxx_ops.BINARY["f32"]) == arithmetic | set(COMPARISONS)
    assert set(cxx_ops.BINARY["bool"]) == {"&", "|", "^", "==", "!="}
    unary_ops = set(get_args(get_type_hints(Unary)["op"]))
    assert {op for ops in cxx_ops.UNARY_OPS.values() for op in ops} == unary_ops
    bases = set(get_args(Base))
    for table in (cxx_ops.BINARY, cxx_ops.UNARY_OPS, cxx_ops.UNIFORM_TYPES, cxx_ops.VARYING_TYPES):
        assert set(table) == bases
    assert set(cxx_ops.CASTS) == bases - {"bool"}


@given(st.floats(width=32))
def test_float_literals_are_exact(value: float) -> None:
    text, _ = literal(value, "f32")
    if value != value or value in (float("inf"), float("-inf")):
        assert "math::k" in text
    else:
        assert struct.pack("f", float(text.removesuffix("f"))) == struct.pack("f", value)
        assert text.endswith("f") and re.search(r"[.e]", text)


def test_targets() -> None:
    assert list(TARGETS) == ["cpu-amx", "cpu-avx512", "cpu-avx2"], "the best first"
    assert list(GPUS) == ["sm80", "sm86", "sm89", "sm90", "sm100", "sm120"]
    with pytest.raises(ValueError, match=r"cpu-avx3.*cpu-amx, cpu-avx512, cpu-avx2, sm80"):
        find_target("cpu-avx3")


# Key bounds ---------------------------------------------------------------------------------------


def test_bound_operations_are_those_of_the_header() -> None:
    header = (INCLUDE / "attngen" / "bounds.hpp").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"k(\w+) = (\d+)", header)}
    spelt = {
        "const": "Const", "arg": "Arg", "+": "Add", "-": "Sub", "*": "Mul", "//": "FloorDiv", "%": "Mod", "min": "Min",
        "max": "Max", "negate": "Neg", "abs": "Abs", "<": "Less", "<=": "LessEqual", "==": "Equal", "&": "And",
        "|": "Or", "not": "Not", "select": "Select",
    }  # fmt: skip
    assert {spelt[name]: number for name, number in bounds.OPS.items()} == numbers


def execute(program: tuple[tuple[int, int], ...], arguments: list[int]) -> int:
    names = {number: name for name, number in bounds.OPS.items()}
    stack: list[int] = []
    for number, operand in program:
        name = names[number]
        if name in ("const", "arg"):
            stack.append(operand if name == "const" else arguments[operand])
        elif name in ("negate", "abs", "not"):
            x = stack.pop()
            stack.append({"negate": -x, "abs": abs(x), "not": 1 - x}[name])
        elif name == "select":
            condition, then, otherwise = stack[-3:]
            stack[-3:] = [then if condition else otherwise]
        else:
            x, y = stack[-2:]
            table: dict[str, Any] = {
                "+": x + y, "-": x - y, "*": x * y, "//": x // y if y else 0, "%": x % y if y else 0, "min": min(x, y),
                "max": max(x, y), "<": int(x < y), "<=": int(x <= y), "==": int(x == y), "&": x & y, "|": x | y,
            }  # fmt: skip
            stack[-2:] = [table[name]]
    (result,) = stack
    return result


def test_bound_programs() -> None:
    lo, hi, kv_len, n = Index("pos_lo", I32), Index("pos_hi", I32), Index("kv_len", I32), Scalar("n", I32)
    first = call("max", binary("-", binary("+", lo, i32(1)), n), i32(0))
    full_from = select(binary(">", n, i32(3)), call("clamp", lo, i32(0), kv_len), binary("//", hi, n))
    condition = binary("&", binary("!=", n, i32(4)), Unary("~", binary(">=", lo, n), BOOL))
    full_to = select(condition, call("abs", Unary("-", hi, I32)), binary("%", lo, n))
    last = call("min", binary("+", hi, i32(1)), kv_len)
    scalars = (ScalarParam("t", "f32"), ScalarParam("n", "i32"))
    bounds_of = KeyBounds(first, full_from, full_to, last)
    variant = Variant("v", None, scalars, (), key_bounds=bounds_of, scale_log2=Const(1.0, F32))
    assert plan_scalars(variant) == ("n",)
    programs = bound_programs(variant)
    assert len(programs) == 4
    for values in ((0, 15, 20, 5), (-7, 0, 3, 0), (100, 163, 164, 4), (5, 9, 40, 3)):
        pos_lo, pos_hi, size, window = values
        env: Environment[Any] = Environment({"pos_lo": pos_lo, "pos_hi": pos_hi, "kv_len": size}, {"n": window})
        for expr, program in zip((first, full_from, full_to, last), programs, strict=True):
            assert execute(program, [pos_lo, pos_hi, 1, size, window]) == evaluate(expr, env, NUMBERS)


def test_no_bounds_no_programs() -> None:
    assert bound_programs(Variant("v", None, (), ())) == ()


def test_round_f32_agrees_with_literal() -> None:
    assert literal(0.1, "f32") == literal(round_f32(0.1), "f32")
