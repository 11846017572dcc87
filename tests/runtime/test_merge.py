from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

import attngen
from attngen.runtime.attention import Origin, State
from attngen.runtime.merge_gpu import merge_on_gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def states(
    count: int, dtype: torch.dtype, device: str, rows: int = 37, heads: int = 3, lanes: int = 40
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(count)
    parts = [(torch.randn(rows, heads, lanes).to(dtype), 4 * torch.randn(rows, heads)) for _ in range(count)]
    return [(out.to(device), lse.to(device)) for out, lse in parts]


def expected(parts: list[tuple[torch.Tensor, torch.Tensor]], base: float) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.stack([lse.double() for _, lse in parts]) * math.log(base)
    weight = torch.softmax(lse, 0)
    out = sum(w[..., None] * out.double() for w, (out, _) in zip(weight, parts, strict=True))
    assert isinstance(out, torch.Tensor)
    return out, torch.logsumexp(lse, 0) / math.log(base)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lse", "base"), [("natural", math.e), ("log2", 2.0)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_merging_is_attention_over_all_keys(
    dtype: torch.dtype, lse: Literal["natural", "log2"], base: float, count: int, device: str
) -> None:
    parts = states(count, dtype, device)
    out, merged = attngen.merge(parts, lse=lse)
    exact, exact_lse = expected(parts, base)
    assert out.dtype == dtype and merged is not None
    torch.testing.assert_close(out.double(), exact, atol=2 * torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps)
    torch.testing.assert_close(merged.double(), exact_lse, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_and_minus_infinity_are_the_identity_bit_for_bit(dtype: torch.dtype, device: str) -> None:
    [(out, lse)] = states(1, dtype, device)
    out[0, 0, 0] = -0.0
    nothing = (torch.zeros_like(out), torch.full_like(lse, -math.inf))
    for order in ([(out, lse), nothing], [nothing, (out, lse)], [nothing, (out, lse), nothing]):
        merged, merged_lse = attngen.merge(order)
        assert merged_lse is not None
        assert torch.equal(merged.view(torch.uint8), out.view(torch.uint8)) and torch.equal(merged_lse, lse)
    merged, merged_lse = attngen.merge([nothing, nothing])
    assert merged_lse is not None and not merged.any() and torch.all(merged_lse == -math.inf)


def test_what_an_empty_state_holds_has_no_effect(device: str) -> None:
    [(out, lse)] = states(1, torch.float32, device)
    poison = (torch.full_like(out, math.nan), torch.full_like(lse, -math.inf))
    assert torch.equal(attngen.merge([poison, (out, lse)])[0], out)
    assert not attngen.merge([poison])[0].any()


def test_a_poisoned_state_poisons_its_own_row(device: str) -> None:
    parts = states(2, torch.float32, device)
    parts[1][1][5, 1] = math.nan
    out, lse = attngen.merge(parts)
    assert lse is not None
    assert out[5, 1].isnan().all() and lse[5, 1].isnan()
    assert int(out.isnan().sum()) == out.shape[-1] and int(lse.isnan().sum()) == 1


def test_large_lse_do_not_overflow(device: str) -> None:
    out, large = torch.ones(1, 1, 8, device=device), torch.full((1, 1), 6e4, device=device)
    merged, lse = attngen.merge([(out, large), (3 * out, large)])
    assert lse is not None and torch.equal(merged, 2 * out)
    assert float(lse) == pytest.approx(6e4 + math.log(2.0))


def test_strided_states(device: str) -> None:
    [(out, lse), other] = states(2, torch.float32, device)
    wide = torch.full((*out.shape[:2], 2 * out.shape[2]), math.nan, device=device)
    wide[..., : out.shape[2]] = out
    turned = lse.t().contiguous().t()
    expected_out = attngen.merge([(out, lse), other])[0]
    assert torch.equal(attngen.merge([(wide[..., : out.shape[2]], turned), other])[0], expected_out)


def test_states_without_lse_add(device: str) -> None:
    parts = [(out, None) for out, _ in states(3, torch.float32, device)]
    out, lse = attngen.merge(parts)
    assert lse is None
    torch.testing.assert_close(out, parts[0][0] + parts[1][0] + parts[2][0])


def test_runs_know_whether_they_may_be_merged() -> None:
    [pair] = states(1, torch.float32, "cpu")
    state = State(pair)
    state.origin = Origin("natural", "`gpt_oss` has a sink; run it with raw=True")
    with pytest.raises(ValueError, match=r"states\[1\] can't be merged: `gpt_oss` has a sink; run it with raw=True"):
        attngen.merge([pair, state])
    state.origin = Origin("log2")
    with pytest.raises(ValueError, match="lse of base 'log2'; merge was asked for 'natural'"):
        attngen.merge([state])
    assert attngen.merge([state], lse="log2").origin == Origin("log2")


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("natural", [True, False])
def test_torch_and_the_host_library_agree(count: int, natural: bool) -> None:
    """What runs on a GPU, here on the CPU, with empty and poisoned rows among the states."""
    parts = states(count, torch.float32, "cpu")
    for number, (out, lse) in enumerate(parts):
        lse[number : number + 3] = -math.inf
        out[number : number + 3] = math.nan
        lse[10 + number, 1] = math.nan
        out[20 + number, 2, 0] = -0.0
    out, lse = attngen.merge(parts, lse="natural" if natural else "log2")
    there, lse_there = merge_on_gpu(parts, natural)
    torch.testing.assert_close(there, out, equal_nan=True)
    torch.testing.assert_close(lse_there, lse, equal_nan=True)
    assert torch.equal(there.signbit(), out.signbit()) or count > 1
    added, nothing = merge_on_gpu([(out, None) for out, _ in parts], natural)
    assert nothing is None
    torch.testing.assert_close(added, attngen.merge([(out, None) for out, _ in parts])[0], equal_nan=True)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "states is empty"),
        ([(torch.zeros(2, 3, 8),)], r"states\[0\] is a tuple; it needs \(out, lse\)"),
        ([(torch.zeros(2, 8), torch.zeros(2))], r"states\[0\]\[0\] is f32\[2, 8\]; it needs a float tensor"),
        (
            [(torch.zeros(2, 3, 8), torch.zeros(2, 4))],
            r"states\[0\]\[1\] is f32\[2, 4\]; it needs f32\[rows = 2, heads = 3\]",
        ),
        (
            [(torch.zeros(2, 3, 8), torch.zeros(2, 3)), (torch.zeros(2, 3, 16), torch.zeros(2, 3))],
            r"states\[1\]\[0\] is f32\[2, 3, 16\]; it needs f32\[rows = 2, heads = 3, lanes = 8\]",
        ),
        ([(torch.zeros(2, 3, 8), torch.zeros(2, 3)), (torch.zeros(2, 3, 8), None)], "some states have an lse and some"),
        ([(torch.zeros(2, 3, 8).int(), torch.zeros(2, 3))], "holds i32; it needs a float type"),
        (None, r"states is a NoneType; it needs a list of \(out, lse\)"),
        ([(None, torch.zeros(2, 3))], r"states\[0\]\[0\] is a NoneType; it needs a tensor"),
        ([(torch.zeros(2, 3, 8), "log2")], r"states\[0\]\[1\] is a str; it needs a tensor"),
        ([(torch.zeros(2, 3, 8, device="meta"), torch.zeros(2, 3))], r"`states\[0\]\[0\]` is on meta"),
        ([(torch.zeros(2, 3, 8, requires_grad=True), torch.zeros(2, 3))], r"`states\[0\]\[0\]` requires a gradient"),
    ],
)
def test_wrong_states_are_refused(parts: list[tuple[torch.Tensor, torch.Tensor]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attngen.merge(parts)


def test_a_wrong_base_is_refused() -> None:
    with pytest.raises(ValueError, match="lse is 'ln'; it needs 'natural' or 'log2'"):
        attngen.merge(states(1, torch.float32, "cpu"), lse="ln")  # type: ignore[arg-type]
