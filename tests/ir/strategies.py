"""Hypothesis strategies: random typed expressions, masks, and environments that give their leaves values.

    expressions(F32, stage="logits")   what a stage may read (STAGE_INDICES), with Lets
    expressions(..., control=True)     also Apply (of FUNCTIONS), Reduce and Loop
    masks()                            the kind of mask that key bounds can mostly read
    worlds()                           values for every index, SCALARS, TENSORS and stage input, consistent with a batch

`World.environment()` is for `evaluate` on Python numbers; its plain fields serve tests of generated code.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from attngen.ir.evaluate import Environment
from attngen.ir.make import binary, call, cast, i32, inverted, negative, select
from attngen.ir.nodes import (
    Apply,
    Carry,
    Const,
    Expr,
    Function,
    Index,
    LaneAt,
    LaneSum,
    Let,
    Load,
    Loop,
    Reduce,
    Scalar,
    ScalarParam,
    TensorParam,
    Type,
    Var,
    Variant,
)
from attngen.ir.numbers import round_f32
from attngen.ir.types import BOOL, F32, I32, I64, VEC

LANES = 8
ROW = ("b", "h", "hk", "q", "pos", "row", "q_len", "kv_len")
COLUMN = ("hk", "kv", "slot")
LAUNCH = ("group", "Hq", "Hk")
STAGE_INDICES = {
    "query": (*ROW, *LAUNCH, "d"),
    "key": (*COLUMN, *LAUNCH, "d"),
    "value": (*COLUMN, *LAUNCH, "d"),
    "logits": (*ROW, "kv", "slot", *LAUNCH),
    "mask": (*ROW, "kv", "slot", *LAUNCH),
    "sink": (*ROW, *LAUNCH),
    "output": (*ROW, *LAUNCH, "d"),
}
STAGE_TYPE = {
    "query": VEC, "key": VEC, "logits": F32, "mask": BOOL, "sink": F32, "value": VEC, "output": VEC
}  # fmt: skip
STAGE_INPUT = {"query": ("x", VEC), "key": ("x", VEC), "value": ("v", VEC), "logits": ("s", F32), "output": ("o", VEC)}

SCALARS = (
    ScalarParam("n", "i32", 4),
    ScalarParam("m", "i32", 3, (1, 9)),
    ScalarParam("wide", "i64", 1),
    ScalarParam("t", "f32", 1.0),
    ScalarParam("u", "f32", 1.0, (0.5, 4.0)),
    ScalarParam("flag", "bool", True),
)
TENSORS = (
    TensorParam("slope", "f32", ("Hq",)),
    TensorParam("bias", "f32", ("Hq", 3), (-2.0, 2.0)),
    TensorParam("doc", "i32", ("B", "KV"), (0, 4)),
    TensorParam("off", "i32", (5,)),
    TensorParam("far", "i64", (4,)),
    TensorParam("hot", "bool", ("KV",)),
    TensorParam("level", "f32", ()),
)
_TENSOR_SHAPES = {"slope": (4,), "bias": (4, 3), "doc": (2, 24), "off": (5,), "far": (4,), "hot": (24,), "level": ()}
_TENSOR_BASE = {"slope": F32, "bias": F32, "doc": I32, "off": I32, "far": I64, "hot": BOOL, "level": F32}

_P, _R, _TWICE = Var("p", F32), Var("r", I32), Var("twice", F32)
_POS, _KV = Index("pos", I32), Index("kv", I32)
FUNCTIONS = (
    Function(
        "blend", (_P, _R), Let("twice", binary("+", _P, _P), binary("*", Var("twice", F32), cast(_R, "f32")), F32)
    ),
    Function("near", (_R,), binary("<", binary("-", _POS, _KV), _R)),
    Function("outer", (_R,), Apply("near", (binary("+", _R, i32(1)),), binary("-", _POS, _R), None, BOOL)),
)
_FLOAT_CALLS = {
    1: ("abs", "sign", "floor", "ceil", "round", "exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos",
        "tanh", "sigmoid", "erf", "silu", "gelu", "relu", "softplus"),
    2: ("min", "max", "pow"),
    3: ("clamp",),
}  # fmt: skip
_INT_CALLS = {1: ("abs", "sign"), 2: ("min", "max"), 3: ("clamp",)}

FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.25, 3.0, 0.1, -7.3, 50.0, 1e-3, 1e30, -1e38, float("inf")])
INTEGERS = st.one_of(st.integers(-6, 30), st.sampled_from([2**31 - 1, -(2**31), 2**30, 12345]))


class _Grower:
    """Grows one expression; names of binders are unique."""

    def __init__(self, draw: Callable[..., Any], stage: str, control: bool) -> None:
        self.draw, self.control = draw, control
        self.indices = STAGE_INDICES[stage]
        self.lanes = "d" in self.indices
        self.input = STAGE_INPUT.get(stage)
        self.count = itertools.count()

    def name(self) -> str:
        return f"a{next(self.count)}"

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def leaf(self, type: Type, scope: tuple[Var, ...]) -> Expr:
        choices: list[Expr] = [var for var in scope if var.type == type]
        if self.input is not None and self.input[1] == type:
            choices += [Var(self.input[0], type)] * 3
        if type.base == "i32":
            choices += [Index(n, I32) for n in self.indices if (n == "d") == type.vec and n != "d"]
            choices += [Index("d", Type("i32", vec=True))] * 2 if type.vec else []
        if not type.vec:
            choices += [Scalar(s.name, type) for s in SCALARS if s.type == type.base]
            value = {"f32": FLOATS, "bool": st.booleans()}.get(type.base, INTEGERS)
            choices += [Const(self.draw(value), type)] * 2
        if not choices:
            return self.lift(type, scope)
        return self.pick(choices)

    def lift(self, type: Type, scope: tuple[Var, ...]) -> Expr:
        """A vec of a base that no leaf has."""
        d = Index("d", Type("i32", vec=True))
        match type.base:
            case "bool":
                return binary("<", d, self.leaf(I32, scope))
            case "f32":
                return cast(d, "f32")
            case _:
                return cast(d, type.base)

    def load(self, type: Type, depth: int, scope: tuple[Var, ...]) -> Expr:
        name = self.pick(n for n, t in _TENSOR_BASE.items() if t.base == type.base)
        shape = _TENSOR_SHAPES[name]
        if type.vec and not shape:
            name, shape = "slope", _TENSOR_SHAPES["slope"]
        vec_at = 0 if type.vec else -1
        indices = tuple(self.grow(Type("i32", axis == vec_at), depth - 1, scope) for axis in range(len(shape)))
        return Load(name, indices, type)

    def operands(self, base: str, vec: bool, count: int, depth: int, scope: tuple[Var, ...]) -> list[Expr]:
        """Operands of which at least one is a vec where the result is."""
        lead = self.draw(st.integers(0, count - 1)) if vec else -1
        return [
            self.grow(Type(base, i == lead or (vec and self.draw(st.booleans()))), depth - 1, scope)
            for i in range(count)
        ]

    def grow(self, type: Type, depth: int, scope: tuple[Var, ...]) -> Expr:
        if depth <= 0:
            return self.leaf(type, scope)
        kinds = ["leaf", "binary", "binary", "call", "select", "load", "cast", "unary", "let"]
        kinds += ["lanes"] * 2 if self.lanes and type.base == "f32" else []
        kinds += ["control"] * 2 if self.control else []
        match self.pick(kinds):
            case "binary":
                return self.binary(type, depth, scope)
            case "call" if type.base != "bool":
                calls = _FLOAT_CALLS if type.base == "f32" else _INT_CALLS
                count = self.pick(calls)
                return call(self.pick(calls[count]), *self.operands(type.base, type.vec, count, depth, scope))
            case "select":
                vec = type.vec and self.draw(st.booleans())
                condition = self.grow(Type("bool", vec), depth - 1, scope)
                return select(condition, self.grow(type, depth - 1, scope), self.grow(type, depth - 1, scope))
            case "load":
                return self.load(type, depth, scope)
            case "cast":
                sources = [b for b in ("bool", "i32", "i64", "f32") if b != type.base]
                return cast(self.grow(Type(self.pick(sources), type.vec), depth - 1, scope), type.base)
            case "unary":
                operand = self.grow(type, depth - 1, scope)
                return negative(operand) if type.base != "bool" else inverted(operand)
            case "let":
                kind = Type(self.pick(["bool", "i32", "f32"]), self.lanes and self.draw(st.booleans()))
                value, name = self.grow(kind, depth - 1, scope), self.name()
                body = self.grow(type, depth - 1, (*scope, Var(name, kind), Var(name, kind)))
                return Let(name, value, body, type)
            case "lanes":
                return self.lane(type, depth, scope)
            case "control":
                return self.loop(type, depth, scope)
            case _:
                return self.leaf(type, scope)

    def binary(self, type: Type, depth: int, scope: tuple[Var, ...]) -> Expr:
        if type.base == "bool":
            if self.draw(st.booleans()):
                return binary(self.pick("&|^"), *self.operands("bool", type.vec, 2, depth, scope))
            op, base = self.pick(["==", "!=", "<", "<=", ">", ">="]), self.pick(["i32", "i64", "f32", "i32"])
            return binary(op, *self.operands(base, type.vec, 2, depth, scope))
        ops = ["+", "-", "*", "//", "%"] + (["/"] if type.base == "f32" else ["&", "|", "^", "<<", ">>"])
        return binary(self.pick(ops), *self.operands(type.base, type.vec, 2, depth, scope))

    def lane(self, type: Type, depth: int, scope: tuple[Var, ...]) -> Expr:
        operand = self.grow(VEC, depth - 1, scope)
        if not type.vec:
            if self.draw(st.booleans()):
                return LaneSum(operand, F32)
            return LaneAt(operand, "index", self.grow(I32, depth - 1, scope), F32)
        partner = self.pick(["half", "pair", "index"])
        d = Index("d", Type("i32", vec=True))
        index = binary("-", self.grow(I32, depth - 1, scope), d) if partner == "index" else None
        return LaneAt(operand, partner, index, VEC)

    def loop(self, type: Type, depth: int, scope: tuple[Var, ...]) -> Expr:
        if type == BOOL and self.draw(st.booleans()):
            function = self.pick(["near", "outer"])
            pos, kv = (self.grow(I32, 1, scope) if self.draw(st.booleans()) else None for _ in range(2))
            return Apply(function, (self.grow(I32, depth - 1, scope),), pos, kv, BOOL)
        if type == F32 and self.draw(st.booleans()):
            args = (self.grow(F32, depth - 1, scope), self.grow(I32, depth - 1, scope))
            return Apply("blend", args, None, None, F32)
        variable, count = self.name(), i32(self.draw(st.integers(0, 4)))
        inner = (*scope, Var(variable, I32), Var(variable, I32))
        if self.draw(st.booleans()):
            op = self.pick(["any", "all"] if type.base == "bool" else ["sum", "max", "min"])
            return Reduce(op, variable, count, self.grow(type, depth - 1, inner), type)
        names = [self.name() for _ in range(self.draw(st.integers(1, 2)))]
        carried_types = [type, I32][: len(names)]
        inner = (*inner, *(Var(n, t) for n, t in zip(names, carried_types, strict=True)))
        carried = tuple(
            Carry(n, self.grow(t, depth - 1, scope), self.grow(t, depth - 1, inner))
            for n, t in zip(names, carried_types, strict=True)
        )
        return Loop(variable, count, carried, names[0], type)


@st.composite
def expressions(draw: Any, type: Type, stage: str = "logits", depth: int = 4, control: bool = False) -> Expr:
    """A random expression of the given type that reads what a stage may read."""
    return _Grower(draw, stage, control).grow(type, draw(st.integers(0, depth)), ())


@st.composite
def variants(draw: Any, depth: int = 3, control: bool = False) -> Variant:
    """A variant with random stages over SCALARS and TENSORS."""
    stages = {}
    for position, (stage, type) in enumerate(STAGE_TYPE.items()):
        if draw(st.booleans()):
            grower = _Grower(draw, stage, control)
            grower.count = itertools.count(position * 1000)
            stages[stage] = grower.grow(type, draw(st.integers(1, depth)), ())
    return Variant("random", None, SCALARS, TENSORS, FUNCTIONS if control else (), **stages)


# Masks ------------------------------------------------------------------------------------------

_N, _M = Scalar("n", I32), Scalar("m", I32)


@st.composite
def _linear(draw: Any, depth: int = 2) -> Expr:
    """An integer of pos, kv, q, constants and scalars, mostly affine."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaf = st.sampled_from([_POS, _KV, Index("q", I32), Index("kv_len", I32), Index("q_len", I32), _N, _M])
        return draw(st.one_of(leaf, st.sampled_from([_POS, _KV]), st.integers(-5, 12).map(i32)))
    a = draw(_linear(depth=depth - 1))
    kind = draw(st.sampled_from(["+", "-", "+", "-", "*", "//", "%", "abs", "min", "max", "clamp", "select", "-x"]))
    if kind in ("+", "-"):
        return binary(kind, a, draw(_linear(depth=depth - 1)))
    small = draw(st.one_of(st.integers(-3, 5).map(i32), st.sampled_from([_M, _N])))
    if kind in ("*", "//", "%"):
        return binary(kind, a, small)
    if kind == "abs":
        return call("abs", a)
    if kind == "-x":
        return negative(a)
    if kind == "clamp":
        return call("clamp", a, small, draw(_linear(depth=0)))
    if kind == "select":
        return select(binary("<", draw(_linear(depth=0)), small), a, draw(_linear(depth=0)))
    return call(kind, a, draw(_linear(depth=depth - 1)))


