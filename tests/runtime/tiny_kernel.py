"""A hand-written kernel that computes something simple from everything a launch gives it, and its variant."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.codegen.source import KernelConfig, KernelSource, Manifest, Parameter, Tile
from attngen.runtime import cache
from attngen.runtime.module import Kernel, load_kernel

# out = q · gain + bias[h] + n + first element of the row's V pool;  lse = off[table[0, 0]] · lse_scale
SOURCE = """
#include "attngen/work.hpp"

using namespace attngen;

extern "C" {
__attribute__((visibility("default"))) void attngen_cpu_worker(const Params* p, std::int32_t worker, void* scratch) {
  auto* row = static_cast<float*>(scratch);
  const auto* words = p->args;
  float gain;
  if (words[1]) gain = *reinterpret_cast<const float*>(words[1]);
  else __builtin_memcpy(&gain, words, 4);
  const auto n = static_cast<float>(words[3] ? *reinterpret_cast<const std::int32_t*>(words[3]) : words[2]);
  const auto* bias = reinterpret_cast<const float*>(words[4]);
  const auto* table = reinterpret_cast<const std::int32_t*>(words[7]);
  const auto* off = reinterpret_cast<const std::int32_t*>(words[12]);
  for (std::int32_t r = worker; r < p->plan->num_rows; r += p->plan->num_workers)
    for (std::int32_t h = 0; h < p->num_qo_heads; ++h) {
      const auto* q = static_cast<const float*>(p->q) + r * p->q_row + h * p->q_head;
      const auto* v = static_cast<const float*>(p->v) + h / p->group * p->v_strides.head;
      for (int d = 0; d < DIM; ++d) row[d] = q[d] * gain + bias[h * words[6]] + n + v[0];
      __builtin_memcpy(static_cast<float*>(p->out) + r * p->out_row + h * p->out_head, row, sizeof(float) * DIM);
      if (p->lse) p->lse[r * p->lse_row + h * p->lse_head] = static_cast<float>(off[table[0]]) * p->lse_scale;
    }
}
__attribute__((visibility("default"))) std::int64_t attngen_cpu_scratch_bytes() { return sizeof(float) * DIM; }

// x = 2 · x + kv + weight[d]
__attribute__((visibility("default"))) void attngen_cpu_transform_keys(const KeyTransform* t) {
  const auto* weight = reinterpret_cast<const float*>(t->args[15]);
  for (std::int32_t i = 0; i < t->count; ++i)
    for (int d = 0; d < DIM; ++d) {
      float& x = t->x[i * t->x_row + d];
      x = 2 * x + static_cast<float>(t->kv[i]) + weight[d * t->args[17]];
    }
}
}
"""

PARAMETERS = (
    Parameter("gain", "f32", None, "run", 2.0, in_key=False),
    Parameter("n", "i32", None, "plan", 4096, (0, 5000), in_key=False),
    Parameter("bias", "f32", ("Hq",), "run", in_key=False),
    Parameter("table", "i32", ("B", "KV"), "run", None, (0, "Docs"), in_key=False),
    Parameter("off", "i32", ("Docs",), "run", in_key=False),
    Parameter("weight", "f32", ("D",), "run", in_key=True),
)


@dataclass(frozen=True)
class TinyVariant:
    """What `attngen.load` would give for it."""

    name: str = "tiny"
    salt: str = ""
    isa: tuple[str, ...] = ()
    softmax: bool = True
    has_sink: bool = False
    has_output: bool = False
    parameters: tuple[Parameter, ...] = PARAMETERS

    def lower(self, config: KernelConfig) -> KernelSource:
        manifest = Manifest(
            variant=self.name,
            config=replace(config, target="cpu-tiny"),
            parameters=self.parameters,
            softmax=self.softmax,
            has_mask=False,
            has_sink=self.has_sink,
            has_output=self.has_output,
            has_key=True,
            key_bounds=(),
            tiles=(Tile(16, 64, 1.0, 1.0, 1.0), Tile(64, 64, 1.0, 3.0, 1.0)),
            isa=self.isa,
        )
        return KernelSource({"kernel.cpp": SOURCE}, "kernel.cpp", (f"-DDIM={config.head_dim}",), manifest)

    def key(self, config: KernelConfig) -> str:
        return cache.make_key(repr(self), repr(config))

    def compile(self, config: KernelConfig) -> Kernel:
        return load_kernel(cache.entry(self.key(config), lambda: self.lower(config)))


CONFIG = KernelConfig("cpu", 64, 64, "f32", "f32")
