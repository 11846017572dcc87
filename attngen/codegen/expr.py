"""Expressions as C++: a graph node is a leaf, part of its user's text, or a `const auto` statement of its own.

A value is uniform (one scalar for all lanes of the number type) or varying.  Emitted text holds no `?:`, no `&&` and no
libm, so that one text serves scalars and vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from attngen.codegen.cxx_ops import (
    ADD,
    ATOM,
    BINARY,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    CASTS,
    EQUALITY,
    FUNCTIONS,
    KEYWORDS,
    RELATION,
    UNARY,
    UNARY_OPS,
    Infix,
    literal,
)
from attngen.codegen.graph import Graph, Node
from attngen.codegen.ranges import Range, exact_range, integer_range, within
from attngen.errors import NOWHERE, Span
from attngen.ir.types import LIMITS

LINE: Final = 96  # where an expression is longer, its operands become statements
_BITWISE: Final = (BIT_AND, BIT_XOR, BIT_OR)
_RESERVED: Final = KEYWORDS | {
    "row", "column", "lane", "lanes", "s", "lse", "at", "args", "F", "I", "Row", "Column", "Lanes", "simd", "math",
    "select", "narrow", "as_mask", "attngen", "scale_log2", "sizes", "query", "key", "value", "logits", "mask", "sink",
    "output", "value_scale", "std", "errno", "tables", "into",
}  # fmt: skip
_LIKE_A_MACRO: Final = re.compile(r"_|[A-Z][A-Z0-9_]+$")  # __FILE__, NAN, EOF


@dataclass(frozen=True, slots=True)
class Text:
    """C++ text and how tightly it binds."""

    text: str
    precedence: int = ATOM

    def __str__(self) -> str:
        return self.text

    def under(self, precedence: int) -> str:
        """The text as an operand of an operator, in parentheses where it binds less."""
        return self.text if self.precedence >= precedence else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of a hook's body and the source that it came from."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a name of the IR is called in a hook; `in_lane` names exist only where a `lane` does."""

    text: str
    varying: bool = False
    in_lane: bool = False
    range: Range | None = None  # of an integer, where it is known