@st.composite
def _atom(draw: Any) -> Expr:
    doc = [Load("doc", (Index("b", I32), at), I32) for at in (_POS, _KV)]
    special = [
        binary("<=", _KV, _POS),
        binary("<", binary("-", _POS, _KV), _N),
        binary("<=", call("abs", binary("-", _POS, _KV)), _N),
        binary("<=", binary("//", _KV, _M), binary("//", _POS, _M)),
        binary("==", binary("//", binary("+", _KV, i32(1)), i32(4)), binary("//", _POS, i32(4))),
        binary("==", *doc),
        Load("hot", (_KV,), BOOL),
        Scalar("flag", BOOL),
        Const(draw(st.booleans()), BOOL),
        binary("==", binary("%", binary("-", _POS, _KV), i32(2)), i32(0)),
    ]
    op = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
    random = binary(op, draw(_linear()), draw(_linear()))
    return draw(st.one_of(st.sampled_from(special), st.just(random)))


@st.composite
def masks(draw: Any, depth: int = 3) -> Expr:
    """A bool over pos and kv: combinations of comparisons, some of which bounds can't read."""
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(_atom())
    kind = draw(st.sampled_from(["&", "&", "|", "|", "~", "select", "==", "^"]))
    a = draw(masks(depth=depth - 1))
    if kind == "~":
        return inverted(a)
    b = draw(masks(depth=depth - 1))
    if kind == "select":
        return select(draw(_atom()), a, b)
    return binary(kind, a, b)


