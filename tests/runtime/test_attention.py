from __future__ import annotations

import inspect
import math
import os
import threading
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
import torch

import attngen
from attngen.codegen.source import Parameter
from attngen.runtime.setup import Options
from tests.runtime.tiny_kernel import PARAMETERS, TinyVariant

HQ, HK, D = 4, 2, 64
LIMITS = attngen.Limits(batch=4, q_tokens=64, kv_tokens=4096)
PLAN: dict[str, Any] = dict(qo_indptr=[0, 1, 3], kv_indptr=[0, 2, 3], kv_indices=[5, 1, 2], kv_len=[20, 16])


def attention(variant: TinyVariant | None = None, **options: Any) -> attngen.Attention:
    chosen: dict[str, Any] = dict(
        num_qo_heads=HQ, num_kv_heads=HK, head_dim=D, dtype=torch.float32, kv=attngen.Paged(16), limits=LIMITS
    )
    return attngen.Attention(**{"variant": variant or TinyVariant(), **chosen, **options})


def planned(**options: Any) -> attngen.Attention:
    attn = attention(**options)
    attn.plan(**PLAN)
    return attn


def params() -> dict[str, Any]:
    return {
        "bias": torch.arange(HQ, dtype=torch.float32),
        "table": torch.ones(2, 20, dtype=torch.int32),
        "off": torch.tensor([3, 7], dtype=torch.int32),
        "weight": torch.zeros(D),
    }


def inputs(rows: int = 3) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return torch.randn(rows, HQ, D), (torch.randn(6, 16, HK, D), torch.randn(6, 16, HK, D))


