"""From a variant that has been through the passes to the text of a kernel, its compiler flags and its manifest."""

from __future__ import annotations

from dataclasses import replace

from attngen.codegen.backends import append, cpu, fa2
from attngen.codegen.bounds import bound_programs
from attngen.codegen.functor import Functor, make_functor
from attngen.codegen.source import KernelConfig, KernelSource, Manifest, Parameter
from attngen.codegen.target import Cpu, Gpu, find_target
from attngen.codegen.tiles import shared_bytes, tile
from attngen.ir.nodes import Load, Variant
from attngen.ir.passes import plan_scalars
from attngen.ir.walk import free_vars, nodes, scalar_names

__all__ = ["generate", "manifest"]


def generate(variant: Variant, config: KernelConfig) -> KernelSource:
    """The kernel of a specialised, fully lowered variant; the same input gives the same bytes."""
    target = find_target(config.target)
    functor = make_functor(variant, config)
    known = manifest(variant, config)
    return _on_cpu(functor, known, target) if isinstance(target, Cpu) else _on_gpu(functor, known, target)


def _on_cpu(functor: Functor, known: Manifest, target: Cpu) -> KernelSource:
    config = known.config
    return KernelSource(
        files=cpu.kernel_files(functor, config, target),
        main=cpu.MAIN,
        flags=(*target.flags, *_fast_math(config)),
        manifest=replace(known, tiles=target.tiles(config.kv_dtype), isa=target.isa),
    )


def _on_gpu(functor: Functor, known: Manifest, target: Gpu) -> KernelSource:
    """The best tile's kernel, with those of the others as its fallbacks."""
    config = known.config
    if append.is_append(known):
        return append.kernel_source(functor, known, target, _fast_math(config))
    first, *others = (
        KernelSource(
            files=fa2.kernel_files(functor, config, shape),
            main=fa2.MAIN,
            flags=(*target.flags, *_fast_math(config)),
            manifest=replace(
                known,
                tiles=(tile(config, shape),),
                warps=shape.warps,
                stages=shape.stages,
                ctas_per_sm=shape.ctas_per_sm,
                shared_bytes=shared_bytes(config, shape, fa2.extras(functor)),
            ),
        )
        for shape in fa2.candidates(config, target, functor)
    )
    return replace(first, fallbacks=tuple(others))


def _fast_math(config: KernelConfig) -> tuple[str, ...]:
    return ("-DATTNGEN_FAST_MATH=1",) if config.fast_math else ()


def manifest(variant: Variant, config: KernelConfig) -> Manifest:
    """What the runtime must know of the kernel, on any target; its tiles are still missing."""
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
        tiles=(),
        logit_bound=variant.logit_bound,
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
