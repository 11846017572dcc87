"""Key bounds: never too narrow, never call a key full that isn't, and exact for the usual masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen import compiler
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.make import binary, call, cast, f32, i32, inverted, select
from attngen.ir.nodes import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    KeyBounds,
    Let,
    Load,
    Scalar,
    ScalarParam,
    Select,
    Unary,
    Var,
    Variant,
)
from attngen.ir.numbers import NUMBERS
from attngen.ir.passes.bounds import bounds, hides_the_end, plan_scalars
from attngen.ir.passes.fold import fold
from attngen.ir.types import BOOL, I32, I64
from attngen.ir.validate import validate
from attngen.ir.walk import bounds_of, nodes
from tests.ir import strategies

POS, KV = Index("pos", I32), Index("kv", I32)
N, C = Scalar("n", I32), Scalar("c", I32)
CAUSAL = binary("<=", KV, POS)
SCALARS = (ScalarParam("n", "i32"), ScalarParam("c", "i32"), ScalarParam("m", "i32", None, (1, 9)))


class LeavesRangeError(Exception):
    """What the planner does with the bounds then: nothing."""


def exact(expr: Expr, names: dict[str, int]) -> int:
    """A bound as the planner computes it: whole numbers, refused outside 32 bits."""
    match expr:
        case Const(value=value):
            result = int(value)
        case Index(name=name) | Scalar(name=name):
            result = int(names[name])
        case Cast(operand=operand):
            result = exact(operand, names)
        case Unary(op="-", operand=operand):
            result = -exact(operand, names)
        case Unary(op="~", operand=operand):
            result = 1 - exact(operand, names)
        case Select(condition=condition, then=then, otherwise=otherwise):
            c, x, y = (exact(e, names) for e in (condition, then, otherwise))
            result = x if c else y
        case Call(function=function, args=args):
            result = {"min": min, "max": max, "abs": lambda x: abs(x)}[function](*(exact(a, names) for a in args))
        case Binary(op=op, lhs=lhs, rhs=rhs):
            result = operate(op, exact(lhs, names), exact(rhs, names))
        case _:
            raise AssertionError(f"not for the planner: {expr}")
    if not -(2**31) <= result < 2**31:
        raise LeavesRangeError
    return result


def operate(op: str, x: int, y: int) -> int:
    table = {
        "+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "//": lambda: x // y if y else 0,
        "%": lambda: x % y if y else 0, "<": lambda: x < y, "<=": lambda: x <= y, "==": lambda: x == y,
        ">": lambda: x > y, ">=": lambda: x >= y, "!=": lambda: x != y, "&": lambda: x & y, "|": lambda: x | y,
    }  # fmt: skip
    return int(table[op]())


def ends(found: KeyBounds, names: dict[str, int]) -> tuple[int, int, int, int]:
    """first, full_from, full_to, last as the planner uses them."""
    try:
        first, full_from, full_to, last = (exact(end, names) for end in bounds_of(found))
    except LeavesRangeError:
        return 0, 0, 0, names["kv_len"]
    return first, full_from, full_to, last


def allowed(mask: Expr, env: Environment[Any], pos: int, kv: int) -> bool:
    names = env.indices
    q = pos - names["kv_len"] + names["q_len"]
    return bool(evaluate(mask, Environment({**names, "pos": pos, "kv": kv, "q": q}, env.scalars, env.tensors), NUMBERS))


def check(mask: Expr, found: KeyBounds, env: Environment[Any], lo: int, hi: int) -> tuple[int, int, int, int]:
    """Both promises, for one tile; gives the ends."""
    kv_len = env.indices["kv_len"]
    names = {**env.indices, **env.scalars, "pos_lo": lo, "pos_hi": hi}
    first, full_from, full_to, last = ends(found, names)
    for kv in range(kv_len):
        seen = [allowed(mask, env, pos, kv) for pos in range(lo, hi + 1)]
        assert first <= kv < last or not any(seen), (kv, first, last)
        assert not full_from <= kv < full_to or all(seen), (kv, full_from, full_to)
    return first, full_from, full_to, last


@settings(max_examples=200, deadline=None)
@given(st.data(), strategies.worlds(), strategies.masks())
def test_random_masks(data: Any, world: strategies.World, mask: Expr) -> None:
    variant = bounds(fold(Variant("random", None, strategies.SCALARS, strategies.TENSORS, mask=mask)))
    if variant.key_bounds is None:
        return
    env = world.environment()
    q_len, kv_len = world.indices["q_len"], world.indices["kv_len"]
    first_row = data.draw(st.integers(0, q_len - 1))
    last_row = data.draw(st.integers(first_row, min(q_len - 1, first_row + 5)))
    shift = kv_len - q_len
    check(mask, variant.key_bounds, env, first_row + shift, last_row + shift)


def window(n: Expr) -> Expr:
    return binary("<", binary("-", POS, KV), n)


EXACT = {
    "causal": CAUSAL,
    "window": binary("&", CAUSAL, window(N)),
    "local": binary("<=", call("abs", binary("-", POS, KV)), N),
    "block": binary("<=", binary("//", KV, i32(5)), binary("//", POS, i32(5))),
    "block_scalar": binary("<=", binary("//", KV, Scalar("m", I32)), binary("//", POS, Scalar("m", I32))),
    "chunked": binary("&", CAUSAL, binary("==", binary("//", KV, i32(5)), binary("//", POS, i32(5)))),
    "prefix": binary("|", binary("<", KV, N), CAUSAL),
    "anticausal": inverted(CAUSAL),
    "shifted": binary("<=", binary("+", KV, i32(3)), POS),
    "doubled": binary("<=", binary("*", i32(2), KV), POS),
}


@pytest.mark.parametrize("name", EXACT)
def test_usual_masks_are_exact(name: str) -> None:
    mask = EXACT[name]
    variant = bounds(Variant(name, None, SCALARS, (), mask=mask))
    assert variant.key_bounds is not None
    for q_len, kv_len in ((1, 9), (7, 12), (12, 12), (5, 3)):
        for n in (-2, 0, 1, 4, 50):
            env: Environment[Any] = Environment({"q_len": q_len, "kv_len": kv_len}, {"n": n, "m": 3})
            for lo in range(kv_len - q_len, kv_len):
                for hi in range(lo, kv_len):
                    found = check(mask, variant.key_bounds, env, lo, hi)
                    assert n < 1 or is_tight(mask, env, lo, hi, found), (q_len, kv_len, n, lo, hi, found)


def is_tight(mask: Expr, env: Environment[Any], lo: int, hi: int, found: tuple[int, int, int, int]) -> bool:
    """Whether the ends are allowed keys of some query, and the full range can't grow by a key."""
    first, full_from, full_to, last = found
    kv_len = env.indices["kv_len"]
    seen = [[allowed(mask, env, pos, kv) for pos in range(lo, hi + 1)] for kv in range(kv_len)]
    some = [kv for kv in range(kv_len) if any(seen[kv])]
    every = [kv for kv in range(kv_len) if all(seen[kv])]
    visited = [kv for kv in range(kv_len) if first <= kv < last]
    full = [kv for kv in range(kv_len) if full_from <= kv < full_to]
    if (not some and visited) or (some and (visited[0], visited[-1]) != (some[0], some[-1])):
        return False
    runs = "".join("x" if all(row) else " " for row in seen).split()
    return len(full) == max((len(run) for run in runs), default=0) and set(full) <= set(every)