# Worlds -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """One value for everything that an expression can read; vecs have LANES lanes."""

    indices: dict[str, int]
    scalars: dict[str, bool | int | float]
    tensors: dict[str, Any]
    inputs: dict[str, float | tuple[float, ...]] = field(default_factory=dict)

    def environment(self, functions: tuple[Function, ...] = ()) -> Environment[Any]:
        """For `evaluate` with NUMBERS or NUMBERS_F32."""
        indices: dict[str, Any] = {**self.indices, "d": tuple(range(LANES))}
        named = {function.name: function for function in functions}
        return Environment(indices, self.scalars, self.tensors, self.inputs, named, LANES)


_SINGLES = st.one_of(FLOATS.map(round_f32), st.floats(-8.0, 8.0, width=32), st.just(float("nan")))
_RARE_FLOATS = (0.0, -0.0, round_f32(1e30), float("inf"), float("nan"), round_f32(0.1))
_TENSOR_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "slope": lambda r: r.choice(_RARE_FLOATS) if r.random() < 0.2 else r.randint(-64, 64) / 8,
    "bias": lambda r: r.randint(-16, 15) / 8,
    "doc": lambda r: r.randint(0, 3),
    "off": lambda r: 2**31 - 1 if r.random() < 0.1 else r.randint(-3, 30),
    "far": lambda r: r.randint(-(2**40), 2**40),
    "hot": lambda r: r.random() < 0.5,
    "level": lambda r: r.randint(-64, 64) / 8,
}