class Identifiers:
    """Gives out C++ identifiers that are neither reserved nor given out before."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(_RESERVED) | set(taken)

    def copy(self) -> Identifiers:
        """A supply for an inner block, whose names are free again behind it."""
        return Identifiers(self._taken)

    def named(self, wish: str) -> str:
        """The wished name without the numbers that passes gave it, with a new number where it is taken."""
        stem = re.sub(r"(?<=.)(_\d+)+$", "", wish)
        if _LIKE_A_MACRO.match(stem):
            stem = f"{stem.strip('_') or 't'}_"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name

    def temporary(self) -> str:
        """The first free one of t0, t1 and so on."""
        name = next(f"t{count}" for count in range(len(self._taken) + 1) if f"t{count}" not in self._taken)
        self._taken.add(name)
        return name


@dataclass
class Emitter:
    """Writes nodes of one graph into one hook.  `leaves` says what names are called, by node kind and name."""

    graph: Graph
    leaves: Mapping[tuple[str, str], Leaf]
    identifiers: Identifiers
    number_type: str = "F"  # what as_mask broadcasts to
    texts: dict[int, Text] = field(default_factory=dict)
    varying: dict[int, bool] = field(default_factory=dict)
    in_lane: dict[int, bool] = field(default_factory=dict)
    ranges: dict[int, Range] = field(default_factory=dict)

    # Facts about nodes ----------------------------------------------------------------------------

    def analyse(self) -> None:
        """Decide for every node of the graph so far whether it varies and whether it needs a lane."""
        for number, node in enumerate(self.graph.nodes):
            if number not in self.varying:
                self.varying[number], self.in_lane[number] = self._placement(node)
                if node.type.base in LIMITS:
                    operands = [self.ranges.get(arg, LIMITS["i64"]) for arg in node.args]
                    leaf = self.leaves.get((node.kind, str(node.payload)), _INVISIBLE)
                    self.ranges[number] = leaf.range or integer_range(node, operands)

    def _placement(self, node: Node) -> tuple[bool, bool]:
        match node.kind:
            case "index" | "scalar" | "var":
                leaf = self.leaves.get((node.kind, str(node.payload)), _INVISIBLE)
                return leaf.varying, leaf.in_lane
            case "lane_sum":
                return False, False
            case "lane_at" | "table":
                return node.type.vec, True
            case _:
                return any(self.varying[arg] for arg in node.args), any(self.in_lane[arg] for arg in node.args)

    def _is_plain(self, number: int) -> bool:
        """Whether a node is a name or a constant, which naming again wouldn't improve."""
        return self.graph.nodes[number].kind in ("const", "scalar", "index", "var") and not self.in_lane[number]

    # Blocks ---------------------------------------------------------------------------------------

    def block(self, roots: Sequence[int]) -> list[Statement]:
        """Statements after which every root that needs no lane has a text, as has everything lanes need of them."""
        self.analyse()
        reachable = self._reachable(roots, through_lanes=True)
        captured = {arg for n in reachable if self.in_lane[n] for arg in self.graph.nodes[n].args}
        members = [n for n in sorted(reachable) if not self.in_lane[n]]
        return self._declarations(members, roots, captured)

    def lane_block(self, root: int) -> tuple[list[Statement], Text]:
        """The body of a lambda over lanes: its statements and the text of its value."""
        members = [n for n in sorted(self._reachable([root], through_lanes=False)) if self.in_lane[n]]
        inner = replace(
            self, identifiers=self.identifiers.copy(), number_type="decltype(lane.self())", texts=dict(self.texts)
        )
        statements = inner._declarations(members, [root], frozenset())
        return statements, inner.texts[root]

    def _reachable(self, roots: Sequence[int], *, through_lanes: bool) -> set[int]:
        found: set[int] = set()
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number in found or number in self.texts:
                continue
            found.add(number)
            if through_lanes or self.in_lane[number]:
                stack.extend(self.graph.nodes[number].args)
        return found

    def _declarations(
        self, members: Sequence[int], roots: Sequence[int], captured: set[int] | frozenset[int]
    ) -> list[Statement]:
        uses = dict.fromkeys(members, 0)
        for arg in (arg for n in members for arg in self.graph.nodes[n].args if arg in uses):
            uses[arg] += 1
        statements: list[Statement] = []
        for number in members:
            if self.graph.nodes[number].kind == "lane_sum":
                self.texts[number] = self._sum(number, statements)
                continue
            text = self._fitting_text(number, uses, statements)
            inner_root = number in roots and uses[number] == 0
            wanted = uses[number] > 1 or number in captured or number in self.graph.names
            if wanted and not inner_root and not self._is_plain(number):
                text = self._declare(number, text.text, statements)
            self.texts[number] = text
        return statements

    def _fitting_text(self, number: int, members: Mapping[int, int], statements: list[Statement]) -> Text:
        """The node's text; where it is too long, its longest operands become statements first."""
        text = self._text(number)
        operands = [arg for arg in self.graph.nodes[number].args if arg in members]
        for arg in sorted(operands, key=lambda arg: -len(self.texts[arg].text)):
            if len(text.text) <= LINE or self.texts[arg].text.isidentifier() or self._is_plain(arg):
                break
            self.texts[arg] = self._declare(arg, self.texts[arg].text, statements)
            text = self._text(number)
        return text

    def _declare(self, number: int, value: str, statements: list[Statement]) -> Text:
        node = self.graph.nodes[number]
        wish = self.graph.names.get(number, str(node.payload) if node.kind in ("var", "index") else None)
        name = self.identifiers.temporary() if wish is None else self.identifiers.named(wish)
        kind = "bool" if node.type.base == "bool" and not self.varying[number] else "auto"
        statements.append(Statement(f"const {kind} {name} = {value};", self.graph.spans[number]))
        return Text(name)

    def _sum(self, number: int, statements: list[Statement]) -> Text:
        node, span = self.graph.nodes[number], self.graph.spans[number]
        wish = self.graph.names.get(number)
        body, value = self.lane_block(node.args[0])
        name = self.identifiers.temporary() if wish is None else self.identifiers.named(wish)
        statements += over_lanes(f"const float {name} = lanes.sum", body, value, span)
        return Text(name)

    # Nodes ----------------------------------------------------------------------------------------

    def _text(self, number: int) -> Text:
        node = self.graph.nodes[number]
        args = [self.texts[arg] for arg in node.args]
        match node.kind:
            case "const":
                return Text(*literal(_constant(str(node.payload)), node.type.base))
            case "index" | "scalar" | "var":
                if (node.kind, str(node.payload)) not in self.leaves:
                    raise ValueError(f"{node.kind} `{node.payload}` can't be seen in this stage")
                return Text(self.leaves[node.kind, str(node.payload)].text)
            case "load":
                return _call(f"{member_name(str(node.payload))}.load", args)
            case "unary":
                return self._unary(number, node, args[0])
            case "binary":
                return self._binary(number, node, self._as_masks(number, args))
            case "select":
                return _call("select", [args[0], *self._as_masks(number, args)[1:]])
            case "cast":
                return self._cast(node, args[0])
            case "call":
                return _call(FUNCTIONS[str(node.payload)], args)
            case "lane_at":
                return _call("lane.at" if args else f"lane.{node.payload}", args)
            case "table":
                return _call("lane.table", [Text(f"tables->{str(node.payload).replace(':', '_')}")])
            case _:
                raise AssertionError(node.kind)

    def _unary(self, number: int, node: Node, operand: Text) -> Text:
        infix = UNARY_OPS[node.type.base][str(node.payload)]
        if infix.wrap is not None and self._may_overflow(node):
            return _call(infix.wrap, [operand])
        inner = operand.under(infix.precedence)
        return Text(f"{infix.symbol}{f'({inner})' if inner.startswith(infix.symbol) else inner}", UNARY)

    def _binary(self, number: int, node: Node, args: list[Text]) -> Text:
        base = self.graph.nodes[node.args[0]].type.base
        spelling = BINARY[base][str(node.payload)]
        if not isinstance(spelling, Infix):
            return _call(spelling.name, args)
        if spelling.wrap is not None and self._may_overflow(node):
            return _call(spelling.wrap, args)
        text = Text(_infix(spelling, *args), spelling.precedence)
        wide_mask = node.type.base == "bool" and base == "i64" and self.varying[number]
        return _call("narrow", [text]) if wide_mask else text

    def _may_overflow(self, node: Node) -> bool:
        exact = exact_range(node, [self.ranges[arg] for arg in node.args])
        return not within(exact, LIMITS[node.type.base])

    def _as_masks(self, number: int, args: list[Text]) -> list[Text]:
        """Operands of a varying operation on bools are masks, all of them."""
        node = self.graph.nodes[number]
        if not self.varying[number]:
            return args
        types = [self.graph.nodes[arg].type.base for arg in node.args]
        uniform = [base == "bool" and not self.varying[arg] for base, arg in zip(types, node.args, strict=True)]
        return [self.as_mask(arg) if wrap else arg for arg, wrap in zip(args, uniform, strict=True)]

    def as_mask(self, flag: Text) -> Text:
        """A uniform bool as a mask of the hook's number type."""
        return _call(f"as_mask<{self.number_type}>", [flag])

    def _cast(self, node: Node, operand: Text) -> Text:
        source, target = self.graph.nodes[node.args[0]].type.base, node.type.base
        if target == "bool":
            text = Text(f"{operand.under(RELATION)} != {literal(0, source)[0]}", EQUALITY)
            return _call("narrow", [text]) if source == "i64" else text
        if source == "bool":
            return _call("select", [operand, Text(literal(1, target)[0]), Text(literal(0, target)[0])])
        return _call(CASTS[target], [operand])


