// Brings the keys and values of an item into shared memory, each warp its own slice of every tile, stage by stage.
#pragma once

#include "attngen/fa2/shape.hpp"

namespace attngen::fa2 {

// Block numbers come as many tiles before the rows that they name as rows come before they are used, so that neither
// waits for the other; they lie in shared memory meanwhile, since registers are short.
template <class S, class Fn>
class KeyLoader {
  using Pool = typename S::Pool;
  static constexpr int kSlice = S::kSlice;
  static constexpr int kValues = S::kKeys * S::kRawPitch;  // of a stage: bytes from its keys to its values

 public:
  ATTNGEN_DEVICE KeyLoader(const Params& params, char* shared, Books<S, Fn>& books)
      : params_(params), shared_(shared), books_(books) {}

  // Says where an item's keys lie; one thread.
  ATTNGEN_DEVICE void locate(const Item& item, const Level& level) const {
    const char* arena = reinterpret_cast<const char*>(params_.plan);
    const auto list = [&](std::int64_t at) {
      return at ? reinterpret_cast<const std::int32_t*>(arena + at) + item.list : nullptr;
    };
    const bool one = is_one_block(level);
    const std::int32_t k_step = step(level, one, params_.k_strides), v_step = step(level, one, params_.v_strides);
    const bool even = k_step != 0 && v_step != 0;
    source() = {list(level.indices),
                list(level.positions),
                static_cast<const char*>(params_.k) + item.kv_head * params_.k_strides.head * sizeof(Pool),
                static_cast<const char*>(params_.v) + item.kv_head * params_.v_strides.head * sizeof(Pool),
                static_cast<std::int32_t>(item.list),
                level.block_size,
                item.kv_end,
                one && even ? 31 : __ffs(level.block_size) - 1,
                even ? k_step : 0,
                even ? v_step : 0,
                item.full_from,
                item.full_to,
                item.kv_begin};
  }

  // Has the list's entries of that item's first tiles copied, one group of copies; all threads, once they see where it is
  // and nobody needs those of the item before.
  ATTNGEN_DEVICE void start(const Item& item) const {
#pragma unroll
    for (int stage = 0; stage < S::kAhead; ++stage) find(source(), stage, item.kv_begin + stage * S::kKeys);
    ptx::commit_copies();
  }

  // Copies the first tiles into the first stages; a single group has been committed since start().  Gives the first key
  // of the tile behind them.
  ATTNGEN_DEVICE std::int32_t begin() const {
    ptx::wait_copies<1>();
    __syncwarp();  // lanes read entries that others have copied
    std::int32_t next = source().begin;
#pragma unroll 1
    for (int stage = 0; stage < S::kAhead; ++stage, next += S::kKeys) issue(next);
    return next;
  }

  // Copies a tile, from key `next` on, into its stage and commits one group, also behind the last tile.
  ATTNGEN_DEVICE void issue(std::int32_t next) const {
    prepare(next);
    issue_even(next);
  }

  // The first half of that: all there is to do where slices aren't even, and zeros behind the last key where they are.
  ATTNGEN_DEVICE void prepare(std::int32_t next) const {
    if (source().k_step == 0) {
      issue_any(next);
    } else if (next < source().end && next + (ptx::warp() + 1) * kSlice > source().end) {
      clear(next);
    }
  }

  // The second half, free of branches, so that other work can fill its gaps: a tile whose slices have their rows at equal
  // steps, up to the last key.
  ATTNGEN_DEVICE void issue_even(std::int32_t first) const {
    const KeySource from = source();
    const int stage = stage_of(from, first), own = ptx::lane() % kSlice, place = ptx::warp() * kSlice;
    const std::int32_t key = first + place, entry = key >> from.shift, offset = key - (entry << from.shift);
    const std::int32_t block = from.indices ? books_.block[stage][place] : from.list + entry;
    const std::int32_t position = from.positions ? books_.start[stage][place] + offset : key;
    const std::int32_t count = from.k_step == 0 ? 0 : from.end - key;  // of rows to copy
    if (own < count) books_.kv[stage][place + own] = position + own;
    if constexpr (Fn::kReadsSlot)
      if (own < count) books_.slot[stage][place + own] = block * from.block_size + offset + own;
    const auto row = [&](const char* pool, const Strides& strides, std::int32_t step) {
      return ptx::opaque(pool + std::int64_t{block} * strides.block * static_cast<std::int64_t>(sizeof(Pool)) +
                         std::int64_t{offset} * step);
    };
    const auto exists = [&](int row) { return row < count; };
    char* keys = shared_ + S::kKeysRing + stage * S::kStageBytes;
    const char *k = row(from.k, params_.k_strides, from.k_step), *v = row(from.v, params_.v_strides, from.v_step);
    copy_rows<S::kHeadDim, true>(keys, exists, [&](int row, int byte) {
      return k + byte + static_cast<unsigned>(row * from.k_step);
    });
    copy_rows<S::kHeadDimV, true>(keys + kValues, exists, [&](int row, int byte) {
      return v + byte + static_cast<unsigned>(row * from.v_step);
    });
    // All lanes have read the entry that may lie there now.
    const std::int32_t later = key + S::kAhead * S::kKeys + ptx::lane();
    find_at(from, (stage + S::kAhead) % S::kStages, later >> from.shift, count > 0 && later < from.end);
    ptx::commit_copies();
  }

