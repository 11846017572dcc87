"""What can be wrong with a variant, as data: spans, diagnostics, and the exceptions that carry them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open stretch of source text; lines and columns count from 1."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, end: Span) -> Span:
        """The stretch from the start of this span to the end of another."""
        return Span(self.file, self.line, self.column, end.end_line, end.end_column)


NOWHERE: Final = Span("<attngen>", 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: a stable kebab-case id, a one-line headline, where it is, and the cure."""

    id: str
    message: str
    span: Span
    help: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the catalogue: what the id means, an example that triggers it, and how to mend it."""

    meaning: str
    example: str
    cure: str


class AttnError(ValueError):
    """A variant is wrong.  Carries every mistake found, in source order; `str()` renders them with carets."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...], sources: dict[str, str] | None = None) -> None:
        super().__init__(diagnostics)
        self.diagnostics = diagnostics
        self.sources = sources or {}

    def __str__(self) -> str:
        return "\n\n".join(render(diagnostic, self.sources) for diagnostic in self.diagnostics)


class EnvironmentFault(RuntimeError):
    """The machine lacks something (a compiler, space, a writable folder); the message says what and the cure."""


@dataclass(slots=True)
class Report:
    """Collects diagnostics so that several mistakes are shown in one go."""

    sources: dict[str, str] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, id: str, message: str, span: Span, help: str | None = None) -> None:
        """Record one mistake; `id` must be a row of the catalogue."""
        if id not in CATALOGUE:
            raise KeyError(f"diagnostic `{id}` has no row in errors.CATALOGUE")
        diagnostic = Diagnostic(id, message, span, help)
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    def raise_if_any(self) -> None:
        """Raise `AttnError` with everything recorded so far, in source order."""
        if self.diagnostics:
            ordered = sorted(self.diagnostics, key=lambda d: (d.span.file, d.span.line, d.span.column))
            raise AttnError(tuple(ordered), self.sources)


def render(diagnostic: Diagnostic, sources: dict[str, str]) -> str:
    """The diagnostic as a terminal shows it: headline, source line, caret line, help."""
    span = diagnostic.span
    parts = [f"error[{diagnostic.id}]: {diagnostic.message}", f"  --> {span.file}:{span.line}:{span.column}"]
    lines = sources.get(span.file, "").split("\n")
    if 1 <= span.line <= len(lines):
        text = "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in lines[span.line - 1])
        end = span.end_column if span.end_line == span.line else len(text) + 1
        gutter = len(str(span.line))
        parts.append(f" {span.line} | {text}")
        parts.append(f" {' ' * gutter} | {' ' * (span.column - 1)}{'^' * max(1, end - span.column)}")
    if diagnostic.help:
        parts.append(f"  help: {diagnostic.help}")
    return "\n".join(parts)


