// The CPU attention kernel: executes one worker's queue of a plan.
//
// For an item: load and transform its query rows once; then for each tile of keys decide what is visible, pack keys and
// values (transformed once for all rows), and pass over the rows in blocks that stay in L1:
//   scores = Q · Kᵀ  →  weights (logits, mask, running softmax)  →  out = factor · out + weights · V
#pragma once

#include <new>

#include "attngen/cpu/finish.hpp"
#include "attngen/cpu/pack.hpp"
#include "attngen/cpu/weights.hpp"

namespace attngen::cpu {

template <class S, class Fn>
struct Scratch {
  using Element = typename S::Element;
  using F = simd::f32<S::kWidth>;
  using I = simd::i32<S::kWidth>;

  alignas(64) Element q[S::kRows][S::kDim];
  alignas(64) float out[S::kRows][S::kDimV];
  alignas(64) Element keys[Packer<S>::kKeysSize];
  alignas(64) Element values[Packer<S>::kValuesSize];
  alignas(64) float scores[S::kBlockRows][S::kScoresRow];
  alignas(64) Element weights[S::kTiles ? S::kBlockRows : 1][S::kTiles ? S::kKeys + 32 : 1];  // else over the scores
  alignas(64) float floats[std::max(S::kDim, S::kDimV)];
  alignas(64) typename Fn::template Column<F, I> columns[S::kVectors];
  alignas(64) typename Fn::Tables tables;
  Packer<S> packer;
  KeyTile<S::kKeys> tiles[2];  // this one and the next
  TileMask<S> mask;
  RowState state[S::kRows];
  float factor[S::kRows];
  typename Fn::Row rows[S::kRows];
};

// Brings a row of `kCount` elements closer, into L2.
template <int kCount, class T>
ATTNGEN_FN void fetch(const T* row) {
  constexpr int kLine = 64 / sizeof(T);
  for (int i = 0; i < kCount; i += kLine) __builtin_prefetch(row + i, 0, 2);
}

template <class S, class Fn>
class Kernel {
  using Element = typename S::Element;
  using F = simd::f32<S::kWidth>;
  using I = simd::i32<S::kWidth>;
  static constexpr int W = S::kWidth;
  static constexpr int kAhead = 4;  // rows of `out` asked for before they are stored

 public:
  Kernel(const Params& params, Scratch<S, Fn>& scratch)
      : params_(params),
        plan_(params.plan),
        fn_(params.args, {S::kHeadDim, S::kHeadDimV, params.num_qo_heads, params.num_kv_heads, params.group}),
        finish_(params_, plan_, fn_),
        s_(scratch) {
    use_tables(fn_, s_.tables);
    std::fill(std::begin(s_.packer.zeros), std::end(s_.packer.zeros), Element{});
  }

  void run(std::int32_t worker) {
    const Worker& own = plan_.workers[worker];
    move_ = own.move;
    for (std::int32_t i = own.item_begin; i < own.item_end; ++i) run(moved(plan_.items[i], move_));
  }

 private:
  void run(const Item& item) {
    const Level& level = plan_.levels[item.level];
    load_rows(item, level);
    tile_ = &s_.tiles[0];
    next_ = &s_.tiles[1];
    locate(item, level, item.kv_begin);
    for (std::int32_t key = item.kv_begin; key < item.kv_end; key += S::kKeys) {
      std::swap(tile_, next_);
      locate(item, level, key + S::kKeys);
      visit(item, key >= item.full_from && key + tile_->count <= item.full_to);
    }
    finish(item);
  }

  // Makes the keys from `key` on the next tile; one behind the last has no keys.
  void locate(const Item& item, const Level& level, std::int32_t key) {
    next_->count = 0;
    if (key < item.kv_end)
      next_->locate(plan_, level, item.list, key, std::min(S::kKeys, item.kv_end - key), params_.k_strides,
                    params_.v_strides, item.kv_head);
  }