def test_scalar_block_size_may_be_zero_or_negative() -> None:
    mask = binary("<=", binary("//", KV, C), binary("//", POS, C))
    variant = bounds(Variant("blocks", None, SCALARS, (), mask=mask))
    assert variant.key_bounds is not None
    assert plan_scalars(variant) == ("c",)
    for c in (-3, -1, 0, 1, 4):
        env: Environment[Any] = Environment({"q_len": 6, "kv_len": 10}, {"c": c})
        for lo in range(4, 10):
            found = check(mask, variant.key_bounds, env, lo, 9)
            assert c <= 0 or found[3] == min(10, (9 // c + 1) * c)


@pytest.mark.parametrize("n", [2**31 - 1, 2**31 - 5, -(2**31), -(2**31) + 3])
def test_wrapping_masks_are_not_mistaken(n: int) -> None:
    masks = [
        window(N),
        binary("<=", binary("+", KV, N), POS),
        binary("<=", KV, binary("-", POS, N)),
        binary("<=", binary("-", binary("+", KV, N), N), POS),
        binary("<=", call("abs", binary("+", KV, N)), POS),
        binary("<", binary("*", KV, N), binary("*", POS, N)),
    ]
    for mask in masks:
        variant = bounds(Variant("wraps", None, SCALARS, (), mask=mask))
        env: Environment[Any] = Environment({"q_len": 4, "kv_len": 8}, {"n": n})
        if variant.key_bounds is not None:
            check(mask, variant.key_bounds, env, 4, 7)


@pytest.mark.parametrize("n", [0, 5, 2**63 - 1, -(2**63), -(2**63) + 3, 2**40])
def test_masks_of_64_bits(n: int) -> None:
    w, pos, kv = Scalar("w", I64), cast(POS, "i64"), cast(KV, "i64")
    least, most = Const(-(2**63), I64), Const(2**63 - 1, I64)
    masks = [
        binary("<", kv, w),
        binary("<", binary("-", pos, kv), w),
        binary("<=", KV, binary("+", POS, cast(w, "i32"))),
        binary("<=", binary("//", kv, w), binary("//", pos, w)),
        binary("<=", binary("+", kv, w), binary("+", pos, w)),
        binary(">", binary("-", kv, most), binary("+", least, w)),
        binary("<=", binary("*", kv, w), binary("*", pos, w)),
    ]
    for mask in masks:
        variant = bounds(Variant("wide", None, (ScalarParam("w", "i64"),), (), mask=mask))
        validate(replace(variant, scale=f32(1.0)), "bounds")
        env: Environment[Any] = Environment({"q_len": 4, "kv_len": 8}, {"w": n})
        if variant.key_bounds is not None:
            check(mask, variant.key_bounds, env, 4, 7)


def test_unknown_conjuncts_restrict_nothing() -> None:
    same = binary("==", Load("doc", (POS,), I32), Load("doc", (KV,), I32))
    both = bounds(Variant("packed", None, (), (), mask=binary("&", CAUSAL, same)))
    assert both.key_bounds is not None
    env = {"pos_lo": 3, "pos_hi": 5, "kv_len": 9, "q_len": 9}
    first, full_from, full_to, last = ends(both.key_bounds, env)
    assert (first, last) == (0, 6) and full_from >= full_to
    assert bounds(Variant("packed", None, (), (), mask=same)).key_bounds is None
    either = bounds(Variant("packed", None, (), (), mask=binary("|", CAUSAL, same)))
    assert either.key_bounds is not None
    assert ends(either.key_bounds, env) == (0, 0, 4, 9)


def test_lets_casts_and_conditionals_are_read_through() -> None:
    distance = Let("r", cast(binary("-", POS, KV), "i64"), binary("<", Var("r", I64), Const(4, I64)), BOOL)
    variant = bounds(Variant("let", None, (), (), mask=select(Const(True, BOOL), distance, CAUSAL)))
    assert variant.key_bounds is not None
    assert ends(variant.key_bounds, {"pos_lo": 8, "pos_hi": 9, "kv_len": 20, "q_len": 20}) == (5, 6, 20, 20)


def test_no_mask_allows_every_key() -> None:
    found = bounds(Variant("softmax", None, (), ())).key_bounds
    assert found is not None
    assert ends(found, {"kv_len": 7}) == (0, 0, 7, 7)


def test_bounds_stay_small() -> None:
    mask: Expr = CAUSAL
    for i in range(20):
        mask = binary("|", mask, binary("&", window(i32(i)), binary("<", binary("//", KV, i32(i + 2)), N)))
    variant = bounds(Variant("many", None, SCALARS, (), mask=mask))
    assert variant.key_bounds is not None
    assert sum(1 for end in bounds_of(variant.key_bounds) for _ in nodes(end)) < 2000


@pytest.mark.parametrize(
    ("mask", "hides"),
    [
        ("kv <= pos", True),
        ("pos > kv", True),
        ("kv < kv_len", True),
        ("(pos - kv < w) & (kv // 4 == pos // 4) & (kv <= pos)", True),
        ("kv <= kv_len", False),
        ("kv < pos + 1", False),  # pos + 1 may wrap
        ("kv >= pos", False),
        ("pos - kv < w", False),
        ("(kv <= pos) | (kv < w)", False),
    ],
)
def test_which_masks_hide_the_end(mask: str, hides: bool) -> None:
    module = compiler.parse(f"attention masked:\n    scalar w: i32\n    mask: {mask}\n", "masked.attn")
    variant = compiler.build(module, "masked")
    assert variant.mask is not None and hides_the_end(variant.mask) == hides