  ATTNGEN_DEVICE static int stage_of(const KeySource& from, std::int32_t key) {
    return static_cast<unsigned>(key - from.begin) / S::kKeys % S::kStages;
  }

  // To be read as a whole and early: a read between copies waits for them.
  ATTNGEN_DEVICE KeySource& source() const { return books_.source; }

 private:
  ATTNGEN_DEVICE static bool is_power_of_two(std::int32_t size) { return (size & (size - 1)) == 0; }

  // Blocks of the list that follow each other without gaps are as one.
  ATTNGEN_DEVICE bool is_one_block(const Level& level) const {
    const auto follow = [&](const Strides& strides) {
      return strides.block == (level.block_size == 1 ? strides.block : strides.token) * level.block_size;
    };
    return level.indices == 0 && level.positions == 0 && follow(params_.k_strides) && follow(params_.v_strides);
  }

  // Slices are even where they lie in one block each, which is found without a division.
  ATTNGEN_DEVICE static std::int32_t step(const Level& level, bool one, const Strides& strides) {
    const std::int64_t bytes =
        (level.block_size == 1 ? strides.block : strides.token) * static_cast<std::int64_t>(sizeof(Pool));
    const bool even = one || (is_power_of_two(level.block_size) && level.block_size % kSlice == 0);
    return even && bytes > 0 && bytes < 1 << 24 ? static_cast<std::int32_t>(bytes) : 0;
  }

  // Makes the rows of an even slice that lie behind the last key zeros.
  ATTNGEN_DEVICE void clear(std::int32_t first) const {
    const KeySource from = source();
    const int stage = stage_of(from, first), place = ptx::warp() * kSlice;
    const int count = from.end - first - place;
    char* keys = shared_ + S::kKeysRing + stage * S::kStageBytes;
#pragma unroll 1
    for (int row = count < 0 ? 0 : count; row < kSlice; ++row) {
      if (ptx::lane() == 0) books_.kv[stage][place + row] = kNoKey;
      if constexpr (Fn::kReadsSlot)
        if (ptx::lane() == 0) books_.slot[stage][place + row] = 0;
      clear_row<S::kRawPitch>(keys + (place + row) * S::kRawPitch);
      clear_row<S::kRawPitchV>(keys + kValues + (place + row) * S::kRawPitchV);
    }
  }

  template <int kBytes>
  ATTNGEN_DEVICE static void clear_row(char* row) {
    for (int byte = 16 * ptx::lane(); byte < kBytes; byte += 16 * 32)
      *reinterpret_cast<uint4*>(row + byte) = make_uint4(0, 0, 0, 0);
  }

  // Any tile: each lane finds a row, and those behind the last key are zeros.
  ATTNGEN_DEVICE void issue_any(std::int32_t first) const {
    const KeySource from = source();
    const int stage = stage_of(from, first);
    const std::int32_t key = first + ptx::warp() * kSlice + ptx::lane();
    const bool exists = ptx::lane() < kSlice && key < from.end;
    __syncwarp();
    if (ptx::lane() < kSlice) {
      const int place = ptx::warp() * kSlice + ptx::lane();
      const std::int32_t entry = entry_of(from, key), offset = key - entry * from.block_size;
      const std::int32_t block = from.indices ? books_.block[stage][place] : from.list + entry;
      const std::int32_t position = from.positions ? books_.start[stage][place] + offset : key;
      books_.kv[stage][place] = exists ? position : kNoKey;
      if constexpr (Fn::kReadsSlot) books_.slot[stage][place] = block * from.block_size + offset;
      const auto at = [&](const Strides& strides) {
        const std::int64_t elements = std::int64_t{block} * strides.block + std::int64_t{offset} * strides.token;
        return exists ? elements * static_cast<std::int64_t>(sizeof(Pool)) : 0;
      };
      places(stage, 0)[ptx::lane()] = from.k + at(params_.k_strides);
      places(stage, kValues)[ptx::lane()] = from.v + at(params_.v_strides);
    }
    const unsigned present = __ballot_sync(0xffffffffu, exists);
    const bool read = S::kShared ? first < from.end : present != 0;  // by any warp
    __syncwarp();
    find(from, (stage + S::kAhead) % S::kStages, first + S::kAhead * S::kKeys);
    if (!read) return;
    char* keys = shared_ + S::kKeysRing + stage * S::kStageBytes;
    const auto is_present = [&](int row) { return (present >> row & 1) != 0; };
    copy_rows<S::kHeadDim, false>(keys, is_present, [&](int row, int byte) { return places(stage, 0)[row] + byte; });
    copy_rows<S::kHeadDimV, false>(keys + kValues, is_present,
                                   [&](int row, int byte) { return places(stage, kValues)[row] + byte; });
  }