_INVISIBLE: Final = Leaf("")


def over_lanes(head: str, body: Sequence[Statement], value: Text, span: Span) -> Iterator[Statement]:
    """`head([&](auto lane) { … return value; });` on one line where it fits."""
    line = f"{head}([&](auto lane) {{ return {value}; }});"
    if not body and len(line) <= LINE + 8:
        yield Statement(line, span)
        return
    yield Statement(f"{head}([&](auto lane) {{", span)
    yield from (Statement(f"  {statement.text}", statement.span) for statement in body)
    yield Statement(f"  return {value};", span)
    yield Statement("});", NOWHERE)


def member_name(name: str) -> str:
    """What a parameter's member is called: no keyword ends so, and no macro looks like it."""
    return f"m{name}0" if name.startswith("_") else f"{name}_"


def _call(function: str, args: Sequence[Text]) -> Text:
    return Text(f"{function}({', '.join(arg.text for arg in args)})")


def _infix(spelling: Infix, lhs: Text, rhs: Text) -> str:
    own = spelling.precedence
    if own in _BITWISE:
        # Comparisons and other bit operators are put in parentheses, as readers (and -Wparentheses) expect.
        left, right = (_beside_bits(arg, own) for arg in (lhs, rhs))
    elif own in (RELATION, EQUALITY):
        left, right = lhs.under(ADD), rhs.under(ADD)
    else:
        left, right = lhs.under(own), rhs.under(own + 1)
    return f"{left} {spelling.symbol} {right}"


def _beside_bits(arg: Text, own: int) -> str:
    text = arg.under(own if arg.precedence == own else UNARY)
    return f"({text})" if text.startswith("!") else text


def _constant(payload: str) -> bool | int | float:
    if payload in ("True", "False"):
        return payload == "True"
    return int(payload) if payload.lstrip("-").isdigit() else float(payload)
