"""From the syntax tree to the typed IR: names, types, shapes and everything else that can be wrong with a variant.

    expressions, statements   one function for each kind of syntax
    calls, routines, tensors  what calls and subscripts mean
    stages, attention         what an attention must be
    constants, shapes         what must be known at compile time
    scope, modules, context   what names mean, and where

Mistakes go to a `Report` and the expression around them is given up (`Fault`); everything else is still checked.
"""

from __future__ import annotations

from attngen.dsl import ast
from attngen.errors import Report, Span
from attngen.ir.build import attention
from attngen.ir.build.modules import Files
from attngen.ir.build.scope import Scope, nearest
from attngen.ir.depth import limited_depth
from attngen.ir.nodes import Variant


def build(module: ast.Module, name: str | None = None) -> Variant:
    """The variant of that name; the name may be left out where the file declares one attention."""
    report = Report(dict(module.sources))
    files = Files(module, report)
    node = _choose(module, name, report)
    scope = files.scope(module.root)
    seen: set[int] = set()
    variant = None if node is None else _elaborate(report, scope, node, seen)
    _check_file(module, report, scope, seen)
    report.raise_if_any()
    assert variant is not None, "no variant, and nobody said why"
    return variant


def build_all(module: ast.Module) -> tuple[Variant, ...]:
    """Every attention of the file, in order; checks the file's other declarations too, and may be empty."""
    report = Report(dict(module.sources))
    files = Files(module, report)
    scope = files.scope(module.root)
    seen: set[int] = set()
    variants = [_elaborate(report, scope, node, seen) for node in _attentions(module)]
    _check_file(module, report, scope, seen)
    report.raise_if_any()
    return tuple(variant for variant in variants if variant is not None)


def _elaborate(report: Report, scope: Scope, node: ast.Attention, seen: set[int]) -> Variant | None:
    with limited_depth(node.span, report.sources):
        return attention.elaborate(report, scope, node, seen)


def _check_file(module: ast.Module, report: Report, scope: Scope, seen: set[int]) -> None:
    with limited_depth(_start(module), report.sources):
        attention.check_file(report, scope, seen)


def _attentions(module: ast.Module) -> list[ast.Attention]:
    return [node for node in module.files[module.root].declarations if isinstance(node, ast.Attention)]


def _choose(module: ast.Module, name: str | None, report: Report) -> ast.Attention | None:
    found = _attentions(module)
    file = _start(module)
    if not found:
        report.add("no-attention", "this file declares no attention", file, "write `attention NAME:` and its stages")
        return None
    names = ", ".join(f"`{node.name}`" for node in found)
    if name is None:
        if len({node.name for node in found}) > 1:
            report.add("which-attention", f"this file declares {names}", found[1].span, "choose one by name")
            return None
        return found[0]
    for node in found:
        if node.name == name:
            return node
    help = nearest(name, [node.name for node in found]) or f"it declares {names}"
    report.add("which-attention", f"this file declares no attention `{name}`", file, help)
    return None


def _start(module: ast.Module) -> Span:
    file = module.files[module.root]
    spans = [node.span for node in (*file.imports, *file.declarations)]
    return spans[0] if spans else Span(module.root, 1, 1, 1, 1)