  // Where the warp's rows lie in the pool, each list in the place of the rows themselves.
  ATTNGEN_DEVICE const char** places(int stage, int half) const {
    const int own = ptx::warp() * kSlice * (half == 0 ? S::kRawPitch : S::kRawPitchV);
    return reinterpret_cast<const char**>(shared_ + S::kKeysRing + stage * S::kStageBytes + half + own);
  }

  ATTNGEN_DEVICE static std::int32_t entry_of(const KeySource& from, std::int32_t key) {
    return is_power_of_two(from.block_size) ? key >> from.shift : key / from.block_size;
  }

  // Has this lane's entry of the lists copied for a later tile, from key `first` on.
  ATTNGEN_DEVICE void find(const KeySource& from, int stage, std::int32_t first) const {
    const std::int32_t key = first + ptx::warp() * kSlice + ptx::lane();
    if (ptx::lane() < kSlice && key < from.end) find_at(from, stage, entry_of(from, key), true);
  }

  ATTNGEN_DEVICE void find_at(const KeySource& from, int stage, std::int32_t entry, bool enabled) const {
    const int place = ptx::warp() * kSlice + ptx::lane();
    const bool own = enabled && ptx::lane() < kSlice;
    ptx::copy_async<4>(ptx::shared_address(&books_.block[stage][place]), from.indices + entry, 4, own && from.indices);
    ptx::copy_async<4>(ptx::shared_address(&books_.start[stage][place]), from.positions + entry, 4,
                       own && from.positions);
  }

  // Rows of the slice at place(row, byte), the head dimension padded with zeros; rows that don't exist are left as they are,
  // or made zeros.
  template <int kCount, bool kLeave, class Exists, class Place>
  ATTNGEN_DEVICE void copy_rows(char* to, const Exists& exists, const Place& place) const {
    using Rows = Operands<round_up(kCount, 16)>;
    constexpr int kPitch = S::kNarrow ? round_up(kCount, 16) : Rows::kPitch;
    constexpr int kBytes = kCount * sizeof(Pool), kPiece = kBytes % 16 == 0 ? 16 : 8;
    constexpr int kPieces = round_up(kCount, 16) * sizeof(Pool) / kPiece;
    using Pieces = RowPieces<kSlice, kPieces>;
    const int lane = ptx::lane();
    const std::uint32_t base = ptx::shared_address(to);
    const int first = ptx::warp() * kSlice;
    const std::uint32_t own = ptx::opaque(base + Rows::at(first + Pieces::row(lane, 0), Pieces::piece(lane, 0)));
    const auto place_of = [&](int step) {
      const int row = Pieces::row(lane, step), piece = Pieces::piece(lane, step);
      if constexpr (S::kNarrow) return base + (first + row) * kPitch + piece * kPiece;
      else if constexpr (Pieces::kByLine) return Rows::down(own, step / Pieces::kLines * 4) + step % Pieces::kLines * 128;
      else return base + Rows::at(first + row, piece);
    };
    const auto inside = [&](int step) {
      return kBytes == kPieces * kPiece || Pieces::piece(lane, step) * kPiece < kBytes;
    };
    const char* from[Pieces::kSteps];  // all read before the first copy
#pragma unroll
    for (int step = 0; step < Pieces::kSteps; ++step)
      from[step] = Pieces::kByLine && step % Pieces::kLines > 0
                       ? from[step - 1] + 8 * kPiece
                       : place(Pieces::row(lane, step) % kSlice, Pieces::piece(lane, step) * kPiece);
    __syncwarp();
#pragma unroll
    for (int step = 0; step < Pieces::kSteps; ++step) {
      if (!Pieces::exists(lane, step)) continue;
      const bool real = exists(Pieces::row(lane, step));
      ptx::copy_async<kPiece>(place_of(step), from[step], inside(step) && (kLeave || real) ? kPiece : 0, !kLeave || real);
    }
  }

  const Params& params_;
  char* shared_;
  Books<S, Fn>& books_;
};

}  // namespace attngen::fa2
