"""The whole IR on one screen: typed, frozen, pure and total.

Every expression terminates, never faults and has no effect (`//` by zero is 0, loads are clamped), so passes may
move, copy and drop sub-expressions freely.  `ir/evaluate.py` is the meaning of each node.  Equality and hashes ignore
spans; `TypeAdapter(Variant).dump_json` is stable and serves as a cache key.

Types: an operation's operands have one base type (`ir/build` inserts the casts); a scalar operand of a vec
operation is broadcast over the lanes.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from attngen.errors import NOWHERE, Span

_FROZEN = ConfigDict(arbitrary_types_allowed=True, ser_json_inf_nan="constants")

Base: TypeAlias = Literal["bool", "i32", "i64", "f32"]


@dataclass(frozen=True, config=_FROZEN)
class Type:
    base: Base
    vec: bool = False  # one value a lane of the head dimension


def _span() -> Any:
    return field(default=NOWHERE, compare=False, repr=False, kw_only=True)


SpanField: TypeAlias = Annotated[Span, Field(exclude=True)]

# Index names.  `lse` is f32 and `d` is an i32 vec; all others are i32 scalars.
#   row scope: b h q pos row q_len kv_len lse · column scope: kv slot · both: hk · launch scope: group D Dv Hq Hk
#   mask bounds only: pos_lo pos_hi, the first and the last query position of a tile
IndexName: TypeAlias = Literal[
    "b", "h", "hk", "q", "kv", "pos", "row", "slot", "q_len", "kv_len", "group", "D", "Dv", "Hq", "Hk", "d", "lse",
    "pos_lo", "pos_hi",
]  # fmt: skip


@dataclass(frozen=True, config=_FROZEN)
class Const:
    value: bool | int | float
    type: Type
    kind: Literal["const"] = field(default="const", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Index:
    name: IndexName
    type: Type
    kind: Literal["index"] = field(default="index", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Scalar:
    """A run-time scalar parameter of the variant."""

    name: str
    type: Type
    kind: Literal["scalar"] = field(default="scalar", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Var:
    """A stage's input (`x`, `s`, `v`, `o`), a function parameter, a `Let`, a loop variable or a `Binding`."""

    name: str
    type: Type
    kind: Literal["var"] = field(default="var", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Load:
    """`tensor[indices]`, each index clamped into its dimension; the type is the load type of the storage type."""

    tensor: str
    indices: tuple[Expr, ...]
    type: Type
    kind: Literal["load"] = field(default="load", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Unary:
    op: Literal["-", "~"]
    operand: Expr
    type: Type
    kind: Literal["unary"] = field(default="unary", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Binary:
    """Integers wrap, `//` and `%` floor (by zero: 0), shift counts are masked, `/` is f32 only."""

    op: Literal["+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">="]
    lhs: Expr
    rhs: Expr
    type: Type
    kind: Literal["binary"] = field(default="binary", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Select:
    condition: Expr
    then: Expr
    otherwise: Expr
    type: Type
    kind: Literal["select"] = field(default="select", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Cast:
    """Float to int truncates and saturates, NaN gives 0; i64 to i32 wraps; bool to number is 0 or 1."""

    operand: Expr
    type: Type
    kind: Literal["cast"] = field(default="cast", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Call:
    """A row of `builtins.BUILTINS`, e.g. exp2, tanh, min, clamp."""

    function: str
    args: tuple[Expr, ...]
    type: Type
    kind: Literal["call"] = field(default="call", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class LaneSum:
    """The sum over the lanes of a vec: an f32 scalar."""

    operand: Expr
    type: Type
    kind: Literal["lane_sum"] = field(default="lane_sum", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class LaneAt:
    """`operand[index]`.  Partner "half" is lane (d + n/2) % n, "pair" is d ^ 1; "index" is any lane, clamped.

    With a scalar index the result is a scalar, with a vec index (an affine permutation of d) it is a vec.
    """

    operand: Expr
    partner: Literal["half", "pair", "index"]
    index: Expr | None
    type: Type
    kind: Literal["lane_at"] = field(default="lane_at", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Let:
    """`name = value` in `body`; names are unique within a variant."""

    name: str
    value: Expr
    body: Expr
    type: Type
    kind: Literal["let"] = field(default="let", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Apply:
    """A call of a `Function`; `pos` and `kv` re-bind those indices inside it.  Gone after passes.inline."""

    function: str
    args: tuple[Expr, ...]
    pos: Expr | None
    kv: Expr | None
    type: Type
    kind: Literal["apply"] = field(default="apply", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Reduce:
    """`op(body for variable in range(count))`.  Gone after passes.unroll."""

    op: Literal["any", "all", "sum", "max", "min"]
    variable: str
    count: Expr
    body: Expr
    type: Type
    kind: Literal["reduce"] = field(default="reduce", repr=False, kw_only=True)
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Carry:
    """A loop-carried value: `next` reads every carried value as it was at the start of the iteration."""

    name: str
    init: Expr
    next: Expr


@dataclass(frozen=True, config=_FROZEN)
class Loop:
    """The value of carried `result` after `count` iterations.  Gone after passes.unroll."""

    variable: str
    count: Expr
    carried: tuple[Carry, ...]
    result: str
    type: Type
    kind: Literal["loop"] = field(default="loop", repr=False, kw_only=True)
    span: SpanField = _span()


Expr: TypeAlias = Annotated[
    Const | Index | Scalar | Var | Load | Unary | Binary | Select | Cast | Call | LaneSum | LaneAt | Let | Apply
    | Reduce | Loop,
    Field(discriminator="kind"),
]  # fmt: skip

# A variant --------------------------------------------------------------------------------------

Number: TypeAlias = int | float


@dataclass(frozen=True, config=_FROZEN)
class ScalarParam:
    name: str
    type: Base
    default: bool | int | float | None = None
    range: tuple[Number, Number] | None = None  # half open
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class TensorParam:
    """`dims` are sizes or names; Hq Hk D Dv bind exactly, B Rows Slots Q KV at least, others exactly at first use."""

    name: str
    dtype: str  # a row of dtypes.STORAGE
    dims: tuple[int | str, ...]
    range: tuple[Number | str, Number | str] | None = None  # half open; a name is a dimension
    span: SpanField = _span()


@dataclass(frozen=True, config=_FROZEN)
class Function:
    name: str
    params: tuple[Var, ...]
    body: Expr
    span: SpanField = _span()


Scope: TypeAlias = Literal["launch", "lane", "row", "column"]


@dataclass(frozen=True, config=_FROZEN)
class Binding:
    """A value hoisted out of the element loop: once a launch, once a lane and launch, once a row, or once a column."""

    scope: Scope
    name: str
    value: Expr


@dataclass(frozen=True, config=_FROZEN)
class KeyBounds:
    """Key ranges for the query positions pos_lo..pos_hi (inclusive) of one request.

    No key outside [first, last) is allowed for any of them; every key in [full_from, full_to) is allowed for all.
    Expressions read only constants, scalar parameters and pos_lo, pos_hi, q_len, kv_len.
    """

    first: Expr
    full_from: Expr
    full_to: Expr
    last: Expr


@dataclass(frozen=True, config=_FROZEN)
class Variant:
    """One `attention`, in evaluation order.  A stage that is None is the identity (or allows every key).

    Inputs: query Var("x"), key Var("x"), value Var("v"), logits Var("s"), output Var("o").
    """

    name: str
    doc: str | None
    scalars: tuple[ScalarParam, ...]
    tensors: tuple[TensorParam, ...]
    functions: tuple[Function, ...] = ()
    query: Expr | None = None
    key: Expr | None = None
    value: Expr | None = None
    scale: Expr | None = None  # None is 1/sqrt(D)
    logits: Expr | None = None
    mask: Expr | None = None
    sink: Expr | None = None
    output: Expr | None = None
    softmax: bool = True
    # Derived by passes.
    bindings: tuple[Binding, ...] = ()  # scope: in dependency order, launch first
    key_bounds: KeyBounds | None = None  # bounds
    scale_log2: Expr | None = None  # log2: weights are exp2(scale_log2 * logits(dot)); a positive launch value
    value_scale: Expr | None = None  # a factor of `value` that depends on no lane; multiplies the fp32 weight
    logit_bound: float | None = None  # |scale_log2 * logits| is provably at most this
    span: SpanField = _span()