def expected(q: torch.Tensor, v: torch.Tensor, gain: float = 2.0, n: int = 4096) -> torch.Tensor:
    first = v[0, 0, :, 0].repeat_interleave(HQ // HK)
    return q * gain + (params()["bias"] + n + first)[None, :, None]


# Running


def test_a_run_reaches_the_kernel_with_everything() -> None:
    attn = planned()
    q, pool = inputs()
    out, lse = attn.run(q, pool, **params())
    torch.testing.assert_close(out, expected(q, pool[1]))
    assert lse is not None
    torch.testing.assert_close(lse, torch.full((3, HQ), 7 * math.log(2.0)))
    attn.plan(**PLAN, n=5)
    torch.testing.assert_close(attn.run(q, pool, gain=3, **params())[0], expected(q, pool[1], 3.0, 5))
    attn.plan(**PLAN, n=torch.tensor(6, dtype=torch.int32))
    torch.testing.assert_close(attn.run(q, pool, gain=-1.0, **params())[0], expected(q, pool[1], -1.0, 6))


def test_log2_lse() -> None:
    q, pool = inputs()
    _, lse = planned(lse="log2").run(q, pool, **params())
    assert lse is not None and torch.equal(lse, torch.full((3, HQ), 7.0))


def test_a_scalar_tensor_is_read_when_the_kernel_runs() -> None:
    attn = planned()
    q, pool = inputs()
    gain = torch.tensor(2.0)
    first, _ = attn.run(q, pool, gain=gain, **params())
    gain.fill_(5.0)
    second, _ = attn.run(q, pool, gain=gain, **params())
    torch.testing.assert_close(first, expected(q, pool[1]))
    torch.testing.assert_close(second, expected(q, pool[1], 5.0))


def test_rows_beyond_the_plan_stay_as_they_are() -> None:
    attn = planned()
    q, pool = inputs(rows=5)
    out, lse = torch.full((6, HQ, D), math.nan), torch.full((6, HQ), math.nan)
    given_out, given_lse = attn.run(q, pool, out=out, lse=lse, **params())
    assert given_out is out and given_lse is lse
    assert out[3:].isnan().all() and lse[3:].isnan().all() and not out[:3].isnan().any()
    fresh, fresh_lse = attn.run(q, pool, **params())
    assert fresh_lse is not None and not fresh[3:].any() and not fresh_lse[3:].any()


def test_strided_tensors() -> None:
    attn = planned()
    q, (k, v) = inputs()
    p = params()
    wide = torch.full((3, 2 * HQ, 2 * D), math.nan)
    wide[:, ::2, :D] = q
    bias = torch.stack([p["bias"], p["bias"] + 99], 1)[:, 0]
    out = torch.empty(HQ, 3, D).transpose(0, 1)
    lse = torch.empty(HQ, 3).t()
    v_wide = torch.full((6, HK, 20, D), math.nan).transpose(1, 2)[:, :16]
    v_wide.copy_(v)
    attn.run(wide[:, ::2, :D], (k, v_wide), out=out, lse=lse, **{**p, "bias": bias})
    torch.testing.assert_close(out, expected(q, v))


def kv_cases() -> list[tuple[Any, dict[str, Any], Callable[[torch.Tensor], torch.Tensor]]]:
    """A layout, its plan, and how it holds an NHD pool of 6 pages of 16."""
    pages = {**PLAN}
    ragged = {"qo_indptr": [0, 1, 3], "kv_indptr": [0, 20, 36], "kv_len": [20, 16]}
    dense = {"qo_indptr": [0, 1, 3], "kv_len": [20, 16]}
    sparse = {"qo_indptr": [0, 3], "kv_indptr": [0, 2], "kv_indices": [5, 1], "kv_len": [90]}
    positions = {"kv_positions": [80, 16]}
    return [
        (attngen.Paged(16), pages, lambda pool: pool),
        (attngen.Paged(16, "HND"), pages, lambda pool: pool.transpose(1, 2)),
        (attngen.Ragged(), ragged, lambda pool: pool.flatten(0, 1)),
        (attngen.Dense(48), dense, lambda pool: pool.unflatten(0, (2, 3)).flatten(1, 2)),
        (attngen.Dense(48, "HND"), dense, lambda pool: pool.unflatten(0, (2, 3)).flatten(1, 2).transpose(1, 2)),
        (attngen.BlockSparse(64, 16), {**sparse, **positions}, lambda pool: pool),
        (attngen.BlockSparse(64, 16), {**sparse, **positions}, lambda pool: pool.flatten(0, 1)),
    ]


@pytest.mark.parametrize("case", range(7))
@pytest.mark.parametrize("together", [False, True])
def test_every_layout_as_a_pair_or_as_one(case: int, together: bool) -> None:
    kv, plan, hold = kv_cases()[case]
    attn = attention(kv=kv)
    attn.plan(**plan)
    q, (k, v) = inputs()
    pair = (hold(k), hold(v))
    pool = torch.stack(pair, 1) if together else pair
    table = torch.ones(2, 90, dtype=torch.int32)
    torch.testing.assert_close(attn.run(q, pool, **{**params(), "table": table})[0], expected(q, v))


def test_empty_batches() -> None:
    attn = attention()
    q, pool = inputs()
    attn.plan(qo_indptr=[0], kv_indptr=[0], kv_indices=[], kv_len=[])
    out, _ = attn.run(q, pool, **params())
    assert not out.any()
    out, lse = attn.run(q[:0], (pool[0][:0], pool[1][:0]), **{**params(), "table": torch.ones(0, 0, dtype=torch.int32)})
    assert out.shape == (0, HQ, D) and lse is not None and lse.shape == (0, HQ)


def test_an_empty_tensor_reads_as_zero() -> None:
    # B = 2 but KV = 0: nothing may be read out of bounds where a row's value is computed for a row without keys.
    attn = attention()
    attn.plan(qo_indptr=[0, 1, 3], kv_indptr=[0, 0, 0], kv_indices=[], kv_len=[0, 0])
    q, pool = inputs()
    _, lse = attn.run(q, pool, **{**params(), "table": torch.ones(2, 0, dtype=torch.int32)})
    assert lse is not None
    torch.testing.assert_close(lse[:3], torch.full((3, HQ), 3 * math.log(2.0)))  # off[0]


def test_plans_for_more_workers_than_threads() -> None:
    q, pool = inputs()
    attn = planned(num_workers=264)
    assert attn.plan_stats()["workers"] == 264
    torch.testing.assert_close(attn.run(q, pool, **params())[0], expected(q, pool[1]))


def test_two_attentions_in_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_NUM_THREADS", "4")
    q, pool = inputs()
    failures: list[BaseException] = []

    def serve(gain: float) -> None:
        try:
            attn = planned(num_workers=7)
            for i in range(200):
                attn.plan(**PLAN, n=i)
                torch.testing.assert_close(
                    attn.run(q, pool, gain=gain, **params())[0], expected(q, pool[1], gain, i), rtol=0, atol=1e-3
                )
        except BaseException as fault:
            failures.append(fault)

    threads = [threading.Thread(target=serve, args=(float(gain),)) for gain in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_use_after_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_NUM_THREADS", "2")
    attn = planned(num_workers=4)
    q, pool = inputs()
    want, _ = attn.run(q, pool, **params())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(3):
                attn.plan(**PLAN)
                status = 0 if torch.equal(attn.run(q, pool, **params())[0], want) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(attn.run(q, pool, **params())[0], want)


def test_torch_compile_holds_a_run_in_one_graph() -> None:
    attn = planned()
    graphs = 0

    def count(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return module.forward

    @torch.compile(fullgraph=True, backend=count)
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any]) -> Any:
        out, lse = attn.run(2 * q, (k, v), gain=3, **given)
        assert lse is not None
        return out + 1, lse

    q, (k, v) = inputs()
    for n in (7, 9, 4096):
        attn.plan(**PLAN, n=n)
        out, lse = model(q, k, v, params())
        torch.testing.assert_close(out, expected(2 * q, v, 3.0, n) + 1)
        torch.testing.assert_close(lse, torch.full((3, HQ), 7 * math.log(2.0)))
    attn.plan(qo_indptr=[0, 1], kv_indptr=[0, 2], kv_indices=[5, 1], kv_len=[20])
    assert not (model(q, k, v, params())[0][1:] - 1).any()
    assert graphs == 1


def test_softmax_off_has_no_lse() -> None:
    attn = attention(TinyVariant(softmax=False))
    attn.plan(**PLAN)
    q, pool = inputs()
    out, lse = attn.run(q, pool, **params())
    assert lse is None
    torch.testing.assert_close(out, expected(q, pool[1]))
    with pytest.raises(ValueError, match="`lse` is given, but a variant with softmax off has none"):
        attn.run(q, pool, lse=torch.empty(3, HQ), **params())


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (TinyVariant(has_sink=True), "`tiny` has a sink"),
        (TinyVariant(has_output=True), "`tiny` has an output stage"),
        (TinyVariant(softmax=False), "`tiny` has softmax off"),
    ],
)
def test_only_raw_runs_of_some_variants_merge(variant: TinyVariant, message: str) -> None:
    attn = attention(variant)
    attn.plan(**PLAN)
    q, pool = inputs()
    with pytest.raises(ValueError, match=message + r".*raw=True"):
        attngen.merge([attn.run(q, pool, **params())])
    raw = attn.run(q, pool, raw=True, **params())
    out, lse = attngen.merge([raw, raw])
    torch.testing.assert_close(out, raw[0] if variant.softmax else 2 * raw[0])
    assert (lse is None) == (not variant.softmax)


