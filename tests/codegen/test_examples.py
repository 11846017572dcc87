"""Every example's functor compiles everywhere, and eight of them read as they should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from attngen.codegen.source import KernelSource, Manifest
from attngen.codegen.target import TARGETS
from tests.codegen.cxx import FLAGS, INCLUDE, needs, run
from tests.codegen.examples import CONFIG, EXAMPLES, ROOT, functor_of, lowered
from tests.conftest import Golden

GOLDEN = ROOT / "tests" / "golden" / "functor"
READ = ("alibi", "gemma2", "gpt_oss", "neighbourhood_2d", "packed_documents", "qwen3", "sigmoid", "t5_fp8")

PROBE = """
template <class Fn, class F, class I, class V>
PROBE_FN void probe(const Word* args, Sizes sizes, const RowAt& at, ColumnAt<I> keys, F* s, float* x) {
  Fn fn(args, sizes);
  typename Fn::Tables tables;
  use_tables(fn, tables);
  const typename Fn::Row row = fn.row(at);
  const auto column = fn.template column<F, I>(keys);
  const auto one = fn.template column<float, std::int32_t>({at.pos, at.row, at.hk});
  F weight = fn.logits(*s, row, column) * fn.scale_log2;
  if constexpr (Fn::kHasMask) weight = select(fn.template mask<F>(row, column), weight, F{});
  if constexpr (Fn::kHasValueScale) weight *= fn.value_scale(column);
  if constexpr (Fn::kHasSink) x[0] += fn.sink(row);
  *s = weight;
  V lanes(x);
  if constexpr (Fn::kHasQuery) fn.query(lanes, row);
  if constexpr (Fn::kHasKey) fn.key(lanes, one);
  if constexpr (Fn::kHasValue) fn.value(lanes, one);
  if constexpr (Fn::kHasOutput) fn.output(lanes, row, x[1]);
}
"""


def include(folder: Path, sources: Iterable[KernelSource]) -> tuple[str, list[str]]:
    """Includes of the sources' functors, written into the folder, and the functors' names."""
    includes, names = "", []
    for source in sources:
        names.append(functor_of(source))
        (folder / f"{names[-1]}.hpp").write_text(source.files["functor.hpp"])
        includes += f'#include "{names[-1]}.hpp"\n'
    return f'#include "attngen/lanes.hpp"\n{includes}using namespace attngen;\n', names


def all_functors(folder: Path) -> tuple[str, list[str]]:
    """Includes of every example's functor."""
    return include(folder, (source for example in EXAMPLES for source in lowered(example)))


def compile_with_gcc(folder: Path, text: str, names: Iterable[str], target: str) -> None:
    """Instantiate every hook of the functors that the text includes, with all warnings."""
    width = TARGETS[target].width
    text += "#define PROBE_FN\n" + PROBE
    for name in names:
        vector = f"{name}, simd::f32<{width}>, simd::i32<{width}>, Lanes<{width}, 128>"
        text += f"static_assert(check_functor<{name}, Lanes<{width}, 128>>());\n"
        text += f"template void probe<{vector}>(const Word*, Sizes, const RowAt&, ColumnAt<simd::i32<{width}>>,\n"
        text += f"                              simd::f32<{width}>*, float*);\n"
    (folder / "all.cpp").write_text(text)
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-missing-field-initializers")
    command = [*FLAGS, *TARGETS[target].flags, *warnings, "-fsyntax-only", f"-I{INCLUDE}", str(folder / "all.cpp")]
    run([needs("g++"), *command])


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
def test_functors_compile_with_gcc(tmp_path: Path, target: str) -> None:
    compile_with_gcc(tmp_path, *all_functors(tmp_path), target)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_functors_compile_with_nvcc(tmp_path: Path, arch: str) -> None:
    text, names = all_functors(tmp_path)
    text += "#define PROBE_FN __device__ __forceinline__\n" + PROBE
    for name in names:
        text += f"static_assert(check_functor<{name}, Lanes<1, 128>>());\n"
        text += f"__global__ void run_{name}(const Word* args, Sizes sizes, RowAt at, float* x) {{\n"
        text += "  using I = std::int32_t;\n"
        text += f"  probe<{name}, float, I, Lanes<1, 128>>(args, sizes, at, {{at.q, at.row, at.hk}}, x, x + 1);\n"
        text += "}\n"
    (tmp_path / "all.cu").write_text(text)
    # Front end and code generation without optimisation of the stubs' local arrays.
    command = ["-std=c++20", f"-arch={arch}", "-cubin", "-Xcicc", "-O1", "-Xptxas", "-O1", f"-I{INCLUDE}"]
    run([needs("nvcc"), *command, str(tmp_path / "all.cu"), "-o", str(tmp_path / "all.cubin")])
    assert (tmp_path / "all.cubin").stat().st_size > 0


@pytest.mark.parametrize("example", READ)
def test_functor_text(example: str, golden: Golden) -> None:
    (source,) = lowered(example)
    golden(GOLDEN / f"{example}.hpp", source.files["functor.hpp"])


def test_kernel_text(golden: Golden) -> None:
    (source,) = lowered("gemma2")
    golden(GOLDEN / "gemma2_kernel.cpp", source.files["kernel.cpp"])


@pytest.mark.parametrize("example", EXAMPLES)
def test_generated_text_is_tidy(example: str) -> None:
    for source in lowered(example):
        for name, text in source.files.items():
            code = [line for line in text.splitlines() if not line.startswith("#line")]
            assert all(line == line.rstrip() and "\t" not in line for line in code), (example, name)
            assert max(map(len, code)) <= 120, (example, name, max(code, key=len))
            for forbidden in (" ? ", "&&", "||", "std::", "sqrtf"):
                body = [line for line in code if forbidden in line and "int32_t" not in line and "int64_t" not in line]
                assert not body or name == "kernel.cpp", (example, body)


def test_line_directives_lead_back(tmp_path: Path) -> None:
    (source,) = lowered("qwen3")
    lines = source.files["functor.hpp"].splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("#line") and line.endswith('"functor.hpp"'):
            assert line == f'#line {number + 1} "functor.hpp"'


def test_manifest_round_trips() -> None:
    for example in EXAMPLES:
        for source in lowered(example):
            assert Manifest.from_json(source.manifest.to_json()) == source.manifest
            assert source.manifest.tiles and source.manifest.isa and source.main in source.files


def test_generation_is_deterministic() -> None:
    """Another process with another hash seed writes the same bytes."""
    program = (
        "from tests.codegen.examples import *; import hashlib;"
        "texts = [s.files[f] for e in EXAMPLES for s in lowered(e) for f in sorted(s.files)];"
        "print(hashlib.sha256('\\0'.join(texts).encode()).hexdigest())"
    )
    digests = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        digests.add(ran.stdout)
    assert len(digests) == 1


def test_config_decides_the_text() -> None:
    (source,) = lowered("gemma2")
    (fast,) = lowered("gemma2", type(CONFIG)("cpu-avx2", 64, 64, "f32", "e4m3", "transformed", True))
    assert "-DATTNGEN_FAST_MATH=1" in fast.flags and "-DATTNGEN_FAST_MATH=1" not in source.flags
    kernel = fast.files["kernel.cpp"]
    assert "kHeadDim = 64" in kernel and "kWidth = 8" in kernel and "kKeysTransformed = true" in kernel
    assert "using Query = float;" in kernel and "using Pool = attngen::e4m3;" in kernel
