"""What the declarations of files mean: the scope of each file, of its imports, and of the prelude around them."""

from __future__ import annotations

import os
from typing import Final

from attngen.dsl import ast
from attngen.errors import Report
from attngen.ir.build.context import as_index
from attngen.ir.build.scope import Constant, Entry, Routine, Scope
from attngen.ir.types import BASES

_PRELUDE: Final = "<prelude>/"


class Files:
    """The scopes of a module's files, made when they are first asked for."""

    def __init__(self, module: ast.Module, report: Report) -> None:
        self._module, self._report = module, report
        self._scopes: dict[str, Scope] = {}
        self._prelude = Scope()
        for key in module.files:
            if key.startswith(_PRELUDE):
                self._declare(self._prelude, module.files[key])

    def scope(self, key: str) -> Scope:
        """Everything that the file declares and imports, inside the prelude."""
        if key.startswith(_PRELUDE):
            return self._prelude
        if key not in self._scopes:
            scope = self._scopes[key] = Scope(self._prelude)
            file = self._module.files[key]
            for item in file.imports:
                self._import(scope, key, item)
            self._declare(scope, file)
        return self._scopes[key]

    def _import(self, scope: Scope, importer: str, item: ast.Import) -> None:
        key = os.path.abspath(os.path.join(os.path.dirname(importer), item.path))
        source = self.scope(key)
        for name in item.names:
            entry = source.entries.get(name.name)
            if entry is not None:
                declare(self._report, scope, name.alias or name.name, entry, name)

    def _declare(self, scope: Scope, file: ast.File) -> None:
        attentions: set[str] = set()
        for node in file.declarations:
            match node:
                case ast.Const():
                    declare(self._report, scope, node.name, Constant(node, scope), node)
                case ast.Def() | ast.MaskDef():
                    declare(self._report, scope, node.name, Routine(node, scope), node)
                case ast.Attention():
                    if node.name in attentions:
                        self._report.add("duplicate-attention", f"two attentions are named `{node.name}`", node.span,
                                         "rename one of them")  # fmt: skip
                    attentions.add(node.name)
                    hide(scope, node)


def hide(scope: Scope, attention: ast.Attention) -> None:
    """Let the file's functions say why they don't see what an attention declares."""
    for item in attention.items:
        if not isinstance(item, ast.Stage):
            kind = type(item).__name__.lower()
            scope.hidden[item.name] = (
                f"{kind} `{item.name}` is visible only inside its attention; pass it as a parameter"
            )


def declare(report: Report, scope: Scope, name: str, entry: Entry, node: ast.Node) -> bool:
    """Enter a declaration into a scope; false where its name is taken or reserved."""
    if as_index(name) is not None or name in BASES or name == "vec":
        what = "a type" if name in BASES or name == "vec" else "an index or size"
        report.add("reserved-name", f"`{name}` is {what} of the language", node.span, "choose another name")
        return False
    if name in scope.entries:
        report.add("duplicate-name", f"`{name}` is declared twice", node.span, "rename one of the two")
        return False
    scope.entries[name] = entry
    if isinstance(node, ast.Def | ast.MaskDef):
        _check_parameters(report, node)
    return True


def _check_parameters(report: Report, node: ast.Def | ast.MaskDef) -> None:
    masks = [(param.id, param.span) for param in node.mask_params] if isinstance(node, ast.MaskDef) else []
    seen: set[str] = set()
    for name, span in [*masks, *((param.name, param.span) for param in node.params)]:
        if name in BASES or name == "vec":
            report.add("reserved-name", f"`{name}` is a type of the language", span, "choose another name")
        if name in seen:
            report.add("duplicate-name", f"`{node.name}` has two parameters `{name}`", span, "rename one of the two")
        seen.add(name)
