"""The reference against torch's own attention and against results known by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.nodes import Binary, Call, Const, Expr, Index, ScalarParam, Select, Type, Var, Variant
from attngen.ir.numbers import NUMBERS
from attngen.loading import load_all
from attngen.random_batch import Shape, ragged_requests, random_batch
from attngen.reference import Arithmetic, Batch, Visit, affine_visits, dense, judge, reference, rounded

EXAMPLES = Path(__file__).parents[1] / "examples"
BOOL, I32, F32, VEC = Type("bool"), Type("i32"), Type("f32"), Type("f32", vec=True)
PLAIN = Variant("plain", None, (), ())
CAUSAL = Binary("<=", Index("kv", I32), Index("pos", I32), BOOL)
SHAPE = Shape(((3, 5), (1, 9), (2, 2)), num_qo_heads=4, num_kv_heads=2, head_dim=16, dtype="f32", page_size=4)


def f32(value: float) -> Const:
    return Const(value, F32)


def dense_batch(q_len: int, kv_len: int, heads: int = 2, lanes: int = 8) -> Batch:
    torch.manual_seed(0)
    q, k, v = torch.randn(q_len, heads, lanes), torch.randn(1, kv_len, heads, lanes), torch.randn(1, kv_len, heads, 12)
    return Batch(q, k, v, [0, q_len], [kv_len], affine_visits([0, q_len], [0], [kv_len]))


def with_mask(mask: Expr) -> Variant:
    return replace(PLAIN, mask=mask)


@pytest.mark.parametrize("causal", [False, True])
def test_matches_torch(causal: bool) -> None:
    batch = random_batch(PLAIN, SHAPE)
    state = reference(with_mask(CAUSAL) if causal else PLAIN, batch.for_reference())
    for request, (q_len, kv_len) in enumerate(SHAPE.requests):
        rows = slice(batch.qo_indptr[request], batch.qo_indptr[request + 1])
        slots = batch.for_reference().visits[request].slots
        k, v = (pool.reshape(-1, 2, 16)[slots].double().transpose(0, 1) for pool in (batch.k_pool, batch.v_pool))
        mask = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len) if causal else None
        q = batch.q[rows].double().transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], mask, enable_gqa=True)
        torch.testing.assert_close(state.out[rows].transpose(0, 1), expected[0])


def test_layouts_and_pools_do_not_matter() -> None:
    nhd, hnd = (random_batch(PLAIN, replace(SHAPE, layout=layout)) for layout in ("NHD", "HND"))
    assert torch.equal(reference(PLAIN, nhd.for_reference()).out, reference(PLAIN, hnd.for_reference()).out)


@pytest.mark.parametrize("kv_dtype", ["e4m3", "e5m2", "f16"])
def test_narrow_pools(kv_dtype: str) -> None:
    batch = random_batch(PLAIN, replace(SHAPE, dtype="f16", kv_dtype=kv_dtype))
    assert bool(reference(PLAIN, batch.for_reference()).out.isfinite().all())


def test_row_without_a_key() -> None:
    batch = dense_batch(3, 2)  # the first query stands before the first key
    state = reference(with_mask(CAUSAL), batch)
    assert state.lse is not None
    assert torch.equal(state.out[0], torch.zeros(2, 12, dtype=torch.float64))
    assert bool((state.lse[0] == -math.inf).all()) and bool(state.lse[1:].isfinite().all())
    with_sink = reference(replace(with_mask(CAUSAL), sink=f32(1.5)), batch)
    assert with_sink.lse is not None and bool((with_sink.lse[0] == 1.5).all())
    assert bool((with_sink.out[0] == 0).all())


def test_sink_joins_the_denominator() -> None:
    batch = dense_batch(2, 5)
    bare, sunk = reference(PLAIN, batch), reference(replace(PLAIN, sink=f32(0.25)), batch)
    assert bare.lse is not None and sunk.lse is not None
    torch.testing.assert_close(sunk.lse, torch.logaddexp(bare.lse, torch.full_like(bare.lse, 0.25)))
    torch.testing.assert_close(sunk.out, bare.out * (bare.lse - sunk.lse).exp()[..., None])
    raw = reference(replace(PLAIN, sink=f32(0.25)), batch, raw=True)
    assert torch.equal(raw.out, bare.out)


def test_softmax_off() -> None:
    batch = dense_batch(3, 4)
    state = reference(replace(with_mask(CAUSAL), softmax=False), batch)
    assert state.lse is None
    scores = torch.einsum("qhd,khd->hqk", batch.q.double(), batch.k[0].double()) / math.sqrt(8)
    weights = scores * torch.ones(3, 4).tril(1)
    torch.testing.assert_close(state.out, torch.einsum("hqk,khd->qhd", weights, batch.v[0].double()))


def test_stages_run_in_the_normative_order() -> None:
    doubled = Binary("*", Var("x", VEC), f32(2.0), VEC)
    capped = Call("tanh", (Var("s", F32),), F32)
    variant = replace(
        PLAIN,
        query=doubled,
        key=doubled,
        value=Binary("+", Var("v", VEC), f32(1.0), VEC),
        scale=f32(0.5),
        logits=capped,
        output=Binary("*", Var("o", VEC), Index("lse", F32), VEC),
    )
    batch = dense_batch(2, 3)
    scores = torch.tanh(2.0 * torch.einsum("qhd,khd->qhk", batch.q.double(), batch.k[0].double()))
    lse = scores.logsumexp(-1)
    expected = torch.einsum("qhk,khd->qhd", scores.softmax(-1), batch.v[0].double() + 1.0) * lse[..., None]
    state = reference(variant, batch)
    torch.testing.assert_close(state.out, expected)


def test_levels_and_permuted_keys_give_the_same_state() -> None:
    batch = dense_batch(4, 6)
    order = torch.tensor([5, 0, 3])
    rest = torch.tensor([1, 2, 4])
    split = replace(batch, visits=[Visit(range(4), order, order), Visit([1, 0, 3, 2], rest, rest)])
    whole, levels = reference(with_mask(CAUSAL), batch), reference(with_mask(CAUSAL), split)
    torch.testing.assert_close(levels.out, whole.out)
    torch.testing.assert_close(levels.lse, whole.lse)


def test_keys_beyond_kv_len_do_not_exist() -> None:
    batch = dense_batch(2, 6)
    batch.v[0, 4:] = math.nan
    state = reference(PLAIN, replace(batch, kv_len=[4]))
    assert bool(state.out.isfinite().all())


def test_poisoned_logits_poison_their_own_row_only() -> None:
    at_row_1 = Binary("==", Index("q", I32), Const(1, I32), BOOL)
    variant = replace(PLAIN, logits=Select(at_row_1, f32(math.inf), Var("s", F32), F32))
    state = reference(variant, dense_batch(3, 4))
    assert bool(state.out[1].isnan().all()) and bool(state.out[[0, 2]].isfinite().all())


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = dense_batch(5, 7)
    whole = reference(with_mask(CAUSAL), batch)
    monkeypatch.setattr(dense, "PIECE", 14)
    torch.testing.assert_close(reference(with_mask(CAUSAL), batch).out, whole.out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_plain_algorithm_is_within_its_own_bound(dtype: torch.dtype) -> None:
    batch = random_batch(PLAIN, replace(SHAPE, dtype={torch.bfloat16: "bf16", torch.float16: "f16"}.get(dtype, "f32")))
    exact, plain = reference(PLAIN, batch.for_reference()), rounded(PLAIN, batch.for_reference(), dtype)
    assert judge(plain.out.to(dtype), plain.lse, exact, plain).ok
    assert not judge((plain.out * 1.02).to(dtype), plain.lse, exact, plain).ok
    broken = plain.out.clone()
    broken[0, 0, 0] = math.nan
    assert not judge(broken, plain.lse, exact, plain).ok
    assert plain.lse is not None
    assert not judge(plain.out, plain.lse + 0.05, exact, plain).ok


def test_nothing_is_rounded_in_exact_arithmetic() -> None:
    assert Arithmetic(torch.float64).round_operand(torch.tensor(0.1, dtype=torch.float64)) == 0.1


def test_random_batches_poison_what_must_not_be_read() -> None:
    batch = random_batch(PLAIN, SHAPE)
    used = sum(kv for _, kv in SHAPE.requests)
    assert int((~batch.k_pool[..., 0, 0].isnan()).sum()) == used
    assert bool(batch.q[batch.qo_indptr[-1] :].isnan().all())
    again = random_batch(PLAIN, SHAPE)
    assert batch.kv_indices == again.kv_indices and torch.equal(batch.q[:6], again.q[:6])


def test_random_parameters_keep_their_ranges() -> None:
    variant = replace(PLAIN, scalars=(ScalarParam("n", "i32", None, (3, 5)), ScalarParam("c", "f32", 2.0)))
    params = random_batch(variant, SHAPE).params
    assert params["n"] in (3, 4) and params["c"] == 2.0


def test_ragged_requests_hold_the_edges() -> None:
    requests = ragged_requests(16, 4096)
    assert len(requests) == 16 and (1, 0) in requests and (1, 4096) in requests and (0, 5) in requests


# An independent reading of the manual: one element at a time, on Python numbers ---------------------


def attend_slowly(variant: Variant, batch: Batch, row: int, head: int) -> tuple[list[float], float]:
    """o and lse of one row and head of a batch of one request, in the normative order."""
    group = batch.q.shape[1] // batch.k.shape[2]
    (q_len, kv_len), lanes = (batch.num_rows, int(batch.kv_len[0])), (batch.q.shape[2], batch.v.shape[3])
    sizes = {"D": lanes[0], "Dv": lanes[1], "Hq": batch.q.shape[1], "Hk": batch.k.shape[2], "group": group}
    at_row = {"b": 0, "h": head, "hk": head // group, "q": row, "pos": row + kv_len - q_len, "row": row}
    at_row |= {"q_len": q_len, "kv_len": kv_len} | sizes

    def run(stage: Expr | None, at: dict[str, int], default: object, lanes: int = 0, **inputs: object) -> object:
        if stage is None:
            return default
        names: dict[str, object] = {**at, "d": tuple(range(lanes))}
        tensors = {name: value.tolist() for name, value in batch.params.items() if isinstance(value, torch.Tensor)}
        scalars = {name: value for name, value in batch.params.items() if not isinstance(value, torch.Tensor)}
        functions = {function.name: function for function in variant.functions}
        return evaluate(stage, Environment(names, scalars, tensors, inputs, functions, lanes), NUMBERS)

    def vector(stage: Expr | None, at: dict[str, int], name: str, x: list[float]) -> list[float]:
        result = run(stage, at, tuple(x), len(x), **{name: tuple(x)})
        values = result if isinstance(result, tuple) else (result,)
        return [float(value) for value in (values * len(x) if len(values) == 1 else values)]

    query = vector(variant.query, at_row, "x", batch.q[row, head].tolist())
    scores, values = [], []
    for visit in batch.visits:
        for slot, kv in zip(visit.slots.tolist(), visit.positions.tolist(), strict=True):
            column = {"hk": head // group, "kv": kv, "slot": slot}
            place = (slot // batch.k.shape[1], slot % batch.k.shape[1], head // group)
            key = vector(variant.key, column | sizes, "x", batch.k[place].tolist())
            scale = run(variant.scale, at_row, 1.0 / math.sqrt(lanes[0]))
            s = float(scale) * math.fsum(a * b for a, b in zip(query, key, strict=True))  # type: ignore[arg-type]
            s = float(run(variant.logits, at_row | column, s, s=s))  # type: ignore[arg-type]
            if run(variant.mask, at_row | column, True):
                scores.append(s)
                values.append(vector(variant.value, column | sizes, "v", batch.v[place].tolist()))
    sink = float(run(variant.sink, at_row, -math.inf))  # type: ignore[arg-type]
    top = max([sink, *scores])
    weights = [math.exp(s - top) for s in scores] if variant.softmax else scores
    total = (sum(weights) + math.exp(sink - top) if top > -math.inf else 1.0) if variant.softmax else 1.0
    o = [math.fsum(w * v[lane] for w, v in zip(weights, values, strict=True)) / total for lane in range(lanes[1])]
    lse = top + math.log(total) if top > -math.inf else -math.inf
    return vector(variant.output, at_row | {"lse": lse}, "o", o), lse  # type: ignore[dict-item]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.attn")), ids=lambda path: path.stem)
def test_reference_agrees_with_python_numbers(path: Path) -> None:
    variant = load_all(path)[0].ir
    shape = Shape(((3, 11),), num_qo_heads=2, num_kv_heads=1, head_dim=8, dtype="f32", page_size=4, seed=3)
    batch = random_batch(variant, shape).for_reference()
    state = reference(variant, batch)
    for row, head in ((0, 0), (2, 1)):
        o, lse = attend_slowly(variant, batch, row, head)
        torch.testing.assert_close(state.out[row, head], torch.tensor(o, dtype=torch.float64), rtol=1e-6, atol=1e-6)
        if state.lse is not None:
            assert float(state.lse[row, head]) == pytest.approx(lse, rel=1e-6, abs=1e-6)
