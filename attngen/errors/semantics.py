"""What a well-formed file can get wrong: raised by ir."""

from __future__ import annotations

from typing import Final

from attngen.errors.rule import Rule

SEMANTICS: Final[dict[str, Rule]] = {
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
