"""From a variant that has been through the passes to the text of a kernel, its compiler flags and its manifest."""

from __future__ import annotations

from attngen.codegen.backends import cpu
from attngen.codegen.bounds import bound_programs
from attngen.codegen.source import KernelConfig, KernelSource, Manifest, Parameter
from attngen.codegen.target import Target, find_target
from attngen.ir.nodes import Load, Variant
from attngen.ir.passes import plan_scalars
from attngen.ir.walk import free_vars, nodes, scalar_names

__all__ = ["generate", "manifest"]


def generate(variant: Variant, config: KernelConfig) -> KernelSource:
    """The kernel of a specialised, fully lowered variant; the same input gives the same bytes."""
    target = find_target(config.target)
    fast = ("-DATTNGEN_FAST_MATH=1",) if config.fast_math else ()
    return KernelSource(
        files=cpu.kernel_files(variant, config, target),
        main=cpu.MAIN,
        flags=(*target.flags, *fast),
        manifest=manifest(variant, config, target),
    )


def manifest(variant: Variant, config: KernelConfig, target: Target) -> Manifest:
    """What the runtime must know of the kernel."""
    return Manifest(
        variant=variant.name,
        config=config,
        parameters=_parameters(variant),
        softmax=variant.softmax,
        has_mask=variant.mask is not None,
        has_sink=variant.sink is not None,
        has_output=variant.output is not None,
        has_key=variant.key is not None,
        key_bounds=bound_programs(variant),
        tiles=target.tiles(config.kv_dtype),
        logit_bound=variant.logit_bound,
        isa=target.isa,
    )


def _parameters(variant: Variant) -> tuple[Parameter, ...]:
    """Scalars, then tensors: the order of the functor's argument words."""
    planned, in_key = plan_scalars(variant), _read_by_key(variant)
    scalars = (
        Parameter(p.name, p.type, None, "plan" if p.name in planned else "run", p.default, p.range, p.name in in_key)
        for p in variant.scalars
    )
    tensors = (Parameter(p.name, p.dtype, p.dims, "run", None, p.range, p.name in in_key) for p in variant.tensors)
    return (*scalars, *tensors)


def _read_by_key(variant: Variant) -> frozenset[str]:
    """The parameters that the key stage needs, also through the values hoisted out of it."""
    hoisted = {binding.name: binding.value for binding in variant.bindings}
    pending = [] if variant.key is None else [variant.key]
    found: set[str] = set()
    while pending:
        expr = pending.pop()
        pending += [hoisted.pop(name) for name in free_vars(expr) if name in hoisted]
        found |= scalar_names(expr) | {node.tensor for node in nodes(expr) if isinstance(node, Load)}
    return frozenset(found)
