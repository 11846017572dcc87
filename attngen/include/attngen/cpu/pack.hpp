// Packs a tile's keys and values for the matrix engine, row by row from wherever the pool holds them.
#pragma once

#include "attngen/cpu/amx.hpp"
#include "attngen/cpu/fma.hpp"
#include "attngen/cpu/keys.hpp"
#include "attngen/cpu/stage.hpp"
#include "attngen/cpu/transpose.hpp"

namespace attngen::cpu {

// A group of W keys is transposed at a time: its 32-bit words (a float, or two bf16) go from rows to columns.
template <class S>
struct Packer {
  using Element = typename S::Element;
  static constexpr int W = S::kTiles ? 16 : S::kWidth;
  static constexpr int kPerWord = sizeof(std::uint32_t) / sizeof(Element);

  static constexpr int kKeysSize = S::kKeys * S::kDim;
  static constexpr int kValuesSize = S::kKeys * round_up(S::kDimV, S::kTiles ? 1 : Registers<S::kWidth>::kPanel);

  alignas(64) Element rows[W][std::max(S::kDim, S::kDimV)];
  alignas(64) float floats[std::max(S::kDim, S::kDimV)];
  alignas(64) Element zeros[std::max(S::kDim, S::kDimV)];

  // Element (key, depth) of the packed keys starts a run of W keys.
  static std::int64_t keys_at(int key, int depth) {
    if constexpr (S::kTiles) {
      return (key / 16 * (S::kDim / 32) + depth / 32) * 512 + depth % 32 / 2 * 32;
    } else {
      constexpr int kPanel = Registers<S::kWidth>::kPanel;
      return (key / kPanel * S::kDim + depth) * kPanel + key % kPanel;
    }
  }

  // Element (key, lane) of the packed values.
  static std::int64_t values_at(int key, int lane) {
    if constexpr (S::kTiles) {
      return (lane / 16 * (S::kKeys / 32) + key / 32) * 512 + key % 32 / 2 * 32;
    } else {
      constexpr int kPanel = Registers<S::kWidth>::kPanel;
      return (lane / kPanel * S::kKeys + key) * kPanel + lane % kPanel;
    }
  }

  static Element value(const Element* packed, int key, int lane) {
    if constexpr (S::kTiles) return packed[values_at(key, lane) + lane % 16 * 2 + key % 2];
    return packed[values_at(key, lane)];
  }

  // Whether no packed value is infinite or NaN; a weight of 0 would not silence one.
  static bool finite(const Element* packed, int count) {
    using F = simd::f32<S::kWidth>;
    F sum{};
    for (int key = 0; key < count; key += S::kTiles ? 2 : 1) {
      for (int lane = 0; lane < S::kDimV; lane += S::kWidth / Packer::kPerWord) {
        if constexpr (S::kTiles) {
          const Element* run = packed + values_at(key, lane / 16 * 16) + lane % 16 * 2;
          sum += load_f32<F>(run) * 0.0f;
        } else {
          sum += simd::load<F>(packed + values_at(key, lane)) * 0.0f;
        }
      }
    }
    return simd::reduce_add(sum) == 0.0f;
  }

  // `hook(lanes, i)` transforms key i in place, or is NoHook.
  template <class Hook>
  void keys(const typename S::Pool* pool, const KeyTile<S::kKeys>& tile, Element* packed, const Hook& hook) {
    const int end = round_up(tile.count, S::kStep);
    for (int key = 0; key < end; key += W) {
      const std::uint32_t* from[W];
      for (int i = 0; i < W; ++i)
        from[i] = reinterpret_cast<const std::uint32_t*>(row<S::kHeadDim, S::kDim>(pool, tile.k, tile.count, key + i, i, hook));
      for (int depth = 0; depth < S::kDim; depth += W * kPerWord) {
        const std::uint32_t* words[W];
        for (int i = 0; i < W; ++i) words[i] = from[i] + depth / kPerWord;
        transpose<W>(words, reinterpret_cast<std::uint32_t*>(packed + keys_at(key, depth)),
                     S::kTiles ? 16 : Registers<S::kWidth>::kPanel);
      }
    }
  }

  template <class Hook>
  void values(const typename S::Pool* pool, const KeyTile<S::kKeys>& tile, Element* packed, const Hook& hook) {
    if constexpr (S::kTiles) {
#if defined(__AMX_BF16__)
      for (int key = 0; key < round_up(tile.count, S::kStep); key += 2) {
        const Element* first = row<S::kHeadDimV, S::kDimV>(pool, tile.v, tile.count, key, 0, hook);
        const Element* second = row<S::kHeadDimV, S::kDimV>(pool, tile.v, tile.count, key + 1, 1, hook);
        for (int lane = 0; lane < S::kDimV; lane += 16)
          amx::interleave(first + lane, second + lane, packed + values_at(key, lane));
      }
#endif
    } else {
      using F = simd::f32<S::kWidth>;
      for (int key = 0; key < tile.count; ++key) {
        const Element* from = row<S::kHeadDimV, S::kDimV>(pool, tile.v, tile.count, key, 0, hook);
        for (int lane = 0; lane < S::kDimV; lane += S::kWidth)
          simd::store<F>(packed + values_at(key, lane), simd::load<F>(from + lane));
      }
    }
  }

 private:
  // Row `key` as the engine's elements: the pool's own memory where that will do, zeros behind the last key.
  template <int kCount, int kPadded, class Hook>
  const Element* row(const typename S::Pool* pool, const std::int64_t* offsets, int count, int key, int place,
                     const Hook& hook) {
    if (key >= count) return zeros;
    const typename S::Pool* from = pool + offsets[key];
    if constexpr (std::is_same_v<Hook, NoHook>) {
      if constexpr (std::is_same_v<typename S::Pool, Element> && kCount == kPadded) return from;
      stage<S, kCount, kPadded>(from, rows[place], floats, hook);
    } else {
      stage<S, kCount, kPadded>(from, rows[place], floats, [&](auto& lanes) { hook(lanes, key); });
    }
    return rows[place];
  }
};

}  // namespace attngen::cpu
