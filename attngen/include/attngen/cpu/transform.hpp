// The key stage on its own, for caches that hold transformed keys.
#pragma once

#include "attngen/functor.hpp"
#include "attngen/lanes.hpp"
#include "attngen/work.hpp"

namespace attngen::cpu {

template <class Traits, class Fn>
void transform_keys(const KeyTransform* keys) {
  if constexpr (Fn::kHasKey) {
    Fn fn(keys->args,
          {Traits::kHeadDim, Traits::kHeadDimV, keys->num_qo_heads, keys->num_kv_heads, keys->group});
    alignas(64) typename Fn::Tables tables;
    use_tables(fn, tables);
    for (std::int32_t i = 0; i < keys->count; ++i) {
      Lanes<Traits::kWidth, Traits::kHeadDim> lanes(keys->x + i * keys->x_row);
      fn.key(lanes, fn.template column<float, std::int32_t>({keys->kv[i], keys->slot[i], keys->kv_head}));
    }
  }
}

}  // namespace attngen::cpu
