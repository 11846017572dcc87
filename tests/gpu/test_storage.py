"""The tests of tests/test_storage.py on a GPU: layouts, levels, raw and merged states, transformed keys, invariance."""

from __future__ import annotations

from ..test_storage import (  # noqa: F401
    test_batch_invariance,
    test_block_sparse,
    test_dense,
    test_merging_halves,
    test_one_tensor_for_k_and_v,
    test_options,
    test_prefix_tree,
    test_ragged,
    test_raw_leaves_the_sink_out,
    test_transformed_keys,
)