def test_workspace_bytes_are_known_beforehand() -> None:
    options: dict[str, Any] = dict(
        num_qo_heads=HQ, num_kv_heads=HK, head_dim=D, dtype=torch.float32, kv=attngen.Paged(16), limits=LIMITS
    )
    attn = attngen.Attention(TinyVariant(), **options)
    partials = attn._engine.partials
    held = attn._planner.arena.nbytes + sum(t.nbytes for t in (partials.out, partials.lse))
    assert held <= attngen.workspace_bytes(TinyVariant(), **options) <= held + partials.arrived.nbytes


def test_options_have_one_signature_and_one_source_of_defaults() -> None:
    """Attention's own: workspace_bytes takes the same, and Options, which both make, has no default of its own."""
    constructor = list(inspect.signature(attngen.Attention).parameters.values())
    assert constructor == list(inspect.signature(attngen.workspace_bytes).parameters.values())
    assert [p.name for p in constructor[1:]] == [field.name for field in fields(Options) if field.init]
    assert all(field.default is MISSING and field.default_factory is MISSING for field in fields(Options))
    with pytest.raises(TypeError, match="missing a required argument: 'num_qo_heads'"):
        attngen.workspace_bytes(TinyVariant())  # type: ignore[call-arg]


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "sm90"}, "target is 'sm90' and device is 'cpu'; a GPU's target needs device='cuda'"),
        ({"target": "cuda"}, "target is 'cuda' and device is 'cpu'"),
        ({"num_kv_heads": 3}, "num_qo_heads is 4; it needs a multiple of num_kv_heads, 3"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0; it needs an integer from 1"),
        ({"num_qo_heads": True}, "num_qo_heads is True"),
        ({"head_dim": 60}, "head_dim is 60; it needs a multiple of 8 from 8 to"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"head_dim_v": 1 << 20}, "head_dim_v is 1048576"),
        ({"dtype": torch.float64}, r"dtype is torch.float64; it needs one of torch.float32, torch.bfloat16"),
        ({"dtype": torch.float8_e4m3fn}, "dtype is torch.float8_e4m3fn"),
        ({"kv_dtype": torch.int8}, "kv_dtype is torch.int8; it needs one of .*torch.float8_e5m2"),
        ({"lse": "ln"}, "lse is 'ln'; it needs one of 'natural', 'log2'"),
        ({"keys": "cooked"}, "keys is 'cooked'; it needs one of 'raw', 'transformed'"),
        ({"kv": 16}, r"kv is 16; it needs Paged"),
        ({"limits": 16}, r"limits is 16; it needs Limits"),
        ({"num_workers": 0}, "num_workers is 0"),
        ({"num_workers": 1 << 31}, "num_workers is 2147483648; it needs an integer from 1 to 65536"),
        ({"device": "zz"}, "device is 'zz'"),
        ({"device": 3}, "device is '3'; it needs 'cpu', 'cuda' or 'cuda:N'"),
        ({"batch_invariant": "no"}, "batch_invariant is 'no'; it needs True or False"),
        ({"fast_math": None}, "fast_math is None; it needs True or False"),
        ({"variant": "causal"}, r"variant is a str; it needs what attngen.load\(\) or attngen.parse\(\) gives"),
    ],
)
def test_wrong_options_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(**options)


