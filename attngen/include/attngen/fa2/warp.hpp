// What one warp does with a tile: 16·kM query rows against kN keys.
//   scores = Q · Kᵀ  →  weights (logits, mask, running softmax)  →  out = factor · out + weights · V
//
// Element e of score block (m, n) lies in row 16 m + lane / 4 + 8 (e / 2) and column 8 n + 2 (lane % 4) + e % 2, on every
// architecture that the template serves; the same holds for `out` with lanes of the head dimension as columns.
#pragma once

#include "attngen/fa2/convert.hpp"

namespace attngen::fa2 {

// What a row's largest logit starts as: so low that the first real one replaces it.
inline constexpr float kLowest = -1e30f;

template <class S, class Fn, int kM, int kN>
class Warp {
  using Operand = typename S::Operand;
  static constexpr int kBlocks = kN / 8, kBlocksV = S::kDimV / 8, kSteps = S::kDim / 16;
  static constexpr int kRows = 2 * kM;  // of one lane

 public:
  using Row = typename Fn::Row;
  using Column = ScalarColumn<Fn>;

  // `first_row` is the warp's first row in the tile.
  ATTNGEN_DEVICE Warp(const Fn& fn, char* shared, Books<S, Fn>& books, int first_row)
      : fn_(fn), shared_(shared), books_(books), first_row_(first_row) {}

  // Begins an item whose rows and queries lie in shared memory.
  ATTNGEN_DEVICE void start(std::int32_t kv_head) {
    kv_head_ = kv_head;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      top(i) = kLowest;
      sum(i) = 0.0f;
    }
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kBlocksV; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[m][n][e] = 0.0f;
    if constexpr (S::kHoldQuery) {
      std::uint32_t at = query_at();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        load_query(at, query_[k]);
        at = S::Keys::next(at, 2 * k);
      }
    }
  }

  // `keys` and `values` are the first of kN rows of operands, `column` the first one's place in the stage's books.
  // meanwhile() is called once, among the maxima of the scores where there are any.
  template <class Meanwhile>
  ATTNGEN_DEVICE void visit(const char* keys, const char* values, int stage, int column, bool full,
                            const Meanwhile& meanwhile) {
    bool masked = !full, seen = true;
    if (masked) {
      const int visible = count_visible(stage, column);
      masked = !__all_sync(0xffffffffu, visible == kRows * kN / 4);
      seen = __any_sync(0xffffffffu, visible != 0);
    }
    if (!seen) return meanwhile();
    float scores[kM][kBlocks][4];
    multiply_keys(keys, scores);
    make_logits(scores, stage, column);
    if (masked) hide(scores, stage, column);
    float before[kRows];
    read_tops(before);  // which would wait behind copies
    meanwhile();
    if constexpr (Fn::kSoftmax) raise(scores, before);
    // No branch from here on, so that the exponentials of some keys fill the gaps between the products of others.
    float added[kRows] = {};
    weigh(scores, 0, stage, column, added);
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
      if (k + 1 < kN / 16) weigh(scores, k + 1, stage, column, added);
      multiply_values(values, scores, k);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) sum(i) += added[i];
  }

  // Adds weight · value for the keys with infinite values (or NaN), and rows that give them any weight: where a row
  // doesn't see such a key, its weight of 0 would not silence the value.  visit() must then find zeros in their place.
  ATTNGEN_DEVICE void visit_infinite(const char* keys, const char* values, int stage, int column) {
    float weights[kM][kBlocks][4];
    multiply_keys(keys, weights);
    make_logits(weights, stage, column);
    hide(weights, stage, column);
    float before[kRows];
    read_tops(before);
    if constexpr (Fn::kSoftmax) raise(weights, before);
    float added[kRows] = {};  // visit() adds them
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) weigh(weights, k, stage, column, added);
    add_infinite(values, weights);
  }

  // Leaves the rows at `to` as S::Keys, times the factors that the books have by then in place of their shifts.
  ATTNGEN_DEVICE void stage_complete(char* to) const {
    const int lane = ptx::lane();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = 8 * i + lane / 4;
      const float factor = books_.shift[ptx::warp()][row];
#pragma unroll
      for (int n = 0; n < kBlocksV; ++n)
        reinterpret_cast<std::uint32_t*>(to + S::Keys::at(row, n))[lane % 4] =
            ptx::pack<Operand>(factor * out_[i / 2][n][i % 2 * 2], factor * out_[i / 2][n][i % 2 * 2 + 1]);
    }
  }

  // Leaves what normalises the rows in the books.
  ATTNGEN_DEVICE void publish() {
    const int lane = ptx::lane(), warp = ptx::warp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float whole = whole_sum(i);  // lanes meet here: who writes below doesn't overwrite what others read
      if (lane % 4 == 0) {
        const float shifted = shift(i);
        books_.sum(warp, 8 * i + lane / 4) = whole;
        books_.shift[warp][8 * i + lane / 4] = shifted;
      }
    }
  }

  // Leaves rows 8 · part to 8 · part + 8, not normalised, in fp32 at `to`.
  ATTNGEN_DEVICE void stage_out(int part, char* to) const {
    const int lane = ptx::lane();
    float* row = reinterpret_cast<float*>(to + lane / 4 * S::kOutPitch) + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i != part) continue;
