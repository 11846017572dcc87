// Sizes that follow from a kernel's traits, and its shared memory.
#pragma once

#include "attngen/fa2/lanes.hpp"
#include "attngen/functor.hpp"
#include "attngen/work.hpp"

namespace attngen::fa2 {

template <class Traits, class Fn>
struct Shape : Traits {
  using typename Traits::Operand;
  using typename Traits::Pool;
  static constexpr int kDim = round_up(Traits::kHeadDim, 16), kDimV = round_up(Traits::kHeadDimV, 16);
  static constexpr int kThreads = 32 * Traits::kWarps;
  static constexpr int kAhead = Traits::kStages > 1 ? Traits::kStages - 1 : 1;  // tiles under way

  // Whether all warps read all keys of a tile: those of prefill do.
  static constexpr bool kShared = Traits::kRows > 32;
  static constexpr int kWarpRows = kShared ? Traits::kRows / Traits::kWarps : Traits::kRows;  // that one warp computes
  static constexpr int kM = kWarpRows / 16;  // blocks of them

  // Whether a warp's queries stay in registers.
  static constexpr bool kHoldQuery = kM * (kDim / 16) <= 8;

  // Whether accumulators leave too few registers for the softmax state of prefill rows.
  static constexpr bool kStateInBooks = kShared && kWarpRows * kDimV >= 4096;

  // Keys that one warp loads, and transforms where there is something to transform.
  static constexpr int kSlice = Traits::kKeys / Traits::kWarps;
  static_assert(Traits::kKeys % Traits::kWarps == 0 && kSlice <= 32);

  static constexpr bool kNarrow = sizeof(Pool) == 1;
  static constexpr bool kKeyHook = Fn::kHasKey && !Traits::kKeysTransformed;
  static constexpr bool kConvert = kNarrow || kKeyHook || Fn::kHasValue;

  using Keys = Operands<kDim>;  // and queries
  using Values = Operands<kDimV>;

  // Bytes from one row to the next: of operands, and of rows as the pool holds them.
  static constexpr int kPitch = Keys::kPitch, kPitchV = Values::kPitch;
  static constexpr int kRawPitch = kNarrow ? kDim : kPitch, kRawPitchV = kNarrow ? kDimV : kPitchV;
  static constexpr int kOutPitch = 4 * kDimV + 16;  // of fp32 rows

  // Shared memory, in bytes from its start.
  static constexpr int kStageBytes = Traits::kKeys * (kRawPitch + kRawPitchV);
  static constexpr int kQueryBytes = Traits::kRows * kPitch;
  // Decode kernels that hold queries in registers let them pass through the stage that is filled last.
  static constexpr bool kQueriesPass = !kShared && kHoldQuery && Traits::kStages > 1 && kQueryBytes <= kStageBytes;
  static constexpr int kKeysRing = kQueriesPass ? 0 : kQueryBytes;
  static constexpr int kQueries = kQueriesPass ? (Traits::kStages - 1) * kStageBytes : 0;
  static constexpr int kOperands = kKeysRing + Traits::kStages * kStageBytes;  // of pools of 8-bit elements
  static constexpr int kTilesEnd = kOperands + (kNarrow ? Traits::kKeys * (kPitch + kPitchV) : 0);
};

// Where the keys of an item come from, and which of them need no test.
struct alignas(16) KeySource {
  const std::int32_t *indices, *positions;  // from the list's first block on; nullptr: none
  const char *k, *v;                        // of the KV head
  std::int32_t list, block_size, end;
  std::int32_t shift;           // of a key to its list entry, where the block size is a power of two or all is one block
  std::int32_t k_step, v_step;  // bytes from one key of a slice to the next; 0: slices are not that even
  std::int32_t full_from, full_to, begin;

  ATTNGEN_DEVICE bool is_full(std::int32_t begin, std::int32_t count) const {
    return begin >= full_from && begin + count <= full_to;
  }
};

// One that some warps still leave, one that is attended to, one that is fetched.
inline constexpr int kItems = 4;

// What lies behind the tiles: whatever outlives a step, since registers are short.
template <class S, class Fn>
struct Books {
  static constexpr bool kState = S::kStateInBooks;

  std::int32_t kv[S::kStages][S::kKeys];  // logical positions, kNoKey behind the last key
  std::int32_t slot[Fn::kReadsSlot ? S::kStages : 1][Fn::kReadsSlot ? S::kKeys : 1];  // rows of the pool
  std::int32_t block[S::kStages][S::kKeys], start[S::kStages][S::kKeys];  // the lists' entries, of later tiles
  typename Fn::Row rows[S::kRows];
  std::int32_t partial[S::kRows];  // of each row: its place among the partials, kWriteThrough, or kNoRow
  float shift[S::kWarps][S::kWarpRows];  // of each warp's rows; with kState their largest logits, until all keys are seen
  alignas(16) float sums[kState ? S::kThreads : 1][4];  // of each lane's rows
  KeySource source;
  Level level;  // the plan's first
  alignas(16) Item items[kItems];  // item i of the plan lies at i % kItems
  std::int32_t item, item_end;     // the one that is attended to, and the end of the worker's
  Move move;  // of the worker's items
  const Item* plan_items;
  const Merge* plan_merges;
  alignas(16) typename Fn::Tables tables;

  // The sum of a row's weights, once all keys are seen.
  ATTNGEN_DEVICE float& sum(int warp, int row) {
    if constexpr (kState) return sums[32 * warp + row][0];
    return row_sums_[warp][row];
  }

  // Of a segment, once all rows have left: the merge that it completes, or -1.
  ATTNGEN_DEVICE std::int32_t& last(int segment) {
    if constexpr (kState) return reinterpret_cast<std::int32_t*>(sums)[segment];
    return last_[segment];
  }

 private:
  float row_sums_[kState ? 1 : S::kWarps][kState ? 1 : S::kWarpRows];
  std::int32_t last_[kState ? 1 : S::kRows];
};

inline constexpr std::int32_t kNoRow = -2;
inline constexpr std::int32_t kNoKey = 1 << 29;  // behind every key, and a position that hooks may compute with

}  // namespace attngen::fa2
