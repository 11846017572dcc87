"""A variant's functor: the C++ that every backend's template is instantiated with (include/attngen/functor.hpp)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from attngen.codegen.cxx_ops import UNIFORM_TYPES, VARYING_TYPES, literal
from attngen.codegen.expr import (
    LINE,
    Emitter,
    Identifiers,
    Leaf,
    Statement,
    Text,
    member_name,
    over_lanes,
)
from attngen.codegen.graph import Graph
from attngen.codegen.ranges import Range, declared_range
from attngen.codegen.render import HERE, render
from attngen.codegen.source import KernelConfig
from attngen.codegen.tables import tabulate
from attngen.dtypes import STORAGE
from attngen.errors import NOWHERE, Span
from attngen.ir.nodes import Binding, Const, Expr, Variant
from attngen.ir.passes.bounds import hides_the_end

FILE: Final = "functor.hpp"

_ROW_INDICES: Final = ("b", "h", "hk", "q", "pos", "row", "q_len", "kv_len")
_SIZES: Final = {
    "D": "sizes.head_dim", "Dv": "sizes.head_dim_v", "Hq": "sizes.num_qo_heads", "Hk": "sizes.num_kv_heads",
    "group": "sizes.group",
}  # fmt: skip
_ELEMENT: Final = "template <class F, class I>"
_LANES: Final = "template <class Lanes>"

Leaves = dict[tuple[str, str], Leaf]


@dataclass(frozen=True, slots=True)
class Hook:
    """One member function: an optional template head, the signature, and the body's lines."""

    head: str
    signature: str
    body: tuple[str, ...]


def functor_name(variant: Variant) -> str:
    """What the functor's struct is called.

    >>> functor_name(Variant("soft_cap2", None, (), ()))
    'SoftCap2Functor'
    """
    return "".join(part[:1].upper() + part[1:] for part in variant.name.split("_")) + "Functor"


@dataclass(frozen=True, slots=True)
class Functor:
    """A functor's struct, its header's text, its argument words, and what its vector stages read besides their lanes.

    `tables` counts lane tables, `row_values` what is hoisted to rows; `lane_at` says that a stage reads lanes by index,
    `slot` that a hook reads a column's slot.
    """

    name: str
    text: str
    words: int
    tables: int
    row_values: int
    lane_at: bool
    slot: bool


def make_functor(variant: Variant, config: KernelConfig) -> Functor:
    """The functor of a variant that has been through the passes; the same bytes for the same input."""
    writer = _Writer(variant, config)
    text = render("functor.hpp.jinja", FILE, writer.values())
    name, row_values = functor_name(variant), len(writer.row_fields)
    return Functor(name, text, writer.words, len(writer.all_tables), row_values, writer.lane_at, writer.reads_slot)