  // Asks for the next tile's rows while this one is computed, a share with each block of rows: they lie a whole row of
  // heads apart, where the processor's own prefetching doesn't follow.
  void fetch_next(int block, int blocks) const {
    for (int i = next_->count * block / blocks; i < next_->count * (block + 1) / blocks; ++i) {
      fetch<S::kHeadDim>(static_cast<const typename S::Pool*>(params_.k) + next_->k[i]);
      fetch<S::kHeadDimV>(static_cast<const typename S::Pool*>(params_.v) + next_->v[i]);
    }
  }

  void load_rows(const Item& item, const Level& level) {
    const auto* tokens = level.tokens ? plan_.at<std::int32_t>(level.tokens) : nullptr;
    shortest_ = std::numeric_limits<std::int32_t>::max();
    for (int i = 0; i < item.packed_count; ++i) {
      const std::int32_t packed = item.packed_begin + i;
      const std::int32_t index = packed / params_.group;
      const std::int32_t head = item.kv_head * params_.group + packed % params_.group;
      typename Fn::Row& row = s_.rows[i];
      row = fn_.row(plan_.row(tokens ? tokens[index] : index, head, item.kv_head));
      fetch<S::kHeadDim>(query(row));
      shortest_ = std::min(shortest_, row.kv_len);
      s_.state[i] = fresh_row<S>(fn_);
      std::fill(s_.out[i], s_.out[i] + S::kDimV, 0.0f);
    }
    for (int i = 0; i < item.packed_count; ++i) load_query(s_.rows[i], s_.q[i]);
  }

  const typename S::Query* query(const RowAt& row) const {
    return static_cast<const typename S::Query*>(params_.q) + row.row * params_.q_row + row.h * params_.q_head;
  }

  void load_query(const typename Fn::Row& row, Element* to) {
    if constexpr (Fn::kHasQuery) {
      stage<S, S::kHeadDim, S::kDim>(query(row), to, s_.floats, [&](auto& lanes) { fn_.query(lanes, row); });
    } else {
      stage<S, S::kHeadDim, S::kDim>(query(row), to, s_.floats, NoHook{});
    }
  }

  void visit(const Item& item, bool full) {
    make_columns(item);
    if (!see(item.packed_count, full)) return;
    pack();
    finite_ = !s_.mask.by_row || Packer<S>::finite(s_.values, tile_->count);
    const int blocks = round_up(item.packed_count, S::kBlockRows) / S::kBlockRows;
    for (int first = 0; first < item.packed_count; first += S::kBlockRows) {
      fetch_next(first / S::kBlockRows, blocks);
      const Block& block = s_.mask.blocks[first / S::kBlockRows];
      if (block.begin < block.end) pass(first, std::min(S::kBlockRows, item.packed_count - first), block);
    }
  }

  void make_columns(const Item& item) {
    for (int v = 0; v < round_up(tile_->count, S::kStep) / W; ++v) {
      const ColumnAt<I> at{simd::load<I>(tile_->kv + v * W), simd::load<I>(tile_->slot + v * W), item.kv_head};
      s_.columns[v] = fn_.template column<F, I>(at);
    }
  }

  // Some value is infinite or NaN: it may reach only the rows that see its key, so the rest leave it out of the sum.
  void add_visible(int first, int rows, int begin, int end) {
    for (int i = 0; i < rows; ++i) {
      float* out = s_.out[first + i];
      const Bits* allowed = s_.mask.row(first + i);
      for (int lane = 0; lane < S::kHeadDimV; ++lane) out[lane] *= s_.factor[i];
      for (int key = begin; key < end; ++key) {
        if (!(allowed[key / W] >> key % W & 1)) continue;
        const float weight = to_float(weights(i)[key]);
        for (int lane = 0; lane < S::kHeadDimV; ++lane)
          out[lane] += weight * to_float(Packer<S>::value(s_.values, key, lane));
      }
    }
  }