#pragma unroll
      for (int n = 0; n < kBlocksV; ++n)
        *reinterpret_cast<float2*>(row + 8 * n) =
            make_float2(out_[i / 2][n][i % 2 * 2], out_[i / 2][n][i % 2 * 2 + 1]);
    }
  }

 private:
  ATTNGEN_DEVICE float whole_sum(int i) const {
    float whole = sum(i);
    whole += __shfl_xor_sync(0xffffffffu, whole, 1);
    return whole + __shfl_xor_sync(0xffffffffu, whole, 2);
  }

  // The softmax state of row i of the lane: its weights so far are exp2(scale_log2 · (logit - top)), where top is the
  // largest logit seen, and `sum` is this lane's share of theirs.
  ATTNGEN_DEVICE float& top(int i) const {
    return S::kStateInBooks ? books_.shift[ptx::warp()][8 * i + ptx::lane() / 4] : tops_[i];
  }
  ATTNGEN_DEVICE float& sum(int i) const { return S::kStateInBooks ? books_.sums[ptx::thread()][i] : sums_[i]; }

  // What is added to scale_log2 · logit.  Rounded by itself: fused into a subtraction it would differ from the shift that
  // the weights were made with.
  ATTNGEN_DEVICE float shift_of(float top) const { return __fmul_rn(-top, fn_.scale_log2); }
  ATTNGEN_DEVICE float shift(int i) const { return shift_of(top(i)); }

  ATTNGEN_DEVICE std::uint32_t query_at() const {
    const int lane = ptx::lane();
    return ptx::shared_address(shared_ + S::kQueries) + S::Keys::at(first_row_ + lane % 16, lane / 16);
  }

  ATTNGEN_DEVICE static void load_query(std::uint32_t at, std::uint32_t (&a)[kM][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) ptx::load_matrices(a[m], at + m * 16 * S::kPitch);
  }

  // Few scores are added up in two halves, since each product waits for the one before it.
  ATTNGEN_DEVICE void multiply_keys(const char* keys, float (&scores)[kM][kBlocks][4]) {
    constexpr int kHalves = kM * kBlocks <= 4 && kSteps > 1 ? 2 : 1;
    float sums[kHalves][kM][kBlocks][4] = {};
    const int lane = ptx::lane();
    std::uint32_t at = ptx::shared_address(keys) + S::Keys::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    std::uint32_t query = query_at();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      std::uint32_t loaded[kM][4];
      if constexpr (!S::kHoldQuery) {
        load_query(query, loaded);
        query = S::Keys::next(query, 2 * k);
      }
#pragma unroll
      for (int n = 0; n < kBlocks; n += 2) {
        std::uint32_t b[4];
        ptx::load_matrices(b, at + n * 8 * S::kPitch);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const auto& a = S::kHoldQuery ? query_[S::kHoldQuery ? k : 0][m] : loaded[m];
          ptx::multiply_add<Operand>(sums[k % kHalves][m][n], a, b[0], b[1]);
          ptx::multiply_add<Operand>(sums[k % kHalves][m][n + 1], a, b[2], b[3]);
        }
      }
      at = S::Keys::next(at, 2 * k);
    }
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          scores[m][n][e] = kHalves == 1 ? sums[0][m][n][e] : sums[0][m][n][e] + sums[kHalves - 1][m][n][e];
  }

  // Keys 16 k to 16 k + 16.
  ATTNGEN_DEVICE void multiply_values(const char* values, const float (&weights)[kM][kBlocks][4], int k) {
    const int lane = ptx::lane();
    std::uint32_t at = ptx::shared_address(values) + S::Values::at(lane % 16, lane / 16);
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[m][i] = ptx::pack<Operand>(weights[m][2 * k + i / 2][i % 2 * 2], weights[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < kBlocksV; n += 2) {
      std::uint32_t b[4];
      ptx::load_matrices_transposed(b, at + 16 * k * S::kPitchV);
      at = ptx::opaque(S::Values::next(at, n));  // else all are made early, and accumulators move to make room
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::multiply_add<Operand>(out_[m][n], a[m], b[0], b[1]);
        ptx::multiply_add<Operand>(out_[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }

  // From the logits of keys 16 k to 16 k + 16 to the weights of their values, whose sums are `added` up.
  ATTNGEN_DEVICE void weigh(float (&scores)[kM][kBlocks][4], int k, int stage, int column, float (&added)[kRows]) {
    if constexpr (Fn::kSoftmax) exponentiate(scores, k, added);
    if constexpr (Fn::kHasValueScale) scale_values(scores, k, stage, column);
  }

  ATTNGEN_DEVICE void add_infinite(const char* values, const float (&weights)[kM][kBlocks][4]) {
    const int lane = ptx::lane();
#pragma unroll 1
    for (int key = 0; key < kN; ++key) {
      const char* row = values + key * S::kPitchV;
      if (!holds_infinite<S>(row)) continue;
      float weight[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float own = 0.0f;
#pragma unroll
        for (int place = 0; place < kN / 4; ++place) {
          const float mine = weights[i / 2][place / 2][i % 2 * 2 + place % 2];
          if (ptx::opaque(place) == key / 8 * 2 + key % 2) own = mine;
        }
        weight[i] = __shfl_sync(0xffffffffu, own, lane / 4 * 4 + key % 8 / 2);
      }
#pragma unroll
      for (int n = 0; n < kBlocksV; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float value = to_float(reinterpret_cast<const Operand*>(row)[8 * (n ^ S::Values::turn(key)) + 2 * (lane % 4) + j]);
#pragma unroll
          for (int i = 0; i < kRows; ++i)
            if (weight[i] != 0.0f) out_[i / 2][n][i % 2 * 2 + j] += weight[i] * value;
        }
    }
  }

  ATTNGEN_DEVICE Column column(int stage, int at) const {
    ColumnAt<std::int32_t> where{books_.kv[stage][at], 0, kv_head_};
    if constexpr (Fn::kReadsSlot) where.slot = books_.slot[stage][at];
    return fn_.template column<float, std::int32_t>(where);
  }

  // Calls visit(m, n, e, row, column) for the place of every score; `first` is the tile's first one in the books.
  template <class Visit>
  ATTNGEN_DEVICE void each_place(int stage, int first, const Visit& visit) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      asm volatile("" ::: "memory");  // else columns stay in registers for the next rows
      const int lane = ptx::lane();
      const Row* own = books_.rows + first_row_ + 16 * m + lane / 4;
      const Row rows[2] = {own[0], own[8]};
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Column at = column(stage, first + 8 * n + 2 * (lane % 4) + j);
          visit(m, n, j, rows[0], at);
          visit(m, n, 2 + j, rows[1], at);
        }
    }
  }

  ATTNGEN_DEVICE void make_logits(float (&scores)[kM][kBlocks][4], int stage, int first) const {
    each_place(stage, first, [&](int m, int n, int e, const Row& row, const Column& at) {
      scores[m][n][e] = fn_.logits(scores[m][n][e], row, at);
    });
  }

  ATTNGEN_DEVICE bool is_visible(const Row& row, const Column& at) const {
    bool visible = true;
    if constexpr (!Fn::kMaskEnds) visible = at.kv < row.kv_len;
    if constexpr (Fn::kHasMask) visible &= fn_.template mask<float>(row, at);
    return visible;
  }

  // How many of this lane's scores count: a tile of which the warp sees nothing is left out, and one of which it sees all
  // needs no mask.
  ATTNGEN_DEVICE int count_visible(int stage, int first) const {
    int count = 0;
    each_place(stage, first,
               [&](int, int, int, const Row& row, const Column& at) { count += is_visible(row, at); });
    return count;
  }

  ATTNGEN_DEVICE void hide(float (&logits)[kM][kBlocks][4], int stage, int first) const {
    each_place(stage, first, [&](int m, int n, int e, const Row& row, const Column& at) {
      if (!is_visible(row, at)) logits[m][n][e] = Fn::kSoftmax ? -__builtin_inff() : 0.0f;
    });
  }

  ATTNGEN_DEVICE void read_tops(float (&tops)[kRows]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) tops[i] = top(i);
  }

  // The new maxima where `tops` are those before, and `out` and sums brought to them.
  ATTNGEN_DEVICE void raise(const float (&scores)[kM][kBlocks][4], const float (&tops)[kRows]) {
    float factor[kRows];
    bool changed = false;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float before = tops[i];
      float now = before;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        now = larger(now, larger(scores[i / 2][n][i % 2 * 2], scores[i / 2][n][i % 2 * 2 + 1]));
      now = larger(now, __shfl_xor_sync(0xffffffffu, now, 1));
      now = larger(now, __shfl_xor_sync(0xffffffffu, now, 2));
      changed |= now != before;
      top(i) = now;
      factor[i] = ptx::exp2(shift_of(now) - shift_of(before));
    }
    if (!__any_sync(0xffffffffu, changed)) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sum(i) *= factor[i];