def _nested(shape: tuple[int, ...], item: Callable[[], Any]) -> Any:
    return [_nested(shape[1:], item) for _ in range(shape[0])] if shape else item()


@st.composite
def worlds(draw: Any) -> World:
    """Consistent indices, scalars in their ranges, tensors and stage inputs."""
    q_len, kv_len = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    q, kv, h = draw(st.integers(0, q_len - 1)), draw(st.integers(0, kv_len - 1)), draw(st.integers(0, 3))
    indices = {
        "b": draw(st.integers(0, 1)), "h": h, "hk": h // 2, "q": q, "kv": kv, "pos": q + kv_len - q_len,
        "row": draw(st.integers(0, 40)), "slot": draw(st.integers(0, 99)), "q_len": q_len, "kv_len": kv_len,
        "group": 2, "Hq": 4, "Hk": 2, "D": LANES, "Dv": LANES,
    }  # fmt: skip
    scalars = draw(scalar_values())
    source = random.Random(draw(st.integers(0, 2**32)))
    tensors = {n: _nested(shape, lambda n=n: _TENSOR_VALUES[n](source)) for n, shape in _TENSOR_SHAPES.items()}
    vec = st.lists(_SINGLES, min_size=LANES, max_size=LANES).map(tuple)
    inputs = {"x": draw(vec), "v": draw(vec), "o": draw(vec), "s": draw(_SINGLES)}
    return World(indices, scalars, tensors, inputs)


def scalar_values() -> st.SearchStrategy[dict[str, Any]]:
    """A value for each of SCALARS."""
    return st.fixed_dictionaries(
        {
            "n": st.one_of(st.integers(-6, 30), st.just(2**31 - 1)),
            "m": st.integers(1, 8),
            "wide": st.integers(-(2**40), 2**40),
            "t": _SINGLES,
            "u": st.floats(0.5, 3.75, width=32),
            "flag": st.booleans(),
        }
    )
