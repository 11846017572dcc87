"""From the syntax tree back to text: `parse(unparse(tree)) == tree` for every tree that `parse` gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from typing_extensions import assert_never

from attngen.dsl import ast

_INDENT: Final = "    "
_CONDITIONAL, _COMPARISON, _UNARY, _POWER, _POSTFIX = 0, 1, 8, 9, 10
_BINARY: Final[dict[ast.BinaryOp, int]] = {
    "|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6, "*": 7, "/": 7, "//": 7, "%": 7, "**": _POWER,
}  # fmt: skip


def unparse(file: ast.File) -> str:
    """The file as text, in one canonical layout and without comments."""
    blocks = []
    if file.doc is not None:
        blocks.append(_docstring(file.doc, ""))
    if file.imports:
        blocks.append("\n".join(_import(item) for item in file.imports))
    blocks += ["\n".join(_declaration(item)) for item in file.declarations]
    return "".join(f"{block}\n" for block in "\n\n".join(blocks).split("\n")) if blocks else ""


def _docstring(doc: str, indent: str) -> str:
    first, *rest = doc.split("\n")
    lines = [f'{indent}"""{first}', *(f"{indent}{line}" if line else "" for line in rest)]
    return "\n".join(lines) + (' """' if doc.endswith('"') else '"""')


def _import(item: ast.Import) -> str:
    names = ", ".join(f"{name.name} as {name.alias}" if name.alias is not None else name.name for name in item.names)
    return f'from "{item.path}" import {names}'


def _declaration(item: ast.Declaration | ast.Scalar | ast.Tensor | ast.Stage) -> Iterator[str]:
    match item:
        case ast.Const(name, type, value):
            yield f"const {name}: {_type(type)} = {expression(value)}"
        case ast.Scalar(name, type, range, default):
            ending = "" if default is None else f" = {expression(default)}"
            yield f"scalar {name}: {_type(type)}{_range(range)}{ending}"
        case ast.Tensor(name, type, range):
            yield f"tensor {name}: {_type(type)}{_range(range)}"
        case ast.Def(name, params, returns, body):
            types = ", ".join(_type(type) for type in returns)
            arrow = "" if not returns else f" -> {types}" if len(returns) == 1 else f" -> ({types})"
            yield from _with_body(f"def {name}({_params(params)}){arrow}:", body)
        case ast.MaskDef(name, mask_params, params, body):
            masks = f"[{', '.join(param.id for param in mask_params)}]" if mask_params else ""
            arguments = f"({_params(params)})" if params else ""
            yield from _with_body(f"mask {name}{masks}{arguments}:", body)
        case ast.Stage(name, param, body):
            yield from _with_body(f"{name}({param.id}):" if param is not None else f"{name}:", body)
        case ast.Attention(name, doc, items):
            yield f"attention {name}:"
            if doc is not None:
                yield from _docstring(doc, _INDENT).split("\n")
            yield from _indented(line for part in items for line in _declaration(part))
        case _:
            assert_never(item)


def _with_body(head: str, body: ast.Block) -> Iterator[str]:
    if not body.statements:
        yield f"{head} {expression(body.result)}"
        return
    yield head
    yield from _indented(line for statement in body.statements for line in _statement(statement))
    yield f"{_INDENT}{expression(body.result)}"


def _statement(statement: ast.Statement) -> Iterator[str]:
    match statement:
        case ast.Assign(targets, value):
            yield f"{', '.join(target.id for target in targets)} = {expression(value)}"
        case ast.For(variable, count, body):
            yield f"for {variable.id} in range({expression(count)}):"
            yield from _indented(line for part in body for line in _statement(part))
        case _:
            assert_never(statement)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"{_INDENT}{line}" for line in lines)


def _params(params: Iterable[ast.Param]) -> str:
    return ", ".join(
        f"{param.name}: {_type(param.type)}" + ("" if param.default is None else f" = {expression(param.default)}")
        for param in params
    )


def _type(type: ast.TypeRef) -> str:
    return type.base if type.dims is None else f"{type.base}[{', '.join(expression(dim) for dim in type.dims)}]"


def _range(range: ast.Range | None) -> str:
    return "" if range is None else f" in {expression(range.lo)}..{expression(range.hi)}"


def expression(expr: ast.Expr, level: int = _CONDITIONAL) -> str:
    """The expression as text, in brackets where it binds less tightly than `level`."""
    text, own = _expression(expr)
    return text if own >= level else f"({text})"


def _expression(expr: ast.Expr) -> tuple[str, int]:
    """The text of an expression, and how tightly it binds."""
    match expr:
        case ast.Name(id):
            return id, _POSTFIX
        case ast.Number(value):
            return "inf" if value == math.inf else repr(value), _POSTFIX
        case ast.Bool(value):
            return "true" if value else "false", _POSTFIX
        case ast.Unary(op, operand):
            return op + expression(operand, _UNARY), _UNARY
        case ast.Binary("**", lhs, rhs):
            return f"{expression(lhs, _POSTFIX)} ** {expression(rhs, _UNARY)}", _POWER
        case ast.Binary(op, lhs, rhs):
            own = _BINARY[op]
            return f"{expression(lhs, own)} {op} {expression(rhs, own + 1)}", own
        case ast.Compare(operands, ops):
            first, *rest = (expression(operand, _COMPARISON + 1) for operand in operands)
            return " ".join([first, *(f"{op} {text}" for op, text in zip(ops, rest, strict=True))]), _COMPARISON
        case ast.Conditional(condition, then, otherwise):
            parts = (expression(then, _COMPARISON), expression(condition, _COMPARISON), expression(otherwise))
            return "{} if {} else {}".format(*parts), _CONDITIONAL
        case ast.Call(callee, args, keywords):
            given = [*map(expression, args), *(f"{word.name}={expression(word.value)}" for word in keywords)]
            return f"{expression(callee, _POSTFIX)}({', '.join(given)})", _POSTFIX
        case ast.Subscript(base, indices):
            return f"{expression(base, _POSTFIX)}[{', '.join(map(expression, indices))}]", _POSTFIX
        case ast.Comprehension(function, element, variable, count):
            loop = f"for {variable.id} in range({expression(count)})"
            return f"{function.id}({expression(element)} {loop})", _POSTFIX
        case ast.Tuple(items):
            return f"({', '.join(map(expression, items))})", _POSTFIX
        case _:
            assert_never(expr)
