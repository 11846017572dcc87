"""The memory of an Attention besides its plan: allocated once, at a fixed place, whatever batches come."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attngen.runtime import limits


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial results and the counters of their merges.  Only the counters must be 0, and only between launches."""

    out: torch.Tensor
    lse: torch.Tensor
    arrived: torch.Tensor


def allocate(sizes: limits.Workspace, device: torch.device) -> Partials:
    """Partials on a device, for every plan that `sizes` was computed for."""
    return Partials(
        out=torch.empty(max(1, sizes.partial_out // 4), dtype=torch.float32, device=device),
        lse=torch.empty(max(1, sizes.partial_lse // 4), dtype=torch.float32, device=device),
        arrived=torch.zeros(max(1, sizes.counters // 4), dtype=torch.int32, device=device),
    )
