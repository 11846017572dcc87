"""From lark's parse tree to the syntax tree, bottom up and without recursion, with the checks that need no names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

from lark import Token, Tree

from attngen.dsl import ast
from attngen.dsl.layout import MAX_DEPTH
from attngen.dsl.syntax import FOREIGN, RESERVED, STAGES_WITH_PARAM
from attngen.errors import NOWHERE, Report, Span

LARGEST_INT: Final = 2**63  # after a minus; elsewhere the IR refuses it
LARGEST_FLOAT: Final = 3.4028235677973366e38  # where rounding to f32 gives infinity

Part: TypeAlias = Any  # a node, a token, a tuple of parts, or None for an optional part that is absent


def convert(tree: Tree[Token], file: str, report: Report) -> Any:
    """The syntax tree of a parse tree, or None once nesting is too deep; mistakes go to the report."""
    converter = _Converter(file, report)
    done: dict[int, Part] = {}
    depth: dict[int, int] = {}
    for subtree in tree.iter_subtrees():  # children come before their parents
        children = [child for child in subtree.children if isinstance(child, Tree)]
        depth[id(subtree)] = 1 + max((depth[id(child)] for child in children), default=0)
        if depth[id(subtree)] > MAX_DEPTH:
            report.add(
                "nesting-too-deep",
                f"more than {MAX_DEPTH} levels of operators and blocks",
                converter.span(subtree),
                "name parts of it, or write a `for` or a bounded `sum`",
            )
            return None
        parts = [done[id(child)] if isinstance(child, Tree) else child for child in subtree.children]
        done[id(subtree)] = getattr(converter, f"make_{subtree.data}")(parts, converter.span(subtree))
    return done[id(tree)]


def check_duplicates(items: Iterable[Part], report: Report) -> None:
    """Report every stage that an attention gives a second time."""
    first: dict[str, ast.Stage] = {}
    for item in items:
        if not isinstance(item, ast.Stage):
            continue
        earlier = first.setdefault(item.name, item)
        if earlier is not item:
            help = f"the first is on line {earlier.span.line}; keep one"
            report.add("duplicate-stage", f"`{item.name}` is given twice", item.span, help)


def docstring(token: Token) -> str:
    """The text of a string token, with the indentation that its lines share taken off."""
    text = token[3:-3] if token.startswith('"""') else token[1:-1]
    first, *rest = text.split("\n")
    margins = [len(line) - len(line.lstrip(" \t")) for line in rest if line.strip(" \t")]
    margin = min(margins, default=0)
    return "\n".join([first.strip(" \t"), *(line[margin:].rstrip(" \t") for line in rest)]).strip(" \t\n")


