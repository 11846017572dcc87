"""The syntax tree of an .attn file: frozen, spanned, and free of meaning.

Equality ignores spans, so that two spellings of one tree compare equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from attngen.errors import NOWHERE, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    span: Span = field(default=NOWHERE, compare=False, repr=False)


# Expressions ------------------------------------------------------------------------------------

UnaryOp: TypeAlias = Literal["-", "+", "~"]
BinaryOp: TypeAlias = Literal["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>"]
CompareOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Name(Node):
    id: str


@dataclass(frozen=True, slots=True)
class Number(Node):
    """`value` is an int for an integer literal and a float for `1.0`, `1e-6`, `inf`."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Bool(Node):
    value: bool


@dataclass(frozen=True, slots=True)
class Unary(Node):
    op: UnaryOp
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: BinaryOp
    lhs: Expr
    rhs: Expr


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """`a < b <= c`: one more operand than operators, read as in Python."""

    operands: tuple[Expr, ...]
    ops: tuple[CompareOp, ...]


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    """`then if condition else otherwise`."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Keyword(Node):
    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`callee(args, name=value)`; the callee is a Name, or a Subscript for `in_doc[causal](doc, off)`."""

    callee: Expr
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscript(Node):
    """`base[i, j]`: a tensor load, a lane of a vec, or the mask arguments of a mask."""

    base: Expr
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """`any(element for variable in range(count))`."""

    function: Name
    element: Expr
    variable: Name
    count: Expr


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    items: tuple[Expr, ...]


Expr: TypeAlias = (
    Name | Number | Bool | Unary | Binary | Compare | Conditional | Call | Subscript | Comprehension | Tuple
)

# Bodies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`a = value` or `a, b = value`."""

    targets: tuple[Name, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class For(Node):
    """`for variable in range(count):` with assignments (and loops) inside; always unrolled."""

    variable: Name
    count: Expr
    body: tuple[Statement, ...]


Statement: TypeAlias = Assign | For


@dataclass(frozen=True, slots=True)
class Block(Node):
    """Statements, then the expression that is the value; `softmax: off` and one-liners have no statements."""

    statements: tuple[Statement, ...]
    result: Expr


# Declarations -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeRef(Node):
    """`f32`, `vec`, or `i32[B, KV]`; a dimension is a Number or a Name (or a constant expression)."""

    base: str
    dims: tuple[Expr, ...] | None = None


@dataclass(frozen=True, slots=True)
class Range(Node):
    """`in lo..hi`, half open."""

    lo: Expr
    hi: Expr


@dataclass(frozen=True, slots=True)
class Param(Node):
    name: str
    type: TypeRef
    default: Expr | None = None


@dataclass(frozen=True, slots=True)
class Def(Node):
    """`def name(params) -> returns: body`; `returns` holds several types for a tuple, none where it is inferred."""

    name: str
    params: tuple[Param, ...]
    returns: tuple[TypeRef, ...]
    body: Block


@dataclass(frozen=True, slots=True)
class MaskDef(Node):
    """`mask name[inner](params): body`; calling a mask parameter as `inner(p, k)` re-binds pos and kv."""

    name: str
    mask_params: tuple[Name, ...]
    params: tuple[Param, ...]
    body: Block


@dataclass(frozen=True, slots=True)
class Const(Node):
    name: str
    type: TypeRef
    value: Expr


@dataclass(frozen=True, slots=True)
class Scalar(Node):
    name: str
    type: TypeRef
    range: Range | None = None
    default: Expr | None = None


@dataclass(frozen=True, slots=True)
class Tensor(Node):
    name: str
    type: TypeRef
    range: Range | None = None


StageName: TypeAlias = Literal["query", "key", "value", "logits", "mask", "sink", "scale", "output", "softmax"]


@dataclass(frozen=True, slots=True)
class Stage(Node):
    """`logits(s): body`, `mask: body`, `softmax: off` (its result is Name("on") or Name("off"))."""

    name: StageName
    param: Name | None
    body: Block


@dataclass(frozen=True, slots=True)
class Attention(Node):
    name: str
    doc: str | None
    items: tuple[Const | Scalar | Tensor | Def | Stage, ...]


@dataclass(frozen=True, slots=True)
class ImportedName(Node):
    name: str
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Import(Node):
    """`from "masks.attn" import a, b as c`; the path is relative to the importing file."""

    path: str
    names: tuple[ImportedName, ...]


Declaration: TypeAlias = Const | Def | MaskDef | Attention


@dataclass(frozen=True, slots=True)
class File(Node):
    doc: str | None
    imports: tuple[Import, ...]
    declarations: tuple[Declaration, ...]


@dataclass(frozen=True, slots=True)
class Module(Node):
    """A file with everything it imports, resolved: `files` is the closure by absolute path, the root first."""

    root: str
    files: dict[str, File]
    sources: dict[str, str]