  Element* weights(int i) {
    if constexpr (S::kTiles) return s_.weights[i];
    else return s_.scores[i];
  }

  // False where no row sees a key of the tile.  Rows of several requests may differ in length.
  bool see(int rows, bool full) {
    const bool lengths = tile_->last_kv >= shortest_;
    const bool masked = Fn::kHasMask && !full;
    if (!lengths && !masked) {
      s_.mask.open(rows, tile_->count);
      return true;
    }
    return s_.mask.restrict(rows, tile_->count, [&](int i, int v) {
      const I exists = s_.columns[v].kv < s_.rows[i].kv_len;
      if constexpr (Fn::kHasMask) return exists & fn_.template mask<F>(s_.rows[i], s_.columns[v]);
      return exists;
    });
  }

  // Key and value hooks see one key at a time, as scalars.
  ScalarColumn<Fn> column(int key) const {
    const std::int32_t hk = s_.columns[0].hk;
    return fn_.template column<float, std::int32_t>({tile_->kv[key], tile_->slot[key], hk});
  }

  void pack() {
    const auto* k = static_cast<const typename S::Pool*>(params_.k);
    const auto* v = static_cast<const typename S::Pool*>(params_.v);
    if constexpr (Fn::kHasKey && !S::kKeysTransformed) {
      s_.packer.keys(k, *tile_, s_.keys, [&](auto& lanes, int key) { fn_.key(lanes, column(key)); });
    } else {
      s_.packer.keys(k, *tile_, s_.keys, NoHook{});
    }
    if constexpr (Fn::kHasValue) {
      s_.packer.values(v, *tile_, s_.values, [&](auto& lanes, int key) { fn_.value(lanes, column(key)); });
    } else {
      s_.packer.values(v, *tile_, s_.values, NoHook{});
    }
  }

  // One block of rows against the tile's vectors [block.begin, block.end).
  void pass(int first, int rows, const Block& block) {
    multiply_keys(first, rows, block.begin * W, block.end * W);
    if (block.whole) {
      weigh<false>(first, rows, block.begin, block.end);
    } else {
      weigh<true>(first, rows, block.begin, block.end);
    }
    if (finite_) {
      multiply_values(first, rows, block.begin * W, block.end * W);
    } else {
      add_visible(first, rows, block.begin * W, std::min(block.end * W, tile_->count));
    }
  }

  template <bool kMasked>
  RowPass<S, Fn, kMasked> row_pass(int first, int i, int begin, int end) {
    return {fn_, s_.rows[first + i], s_.columns, s_.mask.row(first + i), begin, end, s_.scores[i], weights(i)};
  }

  // With a running maximum all rows' maxima come first: they wait on long chains, which thus overlap.
  template <bool kMasked>
  void weigh(int first, int rows, int begin, int end) {
    constexpr bool kRunning = Fn::kSoftmax && !kFixedReference<S, Fn>;
    for (int i = 0; i < rows; ++i) {
      const auto row = row_pass<kMasked>(first, i, begin, end);
      s_.factor[i] = 1.0f;
      if constexpr (!Fn::kSoftmax) {
        row.plain();
      } else if constexpr (kRunning) {
        s_.factor[i] = row.raise(s_.state[first + i]);
      } else {
        row.bounded(s_.state[first + i]);
      }
    }
    if constexpr (kRunning)
      for (int i = 0; i < rows; ++i)
        row_pass<kMasked>(first, i, begin, end).exponentiate(s_.state[first + i], s_.factor[i]);
  }

  void multiply_keys(int first, int rows, int begin, int end) {
    if constexpr (S::kTiles) {
#if defined(__AMX_BF16__)
      amx::multiply<false>(rows, begin, end, s_.q[first], S::kDim, s_.keys, S::kDim / 32 * 512, S::kDim / 32,
                           s_.scores[0], S::kScoresRow);
#endif
    } else {
      constexpr int kPanel = Registers<W>::kPanel;
      multiply<W>(rows, begin, end, s_.q[first], S::kDim, s_.keys, S::kDim * kPanel, S::kDim, s_.scores[0],
                  S::kScoresRow, nullptr);
    }
  }