class _Converter:
    """One method a rule of the grammar; each takes the rule's parts and its span."""

    def __init__(self, file: str, report: Report) -> None:
        self.file, self.report = file, report

    def span(self, tree: Tree[Token]) -> Span:
        meta = tree.meta
        if meta.empty:
            return NOWHERE
        return Span(self.file, meta.line, meta.column, meta.end_line, meta.end_column)

    def token_span(self, token: Token) -> Span:
        line, column = token.line or 0, token.column or 0
        return Span(self.file, line, column, token.end_line or line, token.end_column or column + len(token))

    def identifier(self, token: Token) -> str:
        """The text of a name token; a word of the language or of Python is reported."""
        name = str(token)
        if name in RESERVED:
            help = "choose another name"
            self.report.add("reserved-word", f"`{name}` is a word of the language", self.token_span(token), help)
        elif name in FOREIGN:
            id, message, help = FOREIGN[name]
            self.report.add(id, message, self.token_span(token), help)
        return name

    def name_node(self, token: Token) -> ast.Name:
        return ast.Name(self.identifier(token), span=self.token_span(token))

    # Files and declarations

    def make_file(self, parts: list[Part], span: Span) -> ast.File:
        parts = _without_newlines(parts)
        doc = docstring(parts.pop(0)) if parts and isinstance(parts[0], Token) else None
        imports = tuple(part for part in parts if isinstance(part, ast.Import))
        declarations = tuple(part for part in parts if not isinstance(part, ast.Import))
        return ast.File(doc, imports, cast("tuple[ast.Declaration, ...]", declarations), span=span)

    def make_import(self, parts: list[Part], span: Span) -> ast.Import:
        path, *names = _without_newlines(parts)
        if path.startswith('"""'):
            help = 'write `from "masks.attn" import name`'
            self.report.add("import-path", "the file of an import is not a docstring", self.token_span(path), help)
        return ast.Import(str(path).strip('"'), tuple(names), span=self.token_span(path).to(self.span_of(names[-1])))

    def make_imported(self, parts: list[Part], span: Span) -> ast.ImportedName:
        name = self.identifier(parts[0])
        alias = self.identifier(parts[1]) if len(parts) > 1 and parts[1] is not None else None
        return ast.ImportedName(name, alias, span=span)

    def make_const(self, parts: list[Part], span: Span) -> ast.Const:
        name, type, value = _without_newlines(parts)
        return ast.Const(self.identifier(name), type, value, span=self.token_span(name).to(value.span))

    def make_scalar(self, parts: list[Part], span: Span) -> ast.Scalar:
        name, type, range = _without_newlines(parts)
        return self.scalar(name, type, range, None)

    def make_scalar_range_first(self, parts: list[Part], span: Span) -> ast.Scalar:
        name, type, range, default = _without_newlines(parts)
        return self.scalar(name, type, range, default)

    def make_scalar_default_first(self, parts: list[Part], span: Span) -> ast.Scalar:
        name, type, default, range = _without_newlines(parts)
        return self.scalar(name, type, range, default)

    def scalar(self, name: Token, type: ast.TypeRef, range: ast.Range | None, default: ast.Expr | None) -> ast.Scalar:
        ends = [part.span for part in (type, range, default) if part is not None]
        end = max(ends, key=lambda span: (span.end_line, span.end_column))
        return ast.Scalar(self.identifier(name), type, range, default, span=self.token_span(name).to(end))

    def make_tensor(self, parts: list[Part], span: Span) -> ast.Tensor:
        name, type, range = _without_newlines(parts)
        end = (range or type).span
        return ast.Tensor(self.identifier(name), type, range, span=self.token_span(name).to(end))

    def make_def(self, parts: list[Part], span: Span) -> ast.Def:
        name, params, returns, body = parts
        return ast.Def(self.identifier(name), params or (), returns or (), body, span=self.token_span(name))

    def make_mask_def(self, parts: list[Part], span: Span) -> ast.MaskDef:
        name, masks, arguments, body = parts
        return ast.MaskDef(self.identifier(name), masks or (), arguments or (), body, span=self.token_span(name))

    def make_mask_params(self, parts: list[Part], span: Span) -> tuple[ast.Name, ...]:
        return tuple(self.name_node(part) for part in parts)

    def make_mask_arguments(self, parts: list[Part], span: Span) -> tuple[ast.Param, ...]:
        return parts[0] or ()

    def make_params(self, parts: list[Part], span: Span) -> tuple[ast.Param, ...]:
        return tuple(parts)

    def make_param(self, parts: list[Part], span: Span) -> ast.Param:
        name, type, default = parts
        return ast.Param(self.identifier(name), type, default, span=span)

    def make_returns(self, parts: list[Part], span: Span) -> tuple[ast.TypeRef, ...]:
        return tuple(parts)

    def make_type(self, parts: list[Part], span: Span) -> ast.TypeRef:
        return ast.TypeRef(self.identifier(parts[0]), parts[1], span=span)

    def make_dims(self, parts: list[Part], span: Span) -> tuple[ast.Expr, ...]:
        return tuple(parts)

    def make_range(self, parts: list[Part], span: Span) -> ast.Range:
        return ast.Range(parts[0], parts[1], span=span)

    def make_attention(self, parts: list[Part], span: Span) -> ast.Attention:
        name, *items = _without_newlines(parts)
        doc = docstring(items.pop(0)) if items and isinstance(items[0], Token) else None
        check_duplicates(items, self.report)
        return ast.Attention(self.identifier(name), doc, tuple(items), span=self.token_span(name))

    def make_stage(self, parts: list[Part], span: Span) -> ast.Stage:
        word, param, body = parts
        name, where = cast(ast.StageName, str(word)), self.token_span(word)
        wanted = STAGES_WITH_PARAM.get(name)
        if wanted is None and param is not None:
            self.report.add("stage-parameter", f"`{name}` takes no parameter", param.span, f"write `{name}:`")
        elif wanted is not None and param is None:
            message = f"`{name}` needs a name for what it changes"
            self.report.add("stage-parameter", message, where, f"write `{name}({wanted}):`")
        if name == "softmax" and not (body.statements == () and body.result in (ast.Name("on"), ast.Name("off"))):
            message = "`softmax` is `on` or `off`"
            self.report.add("softmax-value", message, body.result.span, "write `softmax: on` or `softmax: off`")
        return ast.Stage(name, param, body, span=where)

    def make_stage_param(self, parts: list[Part], span: Span) -> ast.Name:
        return self.name_node(parts[0])

    # Pieces

    def make_attention_header(self, parts: list[Part], span: Span) -> str:
        return self.identifier(_without_newlines(parts)[0])

    def make_attention_item(self, parts: list[Part], span: Span) -> Part:
        return _without_newlines(parts)[0]

    def make_attention_doc(self, parts: list[Part], span: Span) -> None:
        return None

    # Bodies

    def make_body(self, parts: list[Part], span: Span) -> ast.Block:
        result = _without_newlines(parts)[0]
        return ast.Block((), result, span=result.span)

    def make_block(self, parts: list[Part], span: Span) -> ast.Block:
        lines = [part for part in _without_newlines(parts) if not isinstance(part, Token)]
        *statements, last = lines
        kept = self.only_statements(statements)
        if isinstance(last, ast.Assign | ast.For):
            what = "ends with an assignment" if isinstance(last, ast.Assign) else "ends with a loop"
            help = "add a last line with the expression that is the value"
            self.report.add("missing-result", f"this body {what} and has no value", last.span, help)
            last = ast.Name("missing")
        return ast.Block(kept, last, span=lines[0].span.to(lines[-1].span))

    def only_statements(self, lines: Sequence[Part]) -> tuple[ast.Statement, ...]:
        for line in lines:
            if not isinstance(line, ast.Assign | ast.For):
                help = "name it with `name = ...`, or remove it"
                self.report.add("unused-expression", "this value is never used", line.span, help)
        return tuple(line for line in lines if isinstance(line, ast.Assign | ast.For))

    def make_assign(self, parts: list[Part], span: Span) -> ast.Assign:
        target, value = _without_newlines(parts)
        items = target.items if isinstance(target, ast.Tuple) else (target,)
        for part in items:
            if not isinstance(part, ast.Name):
                help = "assign to a name; a comparison is `==`, and tensors can't be written"
                self.report.add("assignment-target", "only names can be assigned to", part.span, help)
        targets = tuple(part for part in items if isinstance(part, ast.Name))
        return ast.Assign(targets, value, span=target.span.to(value.span))

    def make_result(self, parts: list[Part], span: Span) -> ast.Expr:
        return cast(ast.Expr, parts[0])

    def make_for(self, parts: list[Part], span: Span) -> ast.For:
        variable, count, body = parts
        return ast.For(self.name_node(variable), count, body, span=self.token_span(variable).to(count.span))

    def make_loop_body(self, parts: list[Part], span: Span) -> tuple[ast.Statement, ...]:
        return self.only_statements(_without_newlines(parts))

    # Expressions

    def make_tuple(self, parts: list[Part], span: Span) -> ast.Tuple:
        return ast.Tuple(tuple(parts), span=span)

    def make_conditional(self, parts: list[Part], span: Span) -> ast.Conditional:
        then, condition, otherwise = parts
        return ast.Conditional(condition, then, otherwise, span=span)

    def make_comparison(self, parts: list[Part], span: Span) -> ast.Compare:
        ops = cast("tuple[ast.CompareOp, ...]", tuple(str(op) for op in parts[1::2]))
        return ast.Compare(tuple(parts[::2]), ops, span=span)

    def make_binary(self, parts: list[Part], span: Span) -> ast.Binary:
        lhs, op, rhs = parts
        return ast.Binary(cast(ast.BinaryOp, str(op)), lhs, rhs, span=span)

    def make_unary(self, parts: list[Part], span: Span) -> ast.Unary:
        return ast.Unary(cast(ast.UnaryOp, str(parts[0])), parts[1], span=span)

    def make_call(self, parts: list[Part], span: Span) -> ast.Call:
        callee, *given = (part for part in parts if part is not None)
        self.check_callee(callee)
        keywords: dict[str, ast.Keyword] = {}
        for part in given:
            if isinstance(part, ast.Keyword):
                if part.name in keywords:
                    message = f"`{part.name}` is given twice"
                    self.report.add("duplicate-keyword", message, part.span, "keep one of them")
                keywords.setdefault(part.name, part)
            elif keywords:
                message = "a positional argument follows a keyword argument"
                self.report.add("keyword-order", message, part.span, "put positional arguments first")
        args = tuple(part for part in given if not isinstance(part, ast.Keyword))
        return ast.Call(callee, args, tuple(keywords.values()), span=span)

    def check_callee(self, callee: ast.Expr) -> bool:
        named = callee.base if isinstance(callee, ast.Subscript) else callee
        if not isinstance(named, ast.Name):
            help = "call a def, a mask or a built-in by name; for a product write `*`"
            self.report.add("not-callable", "only names can be called", callee.span, help)
        return isinstance(named, ast.Name)

    def make_keyword(self, parts: list[Part], span: Span) -> ast.Keyword:
        return ast.Keyword(self.identifier(parts[0]), parts[1], span=span)

    def make_comprehension(self, parts: list[Part], span: Span) -> ast.Comprehension:
        callee, element, variable, count = parts
        if self.check_callee(callee) and not isinstance(callee, ast.Name):
            self.report.add("not-callable", "only a reduction can loop", callee.span, "use any, all, sum, max or min")
        function = callee if isinstance(callee, ast.Name) else ast.Name("any", span=callee.span)
        return ast.Comprehension(function, element, self.name_node(variable), count, span=span)

    def make_subscript(self, parts: list[Part], span: Span) -> ast.Subscript:
        return ast.Subscript(parts[0], tuple(parts[1:]), span=span)

    def make_name(self, parts: list[Part], span: Span) -> ast.Name:
        return self.name_node(parts[0])

    def make_true(self, parts: list[Part], span: Span) -> ast.Bool:
        return ast.Bool(True, span=span)

    def make_false(self, parts: list[Part], span: Span) -> ast.Bool:
        return ast.Bool(False, span=span)

    def make_number(self, parts: list[Part], span: Span) -> ast.Number:
        text = str(parts[0]).replace("_", "").lower()
        if text == "inf":
            return ast.Number(math.inf, span=span)
        value = _number(text)
        if abs(value) > (LARGEST_INT if isinstance(value, int) else LARGEST_FLOAT):
            limit = "64 bits" if isinstance(value, int) else "the range of f32"
            help = "use a smaller number, or `inf` for infinity"
            self.report.add("number-too-large", f"this number exceeds {limit}", span, help)
            value = 0
        return ast.Number(value, span=span)

    def span_of(self, part: Part) -> Span:
        return self.token_span(part) if isinstance(part, Token) else cast(Span, part.span)


def _number(text: str) -> int | float:
    prefixes: dict[str, Callable[[str], int]] = {"0x": lambda t: int(t, 16), "0b": lambda t: int(t, 2)}
    if (parse := prefixes.get(text[:2])) is not None:
        return parse(text)
    if text.isdigit():
        digits = text.lstrip("0") or "0"
        return int(digits) if len(digits) < 20 else LARGEST_INT + 1  # Python refuses to read very long integers
    return float(text)


def _without_newlines(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if not (isinstance(part, Token) and part.type in ("_NL", "_INDENT", "_DEDENT"))]
