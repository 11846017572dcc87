"""What can be wrong with the text of a file: raised by dsl."""

from __future__ import annotations

from typing import Final

from attngen.errors.rule import Rule

SYNTAX: Final[dict[str, Rule]] = {
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
}