class _Writer:
    def __init__(self, variant: Variant, config: KernelConfig) -> None:
        if variant.functions:
            raise ValueError(f"variant {variant.name}: functions must be inlined before code is generated")
        self.variant = variant = tabulate(variant)
        self.config = config
        self.members = self._parameters()
        self.ranges: dict[str, Range] = {}  # of the integer bindings seen so far
        self.launch = self._launch_leaves()
        self.launch_statements = self._assigning(self._bindings("launch"), self.launch, "")
        self.tables = {b.name: b.value for b in variant.bindings if b.scope == "lane"}
        self.derived_tables: set[str] = set()
        self.lane_at = False  # some vector stage reads lanes by index
        self.reads_slot = False  # some hook reads a column's slot
        self.column_varying: dict[str, bool] = {}

    # Members --------------------------------------------------------------------------------------

    @property
    def words(self) -> int:
        """Argument words of all parameters."""
        return 2 * len(self.variant.scalars) + sum(1 + 2 * len(t.dims) for t in self.variant.tensors)

    @property
    def all_tables(self) -> tuple[str, ...]:
        """The members of Tables, complete once the hooks are written."""
        return (*self.tables, *(_derived(table)[0] for table in sorted(self.derived_tables)))

    @property
    def row_fields(self) -> list[str]:
        """The members of Row besides its indices, of 4 bytes each."""
        return [f"{UNIFORM_TYPES[b.value.type.base]} {b.name}" for b in self._bindings("row")]

    def _parameters(self) -> list[tuple[str, str, str]]:
        """(type, member, initialiser) of every parameter, in the order of the argument words."""
        members, word = [], 0
        for scalar in self.variant.scalars:
            kind = UNIFORM_TYPES[scalar.type]
            members.append((kind, member_name(scalar.name), f"scalar<{kind}>(args + {word})"))
            word += 2
        for tensor in self.variant.tensors:
            kind = f"Tensor<{STORAGE[tensor.dtype].cxx.removeprefix('attngen::')}, {len(tensor.dims)}>"
            members.append((kind, member_name(tensor.name), f"args + {word}"))
            word += 1 + 2 * len(tensor.dims)
        return members

    def _launch_leaves(self) -> Leaves:
        leaves: Leaves = {("index", name): Leaf(text) for name, text in _SIZES.items()}
        for scalar in self.variant.scalars:
            leaves["scalar", scalar.name] = Leaf(member_name(scalar.name), range=declared_range(scalar.range))
        for tensor in self.variant.tensors:
            leaves["load", tensor.name] = Leaf(member_name(tensor.name), range=declared_range(tensor.range))
        for binding in self._bindings("launch"):
            leaves["var", binding.name] = Leaf(binding.name, range=self.ranges.get(binding.name))
        return leaves

    def _bindings(self, scope: str) -> list[Binding]:
        return [binding for binding in self.variant.bindings if binding.scope == scope]

    def _row_leaves(self) -> Leaves:
        leaves: Leaves = {("index", name): Leaf(f"row.{name}") for name in _ROW_INDICES}
        leaves |= {("var", b.name): Leaf(f"row.{b.name}", range=self.ranges.get(b.name)) for b in self._bindings("row")}
        return self.launch | leaves

    def _column_leaves(self, *, varying: bool) -> Leaves:
        leaves: Leaves = {("index", name): Leaf(f"column.{name}", varying) for name in ("kv", "slot")}
        leaves["index", "hk"] = Leaf("column.hk")
        for binding in self._bindings("column"):
            varies = varying and self.column_varying.get(binding.name, True)
            known = self.ranges.get(binding.name)
            leaves["var", binding.name] = Leaf(f"column.{binding.name}", varies, range=known)
        return self.launch | leaves

    def _lane_leaves(self, variable: str) -> Leaves:
        leaves: Leaves = {("var", variable): Leaf("lane.self()", varying=True, in_lane=True)}
        leaves["index", "d"] = Leaf("lane.d()", varying=True, in_lane=True)
        for name in self.tables:
            leaves["var", name] = Leaf(f"lane.table(tables->{name})", varying=True, in_lane=True)
        return leaves

    # Emission -------------------------------------------------------------------------------------

    def _emitter(self, graph: Graph, leaves: Mapping[tuple[str, str], Leaf]) -> Emitter:
        taken = [name for _, name, _ in self.members] + [binding.name for binding in self.variant.bindings]
        taken += [leaf.text for leaf in leaves.values()]
        return Emitter(graph, leaves, Identifiers(taken))

    def _value(self, expr: Expr, leaves: Leaves) -> tuple[list[Statement], Text, Emitter, int]:
        graph = Graph()
        root = graph.add(expr)
        emitter = self._emitter(graph, leaves)
        statements = emitter.block([root])
        return statements, emitter.texts[root], emitter, root

    def _returning(self, expr: Expr, leaves: Leaves, kind: str) -> tuple[str, ...]:
        """The body of a hook that returns `expr`, of the number type ("F"), as a mask ("mask"), or as it is."""
        statements, text, emitter, root = self._value(expr, leaves)
        if not emitter.varying[root] and kind == "mask":
            text = emitter.as_mask(text)
        elif not emitter.varying[root] and kind == "F":
            text = Text(f"simd::broadcast<F>({text})")
        return _lines([*statements, Statement(f"return {text};", expr.span)])

    def _assigning(self, bindings: Sequence[Binding], leaves: Leaves, place: str) -> list[Statement]:
        found: list[Statement] = []
        for binding in bindings:
            statements, text, emitter, root = self._value(binding.value, leaves)
            varying = emitter.varying[root]
            if place == "column.":
                self.column_varying[binding.name] = varying
            if root in emitter.ranges:
                self.ranges[binding.name] = emitter.ranges[root]
            known = self.ranges.get(binding.name)
            leaves["var", binding.name] = Leaf(f"{place}{binding.name}", varying, range=known)
            assign = Statement(f"{place}{binding.name} = {text};", binding.value.span)
            found += _braced([*statements, assign]) if statements else [assign]
        return found

    def _vector_body(self, expr: Expr, variable: str, lanes: int, leaves: Leaves) -> tuple[str, ...]:
        graph = Graph(lanes=lanes, input=variable, tables=self.tables)
        root = graph.add(expr)
        emitter = self._emitter(graph, leaves | self._lane_leaves(variable))
        statements = emitter.block([root])
        self.derived_tables |= {str(node.payload) for node in graph.nodes if node.kind == "table"}
        self.lane_at |= any(node.kind == "lane_at" and node.payload == "index" for node in graph.nodes)
        if emitter.in_lane[root]:
            body, value = emitter.lane_block(root)
        else:
            body, value = [], emitter.texts[root]
        return _lines([*statements, *over_lanes("lanes.each", body, value, expr.span)])

    # Hooks ----------------------------------------------------------------------------------------

    def _scope_hooks(self) -> list[Hook]:
        row = self._assigning(self._bindings("row"), self._row_leaves(), "row.")
        column = self._assigning(self._bindings("column"), self._column_leaves(varying=True), "column.")
        whole = "Column<F, I> column(const ColumnAt<I>& at) const"
        return [
            Hook("", "Row row(const RowAt& at) const", _scoped("Row row{at};", row, "row")),
            Hook(_ELEMENT, whole, _scoped("Column<F, I> column{at};", column, "column")),
        ]

    def _element_hooks(self) -> list[Hook]:
        variant = self.variant
        leaves = self._row_leaves() | self._column_leaves(varying=True) | {("index", "hk"): Leaf("row.hk")}
        leaves["var", "s"] = Leaf("s", varying=True)
        body = ("    return s;",) if variant.logits is None else self._returning(variant.logits, leaves, "F")
        hooks = [_hook(_ELEMENT, "F logits(F s, const Row& row, const Column<F, I>& column) const", body)]
        if variant.mask is not None:
            body = self._returning(variant.mask, leaves, "mask")
            hooks.append(_hook(_ELEMENT, "simd::Mask<F> mask(const Row& row, const Column<F, I>& column) const", body))
        if variant.value_scale is not None:
            body = self._returning(variant.value_scale, self._column_leaves(varying=True), "F")
            hooks.append(_hook(_ELEMENT, "F value_scale(const Column<F, I>& column) const", body))
        if variant.sink is not None:
            body = self._returning(variant.sink, self._row_leaves(), "as it is")
            hooks.append(_hook("", "float sink(const Row& row) const", body))
        return hooks

    def _vector_hooks(self) -> list[Hook]:
        variant, config = self.variant, self.config
        row, column = self._row_leaves(), self._column_leaves(varying=False)
        output = row | {("index", "lse"): Leaf("lse")}
        scalar_column = "const Column<float, std::int32_t>& column"
        stages = (
            ("query", variant.query, "x", config.head_dim, row, "const Row& row"),
            ("key", variant.key, "x", config.head_dim, column, scalar_column),
            ("value", variant.value, "v", config.head_dim_v, column, scalar_column),
            ("output", variant.output, "o", config.head_dim_v, output, "const Row& row, float lse"),
        )
        return [
            _hook(_LANES, f"void {name}(Lanes& lanes, {scope}) const", self._vector_body(expr, x, lanes, leaves))
            for name, expr, x, lanes, leaves, scope in stages
            if expr is not None
        ]

    # The launch -----------------------------------------------------------------------------------

    def _constructor_head(self, keep_sizes: bool, read_sizes: bool) -> str:
        initialisers = ["sizes(sizes)"] if keep_sizes else []
        initialisers += [f"{member}({value})" for _, member, value in self.members]
        args = "const Word* args" if self.members else "const Word*"
        head = f"{functor_name(self.variant)}({args}, Sizes{' sizes' if keep_sizes or read_sizes else ''})"
        if not initialisers:
            return head
        line = f"{head} : {', '.join(initialisers)}"
        return line if len(line) <= LINE + 8 else f"{head}\n      : " + ",\n        ".join(initialisers)

    def _constructor(self) -> tuple[str, ...]:
        statements = list(self.launch_statements)
        scale = self.variant.scale_log2
        if scale is not None and not isinstance(scale, Const):
            before, text, _, _ = self._value(scale, self.launch)
            statements += [*before, Statement(f"scale_log2 = {text};", scale.span)]
        return _lines(statements)

    def _table_hooks(self) -> list[Hook]:
        """What fills Tables, entry by entry, so that the threads of a CTA share the work."""
        signature = "(Tables& into, std::int32_t first, std::int32_t step) const"
        bodies = {"fill": self._fill(), "derive": self._derive()}
        return [
            Hook("", f"void {name}{signature if body else '(Tables&, std::int32_t, std::int32_t) const'}", _lines(body))
            for name, body in bodies.items()
        ]

    def _fill(self) -> list[Statement]:
        """The tables that hold bindings; each may read earlier ones at its own entry."""
        if not self.tables:
            return []
        statements = [Statement(_entries(self._longest), NOWHERE)]
        leaves = self.launch | {("index", "d"): Leaf("d")}
        leaves |= {("var", name): Leaf(f"into.{name}[d]") for name in self.tables}
        for name, value in self.tables.items():
            before, text, _, _ = self._value(value, leaves)
            inner = [*before, Statement(f"into.{name}[d] = {text};", value.span)]
            statements += _indented(_braced(inner) if before else inner)
        return [*statements, Statement("}", NOWHERE)]

    def _derive(self) -> list[Statement]:
        """The tables that other tables' partners are read from."""
        statements = []
        for table in sorted(self.derived_tables):
            copy, name, index, lanes = _derived(table)
            statements += [
                Statement(_entries(lanes), NOWHERE),
                Statement(f"  into.{copy}[d] = into.{name}[{index}];", NOWHERE),
                Statement("}", NOWHERE),
            ]
        return statements

    @property
    def _longest(self) -> int:
        return max(self.config.head_dim, self.config.head_dim_v)

    # The whole ------------------------------------------------------------------------------------

    def _flags(self) -> list[str]:
        variant = self.variant
        flags = {
            "kSoftmax": variant.softmax,
            "kHasQuery": variant.query is not None,
            "kHasKey": variant.key is not None,
            "kHasValue": variant.value is not None,
            "kHasValueScale": variant.value_scale is not None,
            "kHasMask": variant.mask is not None,
            "kHasSink": variant.sink is not None,
            "kHasOutput": variant.output is not None,
            "kHasTables": bool(self.tables),
            "kUsesLaneAt": self.lane_at,
            "kReadsSlot": self.reads_slot,
            "kMaskEnds": variant.mask is not None and hides_the_end(variant.mask),
        }
        bound = -1.0 if variant.logit_bound is None else variant.logit_bound
        lines = [f"bool {name} = {str(value).lower()}" for name, value in flags.items()]
        lines.append(f"float kLogitBound = {literal(bound, 'f32')[0]}")
        scale = variant.scale_log2
        if scale is None:
            if variant.softmax:
                raise ValueError(f"variant {variant.name}: scale_log2 is missing; the log2 pass derives it")
            lines.append("float scale_log2 = 1.0f")
        elif isinstance(scale, Const):
            lines.append(f"float scale_log2 = {literal(scale.value, 'f32')[0]}")
        return lines

    def _fields(self) -> list[str]:
        launch = [f"{UNIFORM_TYPES[b.value.type.base]} {b.name}" for b in self._bindings("launch")]
        scale = self.variant.scale_log2
        own_scale = ["float scale_log2"] if scale is not None and not isinstance(scale, Const) else []
        return [*own_scale, *launch, "const Tables* tables = nullptr"]

    def _table_fields(self) -> list[str]:
        padded = -(-self._longest // 16) * 16
        return [f"alignas(16) float {name}[{padded}]" for name in self.all_tables]

    def _column_field(self, binding: Binding) -> str:
        types = VARYING_TYPES if self.column_varying[binding.name] else UNIFORM_TYPES
        return f"{types[binding.value.type.base]} {binding.name}"

    def values(self) -> dict[str, object]:
        """What the template prints; the order matters, since hooks decide which fields and tables exist."""
        scopes = self._scope_hooks()
        hooks = [*scopes, *self._element_hooks(), *self._vector_hooks()]
        constructor = self._constructor()
        self.reads_slot = any("column.slot" in line for hook in hooks for line in hook.body)
        keep_sizes = any("sizes." in line for hook in hooks for line in hook.body)
        return {
            "title": _title(self.variant, self.config),
            "name": functor_name(self.variant),
            "flags": self._flags(),
            "parameters": [
                *(["Sizes sizes"] if keep_sizes else []),
                *(f"{kind} {member}" for kind, member, _ in self.members),
            ],
            "tables": self._table_fields(),
            "fields": self._fields(),
            "constructor": Hook("", self._constructor_head(keep_sizes, "sizes." in "".join(constructor)), constructor),
            "row_fields": self.row_fields,
            "column_fields": [self._column_field(b) for b in self._bindings("column")],
            "hooks": [*self._table_hooks(), *hooks],
        }


def _entries(count: int) -> str:
    return f"for (std::int32_t d = first; d < {count}; d += step) {{"


def _derived(table: str) -> tuple[str, str, str, int]:
    """A derived table of the graph as (member, the table it copies, the entry it copies from, lanes)."""
    name, partner, lanes = table.split(":")
    index = "d ^ 1" if partner == "pair" else f"(d + {int(lanes) // 2}) % {lanes}"
    return table.replace(":", "_"), name, index, int(lanes)


def _indented(statements: Sequence[Statement]) -> list[Statement]:
    return [Statement(f"  {statement.text}", statement.span) for statement in statements]


def _braced(statements: Sequence[Statement]) -> list[Statement]:
    """A block, so that the names of one binding don't meet those of the next."""
    return [Statement("{", NOWHERE), *_indented(statements), Statement("}", NOWHERE)]


def _hook(head: str, signature: str, body: tuple[str, ...]) -> Hook:
    """A hook whose unused parameters have no name."""
    text = "\n".join(line for line in body if not line.startswith("#line"))
    for name in ("row", "column", "lse", "s"):
        if not re.search(rf"(?<![.\w]){name}\b", text):
            signature = re.sub(rf"(&|float|F) {name}([,)])", r"\1\2", signature)
    return Hook(head, signature, body)


def _scoped(declaration: str, statements: Sequence[Statement], result: str) -> tuple[str, ...]:
    if not statements:
        return ("    return {at};",)
    return (f"    {declaration}", *_lines(statements), f"    return {result};")


def _title(variant: Variant, config: KernelConfig) -> str:
    dims = f"{config.head_dim}" + ("" if config.head_dim == config.head_dim_v else f"/{config.head_dim_v}")
    origin = "" if variant.span == NOWHERE else f" from {_printable(PurePath(variant.span.file).name)}"
    return f"attention {variant.name}{origin}, head dimension {dims}"


def _lines(statements: Sequence[Statement]) -> tuple[str, ...]:
    """Indented lines, each under a `#line` that names its source where it has one."""
    lines: list[str] = []
    file, line = "", 0  # where the compiler believes to be
    for statement in statements:
        span = statement.span
        if span.line > 0 and (span.file, span.line) != (file, line):
            lines.append(_line_directive(span))
            file, line = span.file, span.line
        lines.append(f"    {statement.text}")
        line += 1
    return (*lines, HERE) if any(text.startswith("#line") for text in lines) else tuple(lines)


def _line_directive(span: Span) -> str:
    escaped = _printable(span.file).replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {span.line} "{escaped}"'


def _printable(path: str) -> str:
    """A path that can stand on a line of UTF-8 text, whatever the file system allows."""
    return "".join(c if c.isprintable() else "?" for c in path)