#pragma unroll
      for (int n = 0; n < kBlocksV; ++n) {
        out_[i / 2][n][i % 2 * 2] *= factor[i];
        out_[i / 2][n][i % 2 * 2 + 1] *= factor[i];
      }
    }
  }

  ATTNGEN_DEVICE void exponentiate(float (&scores)[kM][kBlocks][4], int k, float (&added)[kRows]) {
    const float scale = fn_.scale_log2;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float reference = shift(i);
#pragma unroll
      for (int n = 2 * k; n < 2 * k + 2; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = scores[i / 2][n][i % 2 * 2 + j];
          score = ptx::exp2(score * scale + reference);
          added[i] += score;
        }
    }
  }

  // A hidden key's value_scale may be NaN; its weight is 0 all the same.
  ATTNGEN_DEVICE void scale_values(float (&weights)[kM][kBlocks][4], int k, int stage, int first) const {
    const int lane = ptx::lane();
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float scale = fn_.value_scale(column(stage, first + 8 * n + 2 * (lane % 4) + j));
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          float& weight = weights[i / 2][n][i % 2 * 2 + j];
          weight = weight == 0.0f ? 0.0f : weight * scale;
        }
      }
  }

  // NaN wins nothing here: it reaches the sum through the weight.
  ATTNGEN_DEVICE static float larger(float a, float b) { return fmaxf(a, b); }

  const Fn& fn_;
  char* shared_;
  Books<S, Fn>& books_;
  int first_row_;
  std::int32_t kv_head_;
  mutable float tops_[S::kStateInBooks ? 1 : kRows], sums_[S::kStateInBooks ? 1 : kRows];
  float out_[kM][kBlocksV][4];
  std::uint32_t query_[S::kHoldQuery ? kSteps : 1][kM][4];
};

}  // namespace attngen::fa2
