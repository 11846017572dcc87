"""The tests of tests/runtime/test_merge.py that say what merging gives, on a GPU."""

from __future__ import annotations

import pytest
import torch

import attngen

from ..runtime.test_merge import (  # noqa: F401
    states,
    test_a_poisoned_state_poisons_its_own_row,
    test_large_lse_do_not_overflow,
    test_merging_is_attention_over_all_keys,
    test_states_without_lse_add,
    test_strided_states,
    test_what_an_empty_state_holds_has_no_effect,
    test_zero_and_minus_infinity_are_the_identity_bit_for_bit,
)


def test_wrong_states_are_refused(device: str) -> None:
    [(out, lse), other] = states(2, torch.float16, device)
    for parts, message in (
        (
            [(out, lse), (other[0].cpu(), other[1])],
            r"states\[1\]\[0\] is f16\[37, 3, 40\] on cpu; it needs .* on cuda:0",
        ),
        ([(out, lse), (other[0].float(), other[1])], r"states\[1\]\[0\] is f32"),
        ([(out, lse.half())], r"states\[0\]\[1\] is f16"),
        ([(out, lse[:, :2])], r"states\[0\]\[1\] is f32\[37, 2\]"),
        ([(out, lse), (other[0], None)], "some states have an lse and some have none"),
        ([(out.int(), lse)], "holds i32; it needs a float type"),
    ):
        with pytest.raises(ValueError, match=message):
            attngen.merge(parts)


def test_merging_in_a_graph(device: str) -> None:
    parts = states(3, torch.bfloat16, device)
    expected = attngen.merge(parts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        merged = attngen.merge(parts)
    graph.replay()
    assert expected[1] is not None and merged[1] is not None
    assert torch.equal(merged[0], expected[0]) and torch.equal(merged[1], expected[1])