@pytest.mark.parametrize("name", ["out", "levels", "kv_len"])
def test_a_parameter_may_not_be_named_like_an_argument(name: str) -> None:
    variant = TinyVariant(parameters=(Parameter(name, "f32", None, "run"),))
    with pytest.raises(ValueError, match=f"`tiny` has a parameter `{name}`, which is the name of an argument"):
        attention(variant)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 5.0}, r"argument `n` is 5\.0; it needs an integer that fits i32"),
        ({"n": torch.tensor(5, device="meta")}, "argument `n` is on meta"),
        ({"levels": 3}, "levels is a int, need a list of Level"),
        ({"levels": [3]}, r"levels\[0\] is a int, need Level"),
        ({"num_blocks": -1}, "num_blocks is -1, need the pool's number of blocks"),
        ({"num_blocks": "six"}, "num_blocks is 'six'"),
        ({"kv_len": [20.0, 16]}, "kv_len is a list, need a tensor or a sequence of integers"),
        ({"kv_len": torch.zeros(2)}, "kv_len has type float32, need int32 or int64"),
        ({"kv_len": torch.zeros(2, device="meta")}, "kv_len is on meta, need a tensor that holds integers"),
        ({"n": 1.5}, "argument `n` is 1.5; it needs an integer that fits i32"),
        ({"n": True}, "argument `n` is True; it needs an integer"),
        ({"n": 1 << 40}, "argument `n` is 1099511627776; it needs an integer that fits i32"),
        ({"gain": 1.0}, r"argument `gain` is an argument of run\(\), not of plan\(\)"),
        ({"soft_cap": 50.0}, "unknown argument `soft_cap`: of the parameters of `tiny`, this call takes `n`"),
        ({"kv_len": [20, 99]}, "kv_len"),
        ({"num_blocks": 5}, "kv_indices"),
        ({"qo_indptr": [0, 3, 1]}, "qo_indptr"),
        ({"kv_len": None, "last_page_len": [17, 16]}, "last_page_len"),
    ],
)
def test_wrong_plans_are_refused_and_leave_none_behind(changes: dict[str, Any], message: str) -> None:
    attn = planned()
    with pytest.raises(ValueError, match=message):
        attn.plan(**{**PLAN, **changes})
    q, pool = inputs()
    with pytest.raises(ValueError, match=r"there is no plan to run; call plan\(\) first"):
        attn.run(q, pool, **params())


