"""Key bounds: the native evaluation against Python's integers, seen through the ranges of a plan's only item."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngen.codegen.source import Tile

from . import plans

BINARY: dict[int, Callable[[int, int], int]] = {
    plans.ADD: lambda a, b: a + b,
    plans.SUB: lambda a, b: a - b,
    plans.MUL: lambda a, b: a * b,
    plans.FLOOR_DIV: lambda a, b: a // b if b else 0,
    plans.MOD: lambda a, b: a % b if b else 0,
    plans.MIN: min,
    plans.MAX: max,
    plans.LESS: lambda a, b: int(a < b),
    plans.LESS_EQUAL: lambda a, b: int(a <= b),
    plans.EQUAL: lambda a, b: int(a == b),
}
UNARY: dict[int, Callable[[int], int]] = {plans.NEG: lambda a: -a, plans.ABS: abs}
LOGIC: dict[int, Callable[[int, int], int]] = {plans.AND: lambda a, b: a & b, plans.OR: lambda a, b: a | b}

leaves = st.one_of(
    st.integers(-40, 40).map(lambda v: (plans.const(v),)), st.integers(0, 4).map(lambda i: (plans.arg(i),))
)
wide_leaves = st.one_of(leaves, st.integers(-(2**31), 2**31 - 1).map(lambda v: (plans.const(v),)))


def grown(children: st.SearchStrategy[plans.Program]) -> st.SearchStrategy[plans.Program]:
    def compare(pair: tuple[plans.Program, plans.Program]) -> plans.Program:
        return (*pair[0], *pair[1], plans.op(plans.LESS))

    truths = st.tuples(children, children).map(compare)
    return st.one_of(
        st.tuples(children, children, st.sampled_from(sorted(BINARY))).map(lambda t: (*t[0], *t[1], plans.op(t[2]))),
        st.tuples(children, st.sampled_from(sorted(UNARY))).map(lambda t: (*t[0], plans.op(t[1]))),
        st.tuples(truths, truths, st.sampled_from(sorted(LOGIC))).map(lambda t: (*t[0], *t[1], plans.op(t[2]))),
        truths.map(lambda t: (*t, plans.op(plans.NOT))),
        st.tuples(truths, children, children).map(lambda t: (*t[0], *t[1], *t[2], plans.op(plans.SELECT))),
    )


def evaluate(program: plans.Program, args: list[int]) -> int | None:
    """The program's value, or None where one leaves 32 bits."""
    stack: list[int] = []
    for code, operand in program:
        if code in BINARY or code in LOGIC:
            b, a = stack.pop(), stack.pop()
            stack.append((BINARY | LOGIC)[code](a, b))
        elif code in UNARY:
            stack.append(UNARY[code](stack.pop()))
        elif code == plans.NOT:
            stack.append(int(stack.pop() == 0))
        elif code == plans.SELECT:
            otherwise, then, condition = stack.pop(), stack.pop(), stack.pop()
            stack.append(then if condition else otherwise)
        else:
            stack.append(operand if code == plans.CONST else args[operand])
        if not -(2**31) <= stack[-1] < 2**31:
            return None
    return stack[-1]


def planned(bounds: tuple[plans.Program, ...], q_len: int, kv_len: int, scalar: int) -> tuple[int, int, int, int]:
    batch = plans.paged_batch([q_len], [kv_len], 4)
    config = plans.make_config(
        batch, num_qo_heads=1, num_kv_heads=1, num_workers=1, tiles=(Tile(16, 1, 0.0, 1.0, 0.0),), key_bounds=bounds,
        has_mask=True, scalars=("n",),
    )  # fmt: skip
    planner = plans.make_planner(config)
    planner.plan(**batch.paged(), scalars=[scalar])
    (item,) = planner.read().items
    return item.kv_begin, item.full_from, item.full_to, item.kv_end


@pytest.mark.parametrize("leaf", [leaves, wide_leaves], ids=["small", "wide"])
def test_against_python(leaf: st.SearchStrategy[plans.Program]) -> None:
    programs = st.tuples(*[st.recursive(leaf, grown, max_leaves=6)] * 4)

    @settings(max_examples=150, deadline=None)
    @given(programs, st.integers(1, 16), st.integers(0, 40), st.integers(-50, 50))
    def check(bounds: tuple[plans.Program, ...], q_len: int, kv_len: int, scalar: int) -> None:
        args = [kv_len - q_len, kv_len - 1, q_len, kv_len, scalar]
        values = [evaluate(program, args) for program in bounds]
        if any(value is None for value in values):
            expected = (0, 0, 0, kv_len)
        else:
            first, full_from, full_to, last = (min(max(value or 0, 0), kv_len) for value in values)
            expected = (first, full_from, full_to, max(first, last))
        got = planned(bounds, q_len, kv_len, scalar)
        if expected[0] == expected[3]:
            assert got[0] == got[3]
            return
        assert (got[0], got[3]) == (expected[0], expected[3])
        full = range(max(expected[0], expected[1]), min(expected[2], expected[3]))
        assert range(got[1], got[2]) == full or (not full and got[1] == got[2])

    check()


# Sums of arguments and a constant, clipped or not: what the planner adds up without running the program.
SUMS = (
    (plans.arg(plans.POS_LO), plans.arg(plans.SCALAR), plans.op(plans.SUB), plans.const(1), plans.op(plans.ADD)),
    (plans.arg(plans.POS_HI), plans.const(1), plans.op(plans.ADD), plans.arg(plans.KV_LEN), plans.op(plans.MIN)),
    (plans.const(7), plans.arg(plans.Q_LEN), plans.op(plans.SUB), plans.const(0), plans.op(plans.MAX)),
    (
        plans.arg(plans.KV_LEN),
        plans.arg(plans.SCALAR),
        plans.op(plans.ADD),
        plans.arg(plans.SCALAR),
        plans.op(plans.SUB),
    ),
)
SCALARS = (0, 3, -3, 2**27 - 1, 2**27, -(2**27), -(2**27) - 1, 2**31 - 1, -(2**31))


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1, 3), (0, 2, 3, 1), (2, 2, 2, 2)])
def test_sums(scalar: int, order: tuple[int, ...]) -> None:
    bounds = tuple(SUMS[i] for i in order)
    args = [20 - 3, 19, 3, 20, scalar]
    values = [evaluate(program, args) for program in bounds]
    got = planned(bounds, 3, 20, scalar)
    if any(value is None for value in values):
        assert got == (0, 0, 0, 20)
        return
    first, full_from, full_to, last = (min(max(value or 0, 0), 20) for value in values)
    if first < last:
        assert (got[0], got[3]) == (first, last)
        assert set(range(got[1], got[2])) == set(range(max(first, full_from), min(full_to, last)))
    else:
        assert got[0] == got[3]


def test_minus_the_least_integer_leaves_32_bits() -> None:
    program = (plans.const(-(2**31)), plans.op(plans.NEG))
    assert planned((program, program, program, (plans.const(5),)), 1, 20, 0) == (0, 0, 0, 20)


def test_no_bounds_with_a_mask_means_every_key_is_masked() -> None:
    assert planned((), 3, 20, 0) == (0, 0, 0, 20)