  void multiply_values(int first, int rows, int begin, int end) {
    if constexpr (S::kTiles) {
#if defined(__AMX_BF16__)
      for (int i = 0; i < rows; ++i) {
        if (s_.factor[i] == 1.0f) continue;
        for (int lane = 0; lane < S::kDimV; lane += W)
          simd::store<F>(s_.out[first + i] + lane, simd::load<F>(s_.out[first + i] + lane) * s_.factor[i]);
      }
      amx::multiply<true>(rows, 0, S::kDimV, s_.weights[0] + begin, S::kKeys + 32, s_.values + begin / 32 * 512,
                          S::kKeys / 32 * 512, (end - begin) / 32, s_.out[first], S::kDimV);
#endif
    } else {
      constexpr int kPanel = Registers<W>::kPanel;
      const int keys = std::min(end, tile_->count) - begin;
      multiply<W>(rows, 0, S::kDimV, s_.scores[0] + begin, S::kScoresRow, s_.values + begin * kPanel,
                  S::kKeys * kPanel, keys, s_.out[first], S::kDimV, s_.factor);
    }
  }

  void finish(const Item& item) {
    const Segment* segments = plan_.segments + item.segment_begin;
    for (std::int32_t i = 0; i < item.segment_count; ++i) {
      const Segment segment = moved(segments[i], move_);
      for (std::int32_t r = 0; r < segment.count; ++r) {
        const std::int32_t place = segment.offset + r;
        const double lse = normalise(place);
        if (segment.partial == kWriteThrough) {
          if (r + kAhead < segment.count) fetch<S::kHeadDimV>(finish_.target(s_.rows[place + kAhead]));
          finish_.store_row(s_.rows[place], s_.out[place], lse);
        } else {
          finish_.store_partial(static_cast<std::int64_t>(segment.partial) + r, s_.out[place], lse);
        }
      }
      if (segment.partial != kWriteThrough) finish_.arrive(segment.merge, s_.floats);
    }
  }

  // Divides a row by its sum and gives its lse in log2; with softmax off both are left alone.
  double normalise(int place) {
    if constexpr (!Fn::kSoftmax) return 0.0;
    const RowState& state = s_.state[place];
    const float inverse = state.sum == 0.0f ? 0.0f : 1.0f / state.sum;
    for (int lane = 0; lane < S::kDimV; lane += W)
      simd::store<F>(s_.out[place] + lane, simd::load<F>(s_.out[place] + lane) * inverse);
    return state.sum == 0.0f ? kNoKeys : std::log2(static_cast<double>(state.sum)) - state.shift;
  }

  const Params& params_;
  PlanView plan_;
  Fn fn_;
  Finish<S, Fn> finish_;
  Scratch<S, Fn>& s_;
  Move move_{};
  KeyTile<S::kKeys>* tile_ = nullptr;
  KeyTile<S::kKeys>* next_ = nullptr;
  std::int32_t shortest_ = 0;  // kv_len of the item's rows
  bool finite_ = true;         // the tile's values, as far as it matters
};

template <class Traits, class Fn>
std::int64_t scratch_bytes() {
  return sizeof(Scratch<Shape<Traits>, Fn>);
}

template <class Traits, class Fn>
void worker(const Params* params, std::int32_t index, void* memory) {
  using S = Shape<Traits>;
#if defined(__AMX_BF16__)
  if constexpr (S::kTiles) {
    const amx::Session session;
    Kernel<S, Fn>(*params, *static_cast<Scratch<S, Fn>*>(memory)).run(index);
    return;
  }
#endif
  Kernel<S, Fn>(*params, *static_cast<Scratch<S, Fn>*>(memory)).run(index);
}

}  // namespace attngen::cpu