def test_a_missing_plan_scalar() -> None:
    variant = TinyVariant(parameters=tuple(replace(p, default=None) for p in PARAMETERS))
    with pytest.raises(ValueError, match="missing argument `n`: the variant needs an integer that fits i32"):
        attention(variant).plan(**PLAN)


RUNS: list[tuple[dict[str, Any], str]] = [
    ({"bias": None}, r"missing argument `bias`: the variant needs f32\[Hq = 4\]"),
    ({"bias": torch.zeros(3)}, r"argument `bias` is f32\[3\]; it needs f32\[Hq = 4\] on cpu"),
    ({"bias": torch.zeros(HQ, 1)}, r"argument `bias` is f32\[4, 1\]"),
    ({"bias": torch.zeros(HQ).double()}, r"argument `bias` is float64\[4\]"),
    ({"bias": torch.zeros(HQ).half()}, r"argument `bias` is f16\[4\]; it needs f32"),
    ({"bias": 1.0}, r"argument `bias` is 1\.0; it needs f32\[Hq = 4\]"),
    ({"bias": torch.zeros(HQ, device="meta")}, "argument `bias` is on meta; it needs a strided tensor on cpu"),
    ({"bias": torch.zeros(HQ).to_sparse()}, "argument `bias` is a sparse_coo tensor; it needs a strided tensor on cpu"),
    ({"bias": torch.nn.Parameter(torch.zeros(HQ))}, "argument `bias` requires a gradient, and attngen computes none"),
    ({"raw": "no"}, "argument `raw` is 'no'; it needs True or False"),
    ({"raw": None}, "argument `raw` is None; it needs True or False"),
    ({"bias": [0.0] * HQ}, "argument `bias` is a list; it needs f32"),
    ({"table": torch.ones(1, 20, dtype=torch.int32)}, r"`table` is i32\[1, 20\]; it needs i32\[B >= 2, KV >= 20\]"),
    ({"table": torch.ones(2, 19, dtype=torch.int32)}, r"`table` is i32\[2, 19\]; it needs i32\[B >= 2, KV >= 20\]"),
    ({"gain": "loud"}, "argument `gain` is a str; it needs a number that fits f32, or a 0-d cpu tensor of f32"),
    ({"gain": True}, "argument `gain` is True; it needs a number"),
    ({"gain": 1e60}, r"argument `gain` is 1e\+60, which is too large for an f32"),
    ({"gain": torch.tensor([1.0])}, r"argument `gain` is f32\[1\]; it needs a number"),
    ({"gain": torch.tensor(1)}, r"argument `gain` is i64\[\]"),
    ({"n": 3}, r"argument `n` is an argument of plan\(\), not of run\(\)"),
    ({"soft_cap": 50.0}, "unknown argument `soft_cap`"),
]


@pytest.mark.parametrize(("changes", "message"), RUNS)
def test_wrong_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    attn = planned()
    q, pool = inputs()
    out = torch.full((3, HQ, D), math.nan)
    with pytest.raises(ValueError, match=message):
        attn.run(q, pool, out=out, **{**params(), **changes})
    assert out.isnan().all()


def test_one_name_has_one_size() -> None:
    variant = TinyVariant(parameters=(*PARAMETERS, Parameter("other", "f32", ("Docs", 2), "run")))
    attn = attention(variant)
    attn.plan(**PLAN)
    q, pool = inputs()
    with pytest.raises(ValueError, match=r"`other` is f32\[3, 2\]; it needs f32\[Docs = 2.*\(`off` makes Docs 2\)"):
        attn.run(q, pool, other=torch.zeros(3, 2), **params())
    attn.run(q, pool, other=torch.zeros(2, 2), **params())