CATALOGUE: Final[dict[str, Rule]] = {
    # syntax: raised by dsl ------------------------------------------------------------------
    "not-utf8": Rule("A file is not UTF-8 text.", "(bytes that are not UTF-8)", "Save the file as UTF-8."),
    "empty-file": Rule(
        "The file declares nothing.", "# only a comment", "Write an `attention NAME:` with its stages indented below."
    ),
    "tab-indentation": Rule(
        "A line is indented with a tab.", "attention a:\n\tmask: causal", "Indent with spaces, four a level."
    ),
    "bad-dedent": Rule(
        "A line goes back to an indentation that no outer block has.",
        "attention a:\n        mask: causal\n    softmax: on",
        "Align the line with the block that it belongs to.",
    ),
    "unexpected-indent": Rule(
        "A line is indented although no block starts before it.",
        "attention a:\n    mask: causal\n        softmax: on",
        "Align the line with the one above; only a line that ends in `:` opens a block.",
    ),
    "unterminated-string": Rule(
        "A string has no closing quote on its line.", 'from "masks.attn import causal', 'Close the string with `"`.'
    ),
    "unterminated-docstring": Rule(
        "A docstring is never closed.", '"""One idea.\nmask f: kv < pos', 'Close it with `"""`.'
    ),
    "single-quotes": Rule(
        "A string is written in single quotes.", "from 'masks.attn' import wide", 'Use double quotes: `"masks.attn"`.'
    ),
    "unbalanced-bracket": Rule(
        "A bracket has no partner, or the wrong one.",
        "mask f: (kv <= pos",
        "Close every `(` with `)` and every `[` with `]`.",
    ),
    "unknown-character": Rule(
        "A character means nothing in the language.",
        "mask f: kv ? pos",
        "Remove it; names are ASCII letters, digits and `_`.",
    ),
    "malformed-number": Rule(
        "A number runs into letters or starts with a needless 0.",
        "mask f: pos - kv < 16x",
        "Write `16`, `0.5`, `1e-6` or `0xff`, and put an operator before a name.",
    ),
    "number-too-large": Rule(
        "An integer literal exceeds 64 bits, or a float literal exceeds the range of f32.",
        "mask f: kv < 99999999999999999999",
        "Use a smaller number, or `inf` for infinity.",
    ),
    "nesting-too-deep": Rule(
        "Brackets, blocks or operators are nested more than 100 deep.",
        "(an expression with 101 opening brackets)",
        "Name parts of the expression, or write a `for` or a bounded `sum`.",
    ),
    "boolean-word": Rule(
        "`and`, `or`, `not`, `&&`, `||` or `!` is used.",
        "mask f: kv <= pos and pos - kv < 8",
        "Use `&`, `|` and `~`, with brackets round the comparisons.",
    ),
    "unexpected-token": Rule(
        "The text doesn't continue in any way that the language knows.",
        "mask f: kv < < pos",
        "The help line lists what may stand there.",
    ),
    "unexpected-end": Rule(
        "A line or the file ends in the middle of something.", "mask f: kv <", "Finish the line, or remove it."
    ),
    "missing-colon": Rule(
        "A line that opens a body has no `:`.", "attention a\n    mask: causal", "Put a `:` before the body."
    ),
    "empty-body": Rule(
        "A `:` isn't followed by a body.", "attention a:\nmask f: kv < pos", "Indent the body under the line."
    ),
    "missing-result": Rule(
        "A body ends without the expression that is its value.",
        "def f(r: i32) -> i32:\n    n = r + 1",
        "End the body with an expression on a line of its own.",
    ),
    "unused-expression": Rule(
        "An expression that isn't the last line of its body is computed for nothing.",
        "def f(r: i32) -> i32:\n    r + 1\n    r",
        "Name it with `name = ...`, or remove it.",
    ),
    "unknown-declaration": Rule(
        "A line at the top level starts with a word that declares nothing.",
        "atention a:\n    mask: causal",
        "Start it with `attention`, `mask`, `def`, `const` or `from`.",
    ),
    "unknown-stage": Rule(
        "A line of an `attention` starts with a word that is no stage and declares nothing.",
        "attention a:\n    logit(s): s",
        "The stages are query, key, value, logits, mask, sink, scale, output and softmax.",
    ),
    "misplaced-declaration": Rule(
        "A declaration stands where its kind isn't allowed.",
        "scalar n: i32\nmask f: kv < pos",
        "Put stages, `scalar` and `tensor` inside an `attention`; named masks and imports outside.",
    ),
    "duplicate-stage": Rule(
        "An `attention` gives one stage twice.",
        "attention a:\n    mask: causal\n    mask: kv < 8",
        "Keep one; masks join with `&` and `|`.",
    ),
    "stage-parameter": Rule(
        "A stage lacks its parameter, or has one that it doesn't take.",
        "attention a:\n    logits: s * 2.0",
        "Write query(x), key(x), value(v), logits(s), output(o); the others take none.",
    ),
    "softmax-value": Rule(
        "`softmax` is something other than on or off.",
        "attention a:\n    softmax: maybe",
        "Write `softmax: on` or `softmax: off`.",
    ),
    "reserved-word": Rule("A word of the language is used as a name.", "def if(r: i32): r", "Choose another name."),
    "equals-sign": Rule("`=` stands inside an expression.", "mask f: (kv = pos)", "Compare with `==`."),
    "augmented-assignment": Rule(
        "`+=` and its like are used.", "def f(r: i32):\n    r += 1\n    r", "Write `r = r + 1`."
    ),
    "assignment-target": Rule(
        "Something other than a name is assigned to.",
        "def f(r: i32):\n    r + 1 = r\n    r",
        "Assign to a name, or to several: `a, b = f(x)`. Tensors can't be written.",
    ),
    "no-return": Rule(
        "`return` is used.", "def f(r: i32):\n    return r", "Drop the word: the last expression is the value."
    ),
    "no-while": Rule(
        "`while` is used.",
        "def f(r: i32):\n    while r < 3:\n        r = r + 1\n    r",
        "Use `for j in range(N)` with a constant N: every variant terminates.",
    ),
    "no-lambda": Rule("`lambda` is used.", "def f(r: i32): lambda x: x", "Write a `def` with a name."),
    "no-if-statement": Rule(
        "`if` is used as a statement.",
        "def f(r: i32):\n    if r < 3:\n        r = 1\n    r",
        "Use the expression `a if condition else b`.",
    ),
    "no-slice": Rule("A subscript has a `:`.", "mask f: kv[1:2] < pos", "Index with single numbers."),
    "no-attribute": Rule("A `.` stands between names.", "mask f: kv.abs() < pos", "Call functions by name: `abs(kv)`."),
    "foreign-word": Rule(
        "A Python word that this language doesn't have is used.",
        "def f(r: i32):\n    pass",
        "Remove it; a body is assignments, `for` loops and a last expression.",
    ),
    "missing-else": Rule("A conditional has no `else`.", "def f(r: i32): r if r > 0", "Write `a if condition else b`."),
    "range-expected": Rule(
        "A loop doesn't run over `range(N)` with one count.",
        "mask f: any(kv == j for j in 8)",
        "Write `for j in range(N)`; it counts from 0.",
    ),
    "missing-type": Rule(
        "A parameter or declaration has no type.", "def f(r): r", "Write `name: type`, as in `n: i32`."
    ),
    "missing-value": Rule("A `const` has no value.", "const cap: f32", "Write `const cap: f32 = 50.0`."),
    "tensor-default": Rule(
        "A `tensor` is given a value.", "attention a:\n    tensor t: f32[4] = 0.0", "Pass the tensor to `run`."
    ),
    "not-callable": Rule(
        "Something that has no name is called.", "mask f: (kv + 1)(pos)", "Call a def, a mask or a built-in by name."
    ),
    "keyword-order": Rule(
        "A positional argument follows a keyword argument.", "mask f: clamp(lo=1, pos)", "Put positional ones first."
    ),
    "duplicate-keyword": Rule(
        "A call names one argument twice.", "mask f: clamp(kv, lo=1, lo=2) < pos", "Keep one of them."
    ),
    "import-path": Rule(
        "The file of an import isn't given as a string.",
        "from masks import wide",
        'Write `from "masks.attn" import wide`.',
    ),
    "import-not-found": Rule(
        "An imported file can't be read.",
        'from "no_such_file.attn" import wide',
        "Give the path relative to the importing file.",
    ),
    "import-cycle": Rule(
        "Files import each other in a circle.",
        "(a.attn imports b.attn, which imports a.attn)",
        "Move what both need to a third file.",
    ),
    "import-name-missing": Rule(
        "An imported file doesn't declare the name.",
        '(from "masks.attn" import wide, where masks.attn has no `wide`)',
        "Import a const, def or mask that the file declares itself.",
    ),
    # semantics: raised by ir ----------------------------------------------------------------
    "no-attention": Rule(
        "A file that should give a variant declares no `attention`.",
        "mask wide: pos - kv < 8",
        "Write `attention NAME:` with its stages indented below.",
    ),
    "which-attention": Rule(
        "A file declares several attentions and none was chosen, or not the one that was asked for.",
        "attention a:\n    mask: causal\nattention b:\n    softmax: off",
        'Choose one by name: `attngen.load(path, name="a")`.',
    ),
    "duplicate-attention": Rule(
        "Two attentions of a file have one name.",
        "attention a:\n    mask: causal\nattention a:\n    softmax: off",
        "Rename one of them.",
    ),
    "duplicate-name": Rule(
        "A scope declares one name twice.",
        "attention a:\n    scalar n: i32\n    const n: i32 = 4\n    mask: pos - kv < n",
        "Rename one of the two.",
    ),
    "reserved-name": Rule(
        "A declaration takes the name of an index, a size or a type.",
        "attention a:\n    scalar pos: i32\n    mask: kv < pos",
        "Choose another name; only parameters may shadow an index.",
    ),
    "unknown-name": Rule(
        "Nothing in scope has this name.",
        "attention a:\n    logits(s): tahn(s)",
        "Declare it, pass it as a parameter, or take the nearest name that the message offers.",
    ),
    "not-visible": Rule(
        "A stage names something that isn't defined where it runs.",
        "attention a:\n    key(x): x * pos",
        "Use what the stage sees; keys and values are shared by requests and know nothing of the query.",
    ),
    "vector-in-scalar-stage": Rule(
        "A stage or function without lanes works on the head dimension.",
        "attention a:\n    logits(s): s + d",
        "Do it in `query`, `key`, `value` or `output`.",
    ),
    "wrong-type": Rule(
        "An operand or argument has a type that the operation doesn't take.",
        "attention a:\n    mask: pos & kv < 4 & (kv == 1)",
        "Convert with i32(...), i64(...), f32(...) or bool(...); compare numbers to get a bool.",
    ),
    "ambiguous-comparison": Rule(
        "`&`, `|` or `^` stands unbracketed between two comparisons, and would bind closer than they do.",
        "attention a:\n    scalar n: i32\n    mask: kv <= pos & pos - kv < n",
        "Put brackets round each comparison: `(a < b) & (c < d)`.",
    ),
    "wrong-result": Rule(
        "A stage, def or const gives another type than it must.",
        "attention a:\n    logits(s): s > 0.0",
        "Convert the result, or change the declared type.",
    ),
    "non-bool-mask": Rule(
        "A mask gives a number.",
        "attention a:\n    mask: pos - kv",
        "Compare: a mask is true where a key is allowed.",
    ),
    "not-a-value": Rule(
        "A function, a tensor or a tuple stands where one value is needed.",
        "def pair(r: i32): (r, r)\nattention a:\n    logits(s): s + pair(pos)",
        "Call the function, index the tensor, or assign the tuple to names.",
    ),
    "not-a-function": Rule(
        "Something that is no function is called, or something that is no tensor, vec or mask is indexed.",
        "attention a:\n    scalar n: i32\n    mask: pos - kv < n(4)",
        "Call a def, a mask or a built-in; index a tensor or a vec.",
    ),
    "wrong-arguments": Rule(
        "A call has too many or too few arguments, or one that doesn't exist.",
        "attention a:\n    logits(s): clamp(s, 1.0)",
        "Give the arguments that the message lists.",
    ),
    "wrong-tuple": Rule(
        "A tuple has another length than the names or types it is matched with.",
        "def pair(r: i32): (r, r)\nattention a:\n    logits(s):\n        x, y, z = pair(pos)\n        s + x",
        "Write one name for each value.",
    ),
    "cannot-assign": Rule(
        "A body assigns to an index or to a declared const, scalar or tensor.",
        "attention a:\n    logits(s):\n        pos = pos + 1\n        s * pos",
        "Use a new name; masks that are called afterwards would still see the old value.",
    ),
    "unassigned-name": Rule(
        "A name is assigned only inside a loop and read after it.",
        "attention a:\n    logits(s):\n        for j in range(4):\n            t = s * j\n        t",
        "Give it a value before the loop.",
    ),
    "not-constant": Rule(
        "A run-time value stands where a constant is needed.",
        "attention a:\n    scalar n: i32\n    const m: i32 = n\n    mask: pos - kv < m",
        "Declare the value as a `const`.",
    ),
    "unbounded-loop": Rule(
        "The count of a loop or reduction is known only at run time.",
        "attention a:\n    scalar n: i32\n    mask: any(kv == j for j in range(n))",
        "Loop to a `const` bound and test `j < n` inside.",
    ),
    "loop-too-long": Rule(
        "A loop or reduction takes more steps than are unrolled.",
        "attention a:\n    mask: any(kv == 7 * j for j in range(100000))",
        "Put the values into a tensor, or find a formula.",
    ),
    "empty-reduction": Rule(
        "`max` or `min` goes over no value at all.",
        "attention a:\n    logits(s): max(s * j for j in range(0))",
        "Give the range at least one step.",
    ),
    "recursion": Rule(
        "A def, mask or const needs itself.",
        "def f(r: i32) -> i32: f(r - 1)\nattention a:\n    logits(s): s * f(pos)",
        "Write a bounded `for`: every variant terminates.",
    ),
    "wrong-rank": Rule(
        "A tensor has another number of dimensions than it is given indices.",
        "attention a:\n    tensor t: f32[Hq, 32]\n    logits(s): s + t[h]",
        "Give one index for each dimension.",
    ),
    "shape-mismatch": Rule(
        "A tensor argument has other dimensions or another element type than its parameter.",
        "mask m(t: i32[B, KV]): t[b, kv] > 0\nattention a:\n    tensor t: i32[B, Q]\n    mask: m(t)",
        "Declare the tensor and the parameter alike.",
    ),
    "wrong-dimension": Rule(
        "A dimension is no positive integer, constant or dimension name.",
        "attention a:\n    tensor t: f32[0]\n    logits(s): s + t[h]",
        "Write an integer, a `const`, a standard name (B Rows Slots Q KV Hq Hk D Dv) or a new name.",
    ),
    "index-out-of-range": Rule(
        "An index is outside the dimension for certain.",
        "attention a:\n    tensor t: f32[4]\n    logits(s): s + t[4]",
        "Indices count from 0 and don't wrap at the end.",
    ),
    "lane-index": Rule(
        "A lane of a vec is chosen by something other than a constant or a permutation of `d`.",
        "attention a:\n    query(x): x[pos]",
        "Index with constants, `D`, `Dv` and `d` alone.",
    ),
    "division-by-zero": Rule(
        "A divisor is the constant 0.",
        "attention a:\n    mask: kv % 0 == 1",
        "Divide by something else; `//` and `%` by a run-time 0 give 0.",
    ),
    "unknown-type": Rule(
        "A type doesn't exist, or not in this place.",
        "attention a:\n    tensor t: float[Hq]\n    logits(s): s + t[h]",
        "Values are bool, i32, i64, f32 or vec; tensors store f32 f16 bf16 e4m3 e5m2 i64 i32 i16 i8 u8 bool.",
    ),
    "wrong-range": Rule(
        "A declared range is empty, doesn't hold the default, or bounds something that is no number.",
        "attention a:\n    scalar n: i32 in 8..4\n    mask: pos - kv < n",
        "Write `in lo..hi` with lo below hi; hi itself is outside.",
    ),
    "mask-not-remappable": Rule(
        "A mask is taken at other positions but reads an index that they don't determine.",
        "mask m[inner]: inner(pos - 1, kv - 1)\nmask odd: row % 2 == 1\nattention a:\n    mask: m[odd]",
        "Write the mask with `pos` and `kv` only.",
    ),
    "sink-without-softmax": Rule(
        "A `sink` is given although softmax is off.",
        "attention a:\n    sink: 0.0\n    softmax: off",
        "Remove the sink: without softmax there is no denominator for it to join.",
    ),
}
