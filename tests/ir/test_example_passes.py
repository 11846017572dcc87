"""Every example through every pass: valid after each, and with the meaning it had."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from attngen import dsl, ir
from attngen.dtypes import STORAGE
from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.nodes import TensorParam, Variant
from attngen.ir.numbers import NUMBERS, NUMBERS_F32, round_f32
from attngen.ir.passes import plan_scalars
from attngen.ir.walk import substitute
from tests.ir.test_bounds import check
from tests.ir.test_passes import plain

LANES = 32
SIZES = {"Hq": 4, "Hk": 2, "D": LANES, "Dv": LANES, "B": 2, "Rows": 40, "Slots": 40, "Q": 24, "KV": 24}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.attn"))
EXACT = ("query", "key", "output", "mask", "sink")  # stages that keep every bit


def world(variant: Variant, source: random.Random) -> Environment[Any]:
    """Random values for whatever a variant reads."""
    q_len, kv_len = source.randint(1, 24), source.randint(1, 24)
    q, h = source.randrange(q_len), source.randrange(4)
    indices: dict[str, Any] = {
        "b": source.randrange(2), "h": h, "hk": h // 2, "q": q, "kv": source.randrange(kv_len),
        "pos": q + kv_len - q_len, "row": source.randrange(40), "slot": source.randrange(40), "q_len": q_len,
        "kv_len": kv_len, "group": 2, "Hq": 4, "Hk": 2, "D": LANES, "Dv": LANES, "d": tuple(range(LANES)),
        "lse": source.uniform(-3, 3),
    }  # fmt: skip
    scalars = {s.name: value(source, s.type, s.range) for s in variant.scalars}
    tensors = {t.name: tensor(source, t, list(t.dims)) for t in variant.tensors}
    inputs: dict[str, Any] = {n: tuple(value(source, "f32") for _ in range(LANES)) for n in "xvo"}
    return Environment(indices, scalars, tensors, inputs, {f.name: f for f in variant.functions}, LANES)


def value(source: random.Random, base: str, bounds: Any = None) -> Any:
    if base == "bool":
        return source.random() < 0.5
    low, high = bounds if bounds is not None else (-4, 5)
    low, high = (size(end) for end in (low, high))
    if base == "f32":
        return round_f32(source.uniform(low, high))
    return source.randrange(low, min(high, low + 40))


def tensor(source: random.Random, param: TensorParam, dims: list[int | str]) -> Any:
    if not dims:
        return value(source, STORAGE[param.dtype].load, param.range)
    return [tensor(source, param, dims[1:]) for _ in range(size(dims[0]))]


def size(end: Any) -> Any:
    return SIZES.get(end, 5) if isinstance(end, str) else end


def bound(variant: Variant, env: Environment[Any], ops: Any) -> Environment[Any]:
    for binding in variant.bindings:
        env = env.bind(**{binding.name: evaluate(binding.value, env, ops)})
    return env


def exponent(variant: Variant, env: Environment[Any], dot: float) -> float:
    """The natural logit (or the weight) of a dot product, before or after log2."""
    s: Any = dot if variant.scale is None else dot * evaluate(variant.scale, env, NUMBERS)
    if variant.logits is not None:
        s = evaluate(variant.logits, env.bind(s=s), NUMBERS)
    if variant.scale_log2 is not None:
        s = s * evaluate(variant.scale_log2, env, NUMBERS) / math.log2(math.e)
    return float(s)


def weighted(variant: Variant, env: Environment[Any]) -> list[float]:
    """`value`, with the factor that may have moved out of it."""
    v: Any = env.variables["v"] if variant.value is None else evaluate(variant.value, env, NUMBERS)
    factor: Any = 1.0 if variant.value_scale is None else evaluate(variant.value_scale, env, NUMBERS)
    return [factor * x for x in v]


def compiled(path: Path) -> list[tuple[Variant, Variant]]:
    pairs = []
    for variant in ir.build_all(dsl.parse_module(path)):
        original = ir.specialise(variant, LANES, LANES)
        result = original
        for rewrite in ir.PASSES:
            result = rewrite(result)
            ir.validate(result, rewrite.__name__)
        pairs.append((original, result))
    return pairs


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_meaning_is_kept(path: Path) -> None:
    source = random.Random(path.stem)
    for original, result in compiled(path):
        for _ in range(5):
            env = world(original, source)
            single, exact = bound(result, env, NUMBERS_F32), bound(result, env, NUMBERS)
            for name in EXACT:
                before, after = getattr(original, name), getattr(result, name)
                assert (before is None) == (after is None)
                if before is not None:
                    expected, found = evaluate(before, env, NUMBERS_F32), evaluate(after, single, NUMBERS_F32)
                    assert plain(found, before.type) == plain(expected, before.type)
            dot = source.uniform(-30.0, 30.0)
            assert exponent(result, exact, dot) == pytest.approx(exponent(original, env, dot), rel=1e-5, abs=1e-5)
            assert weighted(result, exact) == pytest.approx(weighted(original, env), rel=1e-6)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_bounds_hold(path: Path) -> None:
    source = random.Random(path.stem)
    for _, result in compiled(path):
        if result.key_bounds is None or result.mask is None:
            continue
        assert set(plan_scalars(result)) <= {s.name for s in result.scalars}
        fixed = Variant("mask", None, result.scalars, result.tensors, mask=result.mask, bindings=result.bindings)
        for _ in range(4):
            env = world(result, source)
            q_len, kv_len = env.indices["q_len"], env.indices["kv_len"]
            first = source.randrange(q_len)
            last = min(q_len - 1, first + source.randrange(4))
            shift = kv_len - q_len
            mask = unhoisted(fixed)
            check(mask, result.key_bounds, env, first + shift, last + shift)


def unhoisted(variant: Variant) -> Any:
    """The mask with its bindings put back."""
    known: dict[str, Any] = {}
    for binding in variant.bindings:
        known[binding.name] = substitute(binding.value, known)
    assert variant.mask is not None
    return substitute(variant.mask, known)