def test_declared_ranges_are_checked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    q, pool = inputs()
    table = torch.ones(2, 20, dtype=torch.int32).t().contiguous().t()
    table[1, 3] = 2
    planned().run(q, pool, **{**params(), "off": torch.zeros(3, dtype=torch.int32), "table": table})
    monkeypatch.setenv("ATTNGEN_CHECK", "1")
    attn = planned()
    with pytest.raises(ValueError, match=r"`table` holds 2 at flat index 23, outside its declared range 0\.\.2"):
        attn.run(q, pool, **{**params(), "table": table})
    attn.run(q, pool, **{**params(), "table": table, "off": torch.zeros(3, dtype=torch.int32)})
    with pytest.raises(ValueError, match=r"`n` is 5000, outside its declared range 0\.\.5000"):
        attn.plan(**PLAN, n=5000)


def wrong_tensors() -> list[tuple[str, dict[str, Any]]]:
    q, (k, v) = inputs()
    turned = v.transpose(2, 3).contiguous().transpose(2, 3)
    return [
        (r"`q` is f32\[2, 4, 64\]; it needs f32\[rows >= 3, Hq = 4, D = 64\]", {"q": q[:2]}),
        (r"`q` is f32\[3, 3, 64\]", {"q": q[:, :3]}),
        (r"`q` is f32\[3, 256\]", {"q": q.flatten(1)}),
        (r"`q` is bf16\[3, 4, 64\]; it needs f32", {"q": q.bfloat16()}),
        ("`q` has stride 2 along its last dimension; it needs 1", {"q": q.repeat_interleave(2, 2)[..., ::2]}),
        ("`q` is a int; it needs a tensor", {"q": 3}),
        (r"K pool is f32\[6, 16, 2, 32\]; it needs f32\[blocks, 16, Hk = 2, D = 64\]", {"kv": (k[..., :32], v)}),
        (r"K pool is f32\[6, 8, 2, 64\]", {"kv": (k[:, :8], v)}),
        (r"V pool is bf16\[6, 16, 2, 64\]; it needs f32", {"kv": (k, v.bfloat16())}),
        ("V pool has stride 2 along its last dimension", {"kv": (k, turned)}),
        ("need the same number of blocks", {"kv": (k, v[:5])}),
        ("the pool has 5 blocks of 16 tokens; the plan reads up to row 95", {"kv": (k[:5], v[:5])}),
        (r"the pool is f32\[6, 16, 2, 64\]; it needs f32\[blocks, K and V = 2, 16", {"kv": k}),
        ("the pool is a tuple of 3", {"kv": (k, v, v)}),
        (r"`out` is f32\[2, 4, 64\]; it needs f32\[rows >= 3", {"out": torch.empty(2, HQ, D)}),
        (r"`out` is bf16", {"out": torch.empty(3, HQ, D).bfloat16()}),
        ("`out` is .* with stride 0 along dimension 0", {"out": torch.empty(1, HQ, D).expand(3, -1, -1)}),
        (
            "with stride 32 along .* own for every element",
            {"out": torch.empty(768).as_strided((3, HQ, D), (256, 32, 1))},
        ),
        (r"`lse` is f32\[3, 4, 1\]; it needs f32\[rows >= 3, Hq = 4\]", {"lse": torch.empty(3, HQ, 1)}),
        ("`lse` is .* with stride 0 along dimension 1", {"lse": torch.empty(3, 1).expand(3, HQ)}),
        ("`q` requires a gradient", {"q": q.clone().requires_grad_()}),
        ("`kv` requires a gradient", {"kv": (k, v.clone().requires_grad_())}),
        ("`kv` is on meta", {"kv": (k, v.to("meta"))}),
    ]


@pytest.mark.parametrize("case", range(23))
def test_wrong_tensors_are_refused(case: int) -> None:
    message, changes = wrong_tensors()[case]
    q, pool = inputs()
    with pytest.raises(ValueError, match=message):
        planned().run(**{"q": q, "kv": pool, **changes}, **params())


def test_one_pool_for_both_needs_one_head_dim() -> None:
    attn = attention(head_dim_v=32)
    attn.plan(**PLAN)
    q, (k, _) = inputs()
    with pytest.raises(ValueError, match="K has head_dim 64 and V has 32; it needs to be a pair"):
        attn.run(q, torch.stack([k, k], 1), **params())


def test_running_without_a_plan() -> None:
    q, pool = inputs()
    with pytest.raises(ValueError, match=r"there is no plan to run; call plan\(\) first"):
        attention().run(q, pool, **params())
