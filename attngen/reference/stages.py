"""The stages of a variant as functions of tensors: `ir.evaluate` over torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from attngen.ir.evaluate import Environment, evaluate
from attngen.ir.nodes import Expr, Variant
from attngen.torch_ops import TorchOps

Indices: TypeAlias = dict[str, torch.Tensor]


class Stages:
    """A variant with its parameters; `number` is the type that f32 is computed in.

    In a vector stage the indices are [vectors] (or 0-d) and values [vectors, lanes]; in a scalar stage all broadcast.
    """

    def __init__(
        self,
        variant: Variant,
        params: Mapping[str, Any],
        number: torch.dtype,
        num_heads: int,
        num_kv_heads: int,
        lanes: tuple[int, int],
    ) -> None:
        self.variant = variant
        self.number = number
        self.ops = TorchOps(number)
        self.functions = {function.name: function for function in variant.functions}
        self.scalars = {scalar.name: self._scalar(params[scalar.name], scalar.type) for scalar in variant.scalars}
        self.tensors = {tensor.name: params[tensor.name] for tensor in variant.tensors}
        sizes = {
            "D": lanes[0],
            "Dv": lanes[1],
            "Hq": num_heads,
            "Hk": num_kv_heads,
            "group": num_heads // num_kv_heads,
        }
        self.launch: Indices = {name: torch.tensor(size, dtype=torch.int32) for name, size in sizes.items()}

    def scalar(self, stage: Expr, at: Indices, **inputs: torch.Tensor) -> torch.Tensor:
        """A stage that gives a number or a bool for each element."""
        return evaluate(stage, self._environment(at, inputs, 0), self.ops)

    def vec(self, stage: Expr | None, name: str, x: torch.Tensor, at: Indices) -> torch.Tensor:
        """A stage that maps vectors to vectors; none is the identity."""
        if stage is None:
            return x
        lanes = x.shape[1]
        indices = at | {"d": torch.arange(lanes, dtype=torch.int32)}
        result = evaluate(stage, self._environment(indices, {name: x}, lanes), self.ops)
        return (result if stage.type.vec else result[..., None]).expand(x.shape)

    def scale(self, at: Indices) -> torch.Tensor:
        """The factor of the dot product, by default 1/√D."""
        if self.variant.scale is None:
            return torch.tensor(1.0 / math.sqrt(int(self.launch["D"])), dtype=self.number)
        return self.scalar(self.variant.scale, at)

    def _environment(self, at: Indices, inputs: Mapping[str, torch.Tensor], lanes: int) -> Environment[torch.Tensor]:
        return Environment(
            indices=self.launch | at,
            scalars=self.scalars,
            tensors=self.tensors,
            variables=inputs,
            functions=self.functions,
            lanes=lanes,
        )

    def _scalar(self, value: Any, base: str) -> torch.Tensor:
        """A parameter as a 0-d tensor, rounded to its type first."""
        dtype = {"bool": torch.bool, "i32": torch.int32, "i64": torch.int64, "f32": torch.float32}[base]
        rounded = torch.as_tensor(value).to(dtype).reshape(())
        return rounded.to(self.number) if base == "f32" else rounded
