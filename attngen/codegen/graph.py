"""Expressions as a graph of distinct operations: equal sub-expressions are one node, Lets are names of nodes.

Lane permutations are pushed down to what they can be read from: `rotate_half(x * w)[d]` becomes x and w at the
partner's lane, so that only a stage's input and tables are ever permuted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import assert_never

from attngen.errors import NOWHERE, Span
from attngen.ir.nodes import (
    Apply,
    Base,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Loop,
    Reduce,
    Scalar,
    Select,
    Type,
    Unary,
    Var,
)
from attngen.ir.walk import let_spine

I32: Final[Base] = "i32"


@dataclass(frozen=True, slots=True)
class Node:
    """An operation on earlier nodes: what the IR node held, its type, and the numbers of its operands.

    `kind` is the IR's; `payload` what distinguishes nodes of a kind (a constant's text, a name, an operator).
    """

    kind: str
    payload: Hashable
    type: Type
    args: tuple[int, ...]


# How a lane permutation reads lane d: its "half" or "pair" partner, or the lane that a node numbers.
Lane = str | int


@dataclass
class Graph:
    """Nodes in an order where operands come first; `names` and `spans` say what the source called them and where."""

    lanes: int = 0
    input: str = "x"  # the variable of a vector stage
    nodes: list[Node] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    tables: dict[str, Expr] = field(default_factory=dict)  # bindings of lane scope by name
    _numbers: dict[Node, int] = field(default_factory=dict)
    _permuted: dict[tuple[int, Lane], int] = field(default_factory=dict)

    def add(self, expr: Expr, variables: dict[str, int] | None = None) -> int:
        """The number of an expression's node; its Lets are resolved and its lane permutations pushed to the leaves."""
        return self._add(expr, {} if variables is None else variables, {})

    def _add(self, expr: Expr, variables: dict[str, int], memo: dict[int, int]) -> int:
        if id(expr) in memo:
            return memo[id(expr)]
        lets, body = let_spine(expr)
        for let in lets:
            number = variables[let.name] = self._add(let.value, variables, memo)
            self.names.setdefault(number, let.name)
        memo[id(expr)] = number = self._node(body, variables, memo)
        return number

    def _node(self, expr: Expr, variables: dict[str, int], memo: dict[int, int]) -> int:
        def of(*operands: Expr) -> tuple[int, ...]:
            return tuple(self._add(operand, variables, memo) for operand in operands)

        match expr:
            case Const():
                return self.make("const", repr(expr.value), expr.type, (), expr.span)
            case Index():
                return self.make("index", expr.name, expr.type, (), expr.span)
            case Scalar():
                return self.make("scalar", expr.name, expr.type, (), expr.span)
            case Var():
                known = variables.get(expr.name)
                return self.make("var", expr.name, expr.type, (), expr.span) if known is None else known
            case Load():
                return self.make("load", expr.tensor, expr.type, of(*expr.indices), expr.span)
            case Unary():
                return self.make("unary", expr.op, expr.type, of(expr.operand), expr.span)
            case Binary():
                return self.make("binary", expr.op, expr.type, of(expr.lhs, expr.rhs), expr.span)
            case Select():
                parts = of(expr.condition, expr.then, expr.otherwise)
                return self.make("select", None, expr.type, parts, expr.span)
            case Cast():
                return self.make("cast", None, expr.type, of(expr.operand), expr.span)
            case Call():
                return self.make("call", expr.function, expr.type, of(*expr.args), expr.span)
            case LaneSum():
                return self.make("lane_sum", None, expr.type, of(expr.operand), expr.span)
            case LaneAt():
                (operand,) = of(expr.operand)
                return self.permute(operand, expr.partner if expr.index is None else of(expr.index)[0])
            case Apply() | Reduce() | Loop():
                raise ValueError(f"{expr.kind}: code is generated from inlined and unrolled variants only")
            case Let():
                raise AssertionError("let_spine leaves no Let")
            case _:
                assert_never(expr)

    def make(self, kind: str, payload: Hashable, type: Type, args: tuple[int, ...] = (), span: Span = NOWHERE) -> int:
        """The number of this node, which is new if none equals it."""
        node = Node(kind, payload, type, args)
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        number = self._numbers[node]
        self.spans.setdefault(number, span)
        return number

    # Lane permutations ----------------------------------------------------------------------------

    def permute(self, number: int, lane: Lane) -> int:
        """A node as another lane sees it."""
        if (number, lane) not in self._permuted:
            self._permuted[number, lane] = self._permute(number, lane)
        return self._permuted[number, lane]

    def _permute(self, number: int, lane: Lane) -> int:
        node, span = self.nodes[number], self.spans[number]
        if not node.type.vec:
            return number
        vec = isinstance(lane, str) or self.nodes[lane].type.vec
        type = Type(node.type.base, vec)
        match node.kind:
            case "var" if node.payload in self.tables:
                if isinstance(lane, str):
                    return self.make("table", f"{node.payload}:{lane}:{self.lanes}", type, (), span)
                return self.permute(self.add(self.tables[str(node.payload)]), lane)
            case "var":
                if isinstance(lane, str):
                    return self.make("lane_at", lane, type, (), span)
                return self.make("lane_at", "index", type, (lane,), span)
            case "index":
                return self.lane_number(number, lane)
            case "table":
                name, partner, _ = str(node.payload).split(":")
                if partner == lane:
                    return self.make("var", name, type, (), span)
                return self.permute(self.add(self.tables[name]), self._compose(partner, (), lane))
            case "lane_at":
                own = self.make("var", self.input, node.type, (), span)
                if node.payload == lane:
                    return own
                return self.permute(own, self._compose(str(node.payload), node.args, lane))
            case _:
                args = tuple(self.permute(arg, lane) for arg in node.args)
                return self.make(node.kind, node.payload, type, args, span)

    def _compose(self, partner: str, args: tuple[int, ...], lane: Lane) -> Lane:
        """The lane that a permuted leaf reads, as another lane sees it."""
        here = self.lane_number(self.make("index", "d", Type(I32, vec=True)), lane)
        if partner == "index":
            return self.permute(args[0], lane)
        return self._partner(here, partner)

    def lane_number(self, d: int, lane: Lane) -> int:
        """The number of the lane that is read, in [0, lanes)."""
        if isinstance(lane, str):
            return self._partner(d, lane)
        type = self.nodes[lane].type
        return self.make("call", "clamp", type, (lane, self._i32(0), self._i32(self.lanes - 1)))

    def _partner(self, d: int, partner: str) -> int:
        type = self.nodes[d].type
        if partner == "pair":
            return self.make("binary", "^", type, (d, self._i32(1)))
        half = self._i32(self.lanes // 2)
        low = self.make("binary", "<", Type("bool", type.vec), (d, half))
        above = self.make("binary", "+", type, (d, half))
        below = self.make("binary", "-", type, (d, half))
        return self.make("select", None, type, (low, above, below))

    def _i32(self, value: int) -> int:
        return self.make("const", repr(value), Type(I32))
