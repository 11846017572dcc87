// Checks what the caller gave and copies it into the arena.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>

#include "plan.hpp"

namespace attngen::plan {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void need_limit(const char* name, std::int64_t got, std::int64_t allowed, const char* what) {
  if (got > allowed)
    throw Fault(text("limits.%s is %lld, got %lld %s", name, static_cast<long long>(allowed),
                     static_cast<long long>(got), what));
}

void need_given(const char* name, const Ints& ints) {
  if (!ints.given) throw Fault(text("%s is missing", name));
}

void need_absent(const char* name, const Ints& ints, const char* why) {
  if (ints.given) throw Fault(text("%s is given, but %s", name, why));
}

void need_size(const char* name, const Ints& ints, std::int64_t size, const char* of) {
  if (ints.size != size)
    throw Fault(text("%s has %lld entries, need %lld (%s)", name, static_cast<long long>(ints.size),
                     static_cast<long long>(size), of));
}

// An indptr of `rows + 1` entries: starts at 0, never decreases, fits 32 bits.
void need_indptr(const char* name, const Ints& ints) {
  if (ints.size < 1) throw Fault(text("%s is empty, need a leading 0", name));
  if (ints[0] != 0) throw Fault(text("%s[0] is %lld, need 0", name, static_cast<long long>(ints[0])));
  std::int64_t previous = 0;
  for (std::int64_t i = 1; i < ints.size; ++i) {
    const std::int64_t value = ints[i];
    if (value < previous)
      throw Fault(text("%s[%lld] is %lld after %lld, need an indptr that never decreases", name,
                       static_cast<long long>(i), static_cast<long long>(value), static_cast<long long>(previous)));
    previous = value;
  }
  if (previous > kMax)
    throw Fault(text("%s ends at %lld, need at most %lld", name, static_cast<long long>(previous),
                     static_cast<long long>(kMax)));
}

// What a pass over values found: negative where one lies outside [0, last], and the largest.
struct Scan {
  std::int64_t outside, largest;
};

#if defined(__x86_64__)
#define ATTNGEN_WIDE __attribute__((optimize("O3"), target_clones("avx2", "default")))
#else
#define ATTNGEN_WIDE
#endif

// One branchless pass, so that it vectorises: v | (last - v) is negative for a value outside.
ATTNGEN_WIDE Scan copy_checked(const std::int32_t* from, std::int64_t count, std::int32_t last, std::int32_t* to) {
  std::int32_t outside = 0, largest = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t value = from[i];
    const auto left = static_cast<std::uint32_t>(last) - static_cast<std::uint32_t>(value);
    outside |= value | static_cast<std::int32_t>(left);
    largest = value > largest ? value : largest;
    to[i] = value;
  }
  return {outside, largest};
}

ATTNGEN_WIDE Scan copy_checked(const std::int64_t* from, std::int64_t count, std::int32_t last, std::int32_t* to) {
  std::int64_t outside = 0, largest = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = from[i];
    const auto left = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(value);
    outside |= value | static_cast<std::int64_t>(left);
    largest = value > largest ? value : largest;
    to[i] = static_cast<std::int32_t>(value);
  }
  return {outside, largest};
}

// Copies ints[from, from + count), each in [0, last], and returns the largest (-1: none).
std::int64_t copy_ints(const char* name, const Ints& ints, std::int64_t from, std::int64_t count, std::int64_t last,
                       std::int32_t* to) {
  const auto top = static_cast<std::int32_t>(last);
  const Scan scan = ints.wide ? copy_checked(static_cast<const std::int64_t*>(ints.data) + from, count, top, to)
                              : copy_checked(static_cast<const std::int32_t*>(ints.data) + from, count, top, to);
  for (std::int64_t i = from; scan.outside < 0 && i < from + count; ++i)
    if (ints[i] < 0 || ints[i] > last)
      throw Fault(text("%s[%lld] is %lld, need 0 to %lld", name, static_cast<long long>(i),
                       static_cast<long long>(ints[i]), static_cast<long long>(last)));
  return scan.largest;
}

Order order_of(const std::int32_t* positions, std::int64_t blocks, std::int64_t block_size) {
  bool shifted = true;
  for (std::int64_t i = 1; i < blocks; ++i) {
    const std::int64_t step = std::int64_t{positions[i]} - positions[i - 1];
    if (step < block_size) return Order::kUnsorted;
    shifted &= step == block_size;
  }
  return shifted ? Order::kShifted : Order::kSorted;
}

// What the positions of a level's lists say of one of them.
void order_row(const std::int32_t* positions, std::int32_t block_size, BlockRow* row) {
  const std::int64_t blocks = ceil_div(row->keys, block_size);
  row->positions = positions + row->list;
  row->order = order_of(row->positions, blocks, block_size);
  row->shift = blocks > 0 ? row->positions[0] : 0;
}

// Blocks that lie at their place in the sequence.
void place_blocks(const std::int32_t* blocks, std::int64_t count, std::int32_t block_size, std::int32_t* positions) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = std::int64_t{blocks[i]} * block_size;
    if (position > kMax - block_size)
      throw Fault(text("kv_indices: block %d lies at a position beyond 2**31 - 1", blocks[i]));
    positions[i] = static_cast<std::int32_t>(position);
  }
}

}  // namespace

std::string text(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

std::int64_t Planner::allocate(std::int64_t bytes, std::int64_t alignment) {
  const std::int64_t offset = (used_ + alignment - 1) / alignment * alignment;
  if (offset + bytes > arena_bytes_)
    throw Fault(text("arena has %lld bytes, need at least %lld: size it with workspace_bytes()",
                     static_cast<long long>(arena_bytes_), static_cast<long long>(offset + bytes)));
  used_ = offset + bytes;
  return offset;
}

void Planner::add_row(std::int64_t list, std::int32_t level, std::int32_t token_begin, std::int32_t token_end,
                      std::int32_t keys) {
  BlockRow& row = rows_.emplace_back();
  row.list = list;
  row.level = level;
  row.token_begin = token_begin;
  row.token_end = token_end;
  row.keys = keys;
}

void Planner::read(const Input& input) {
  arena_ = input.arena;
  arena_bytes_ = input.arena_bytes;
  bounds_.bind(input.scalars);
  arena_address_ = input.arena_address;
  num_blocks_ = input.num_blocks;
  used_ = num_slots_ = entries_ = level_rows_ = 0;
  rows_.clear();
  tokens_.clear();
  block_sizes_.clear();
  shared_ = !input.levels.empty();
  lay_out(input);
  read_requests(input);
  read_lengths(input);
  describe();
  read_lists(input);
}

// The fixed part of the arena: the header, worker records, levels and scalars.
void Planner::lay_out(const Input& input) {
  static_assert(sizeof(PlanHeader) <= kWorkersAt && sizeof(Worker) == 128 && sizeof(Item) == 80);
  allocate(kWorkersAt);
  auto* header = at<PlanHeader>(0);
  *header = PlanHeader{};  // version 0: no plan, until this one is whole
  if (shared_ && config_.batch_invariant) throw Fault("levels are given, but batch_invariant plans have none");
  need_limit("levels", static_cast<std::int64_t>(input.levels.size()), config_.limits.levels, "levels");
  // The last level numbers token rows directly; items of rows without keys belong to it.
  const std::int64_t levels = static_cast<std::int64_t>(input.levels.size()) + 1;
  header->num_workers = config_.num_workers;
  header->num_levels = static_cast<std::int32_t>(levels);
  header->workers_at = allocate(config_.num_workers * static_cast<std::int64_t>(sizeof(Worker)));
  header->levels_at = allocate((config_.limits.levels + 1) * static_cast<std::int64_t>(sizeof(Level)));
  header->scalars_at = allocate(config_.num_scalars * static_cast<std::int64_t>(sizeof(std::int64_t)));
  std::fill_n(at<Level>(header->levels_at), levels, Level{0, 0, 0, config_.block_size, 0});
  std::copy_n(input.scalars, config_.num_scalars, at<std::int64_t>(header->scalars_at));
}

void Planner::read_requests(const Input& input) {
  const Ints& qo = input.qo_indptr;
  const Limits& limits = config_.limits;
  need_given("qo_indptr", qo);
  need_indptr("qo_indptr", qo);
  need_limit("batch", qo.size - 1, limits.batch, "requests");
  need_limit("q_tokens", qo[qo.size - 1], limits.q_tokens, "query rows (qo_indptr[-1])");
  batch_ = static_cast<std::int32_t>(qo.size - 1);
  num_rows_ = static_cast<std::int32_t>(qo[batch_]);
  if (std::int64_t{num_rows_} * config_.group > kMax)
    throw Fault(text("qo_indptr[-1] is %d: times the head group of %d it exceeds 32 bits", num_rows_, config_.group));
  auto* copied = at<std::int32_t>(allocate((batch_ + 1) * 4));
  qo_ = copied;
  for (std::int32_t b = 0; b <= batch_; ++b) copied[b] = static_cast<std::int32_t>(qo[b]);
  auto* request = at<std::int32_t>(allocate(std::int64_t{num_rows_} * 4));
  row_request_ = request;
  max_q_len_ = 0;
  for (std::int32_t b = 0; b < batch_; ++b) {
    max_q_len_ = std::max(max_q_len_, copied[b + 1] - copied[b]);
    std::fill(request + copied[b], request + copied[b + 1], b);
  }
  need_limit("q_len", max_q_len_, limits.q_len, "query rows of one request");
}

void Planner::read_last_pages(const Ints& last, const Ints& indptr, std::int32_t* kv_len) const {
  need_given("last_page_len", last);
  need_size("last_page_len", last, batch_, "requests");
  for (std::int32_t b = 0; b < batch_; ++b) {
    const std::int64_t blocks = indptr[b + 1] - indptr[b], tail = last[b];
    const std::int64_t least = blocks > 0, most = blocks > 0 ? config_.block_size : 0;
    if (tail < least || tail > most)
      throw Fault(text("last_page_len[%d] is %lld, need %s", b, static_cast<long long>(tail),
                       blocks > 0 ? text("1 to the page size of %d", config_.block_size).c_str()
                                  : "0 for a request without pages"));
    const std::int64_t length = blocks > 0 ? (blocks - 1) * config_.block_size + tail : 0;
    if (length > kMax) throw Fault(text("kv_indptr gives request %d more than 2**31 - 1 keys", b));
    kv_len[b] = static_cast<std::int32_t>(length);
  }
}

// The logical length of each request's cache.
void Planner::read_lengths(const Input& input) {
  const Ints &given = input.kv_len, &indptr = input.kv_indptr, &last = input.last_page_len;
  const bool levels = !input.levels.empty();
  const bool paged = config_.storage == Storage::kPaged && !levels && !input.kv_positions.given;
  auto* kv_len = at<std::int32_t>(allocate(std::int64_t{batch_} * 4));
  kv_len_ = kv_len;
  if (!paged) need_absent("last_page_len", last, "lengths come as kv_len here");
  const bool ragged = config_.storage == Storage::kRagged && !levels;
  if ((paged || ragged) && !indptr.given) throw Fault("kv_indptr is missing");
  if (paged || ragged) {
    need_given("kv_indptr", indptr);
    need_indptr("kv_indptr", indptr);
    need_size("kv_indptr", indptr, batch_ + 1, "requests + 1");
  }
  if (given.given && last.given) throw Fault("kv_len and last_page_len are both given, need one");
  const std::int64_t size = config_.block_size;
  if (given.given) {
    need_given("kv_len", given);
    need_size("kv_len", given, batch_, "requests");
    copy_ints("kv_len", given, 0, batch_, kMax, kv_len);
  } else if (last.given) {
    read_last_pages(last, indptr, kv_len);
  } else if (ragged) {
    for (std::int32_t b = 0; b < batch_; ++b) kv_len[b] = static_cast<std::int32_t>(indptr[b + 1] - indptr[b]);
  } else if (config_.storage == Storage::kDense && !levels) {
    std::fill(kv_len, kv_len + batch_, config_.block_size);
  } else {
    throw Fault(paged ? "kv_len is missing (or last_page_len)" : "kv_len is missing");
  }
  std::int64_t total = 0;
  max_kv_len_ = 0;
  for (std::int32_t b = 0; b < batch_; ++b) {
    const std::int64_t blocks = paged || ragged ? indptr[b + 1] - indptr[b] : config_.storage == Storage::kDense;
    if ((paged || ragged || (config_.storage == Storage::kDense && !levels)) && kv_len[b] > blocks * size)
      throw Fault(text("kv_len[%d] is %d, need at most %lld (%lld blocks of %d)", b, kv_len[b],
                       static_cast<long long>(blocks * size), static_cast<long long>(blocks), config_.block_size));
    total += kv_len[b];
    max_kv_len_ = std::max(max_kv_len_, kv_len[b]);
  }
  need_limit("kv_len", max_kv_len_, config_.limits.kv_len, "keys of one request");
  need_limit("kv_tokens", total, config_.limits.kv_tokens, "keys in total");
}

// What the header says of the batch.
void Planner::describe() {
  auto* header = at<PlanHeader>(0);
  header->batch = batch_;
  header->num_rows = num_rows_;
  header->max_q_len = max_q_len_;
  header->max_kv_len = max_kv_len_;
  const auto offset = [this](const void* place) { return static_cast<const std::byte*>(place) - arena_; };
  header->qo_indptr_at = offset(qo_);
  header->row_request_at = offset(row_request_);
  header->kv_len_at = offset(kv_len_);
}

void Planner::read_lists(const Input& input) {
  if (!input.levels.empty()) {
    need_absent("kv_indptr", input.kv_indptr, "levels list all keys");
    need_absent("kv_indices", input.kv_indices, "levels list all keys");
    need_absent("kv_positions", input.kv_positions, "levels list all keys");
    for (std::size_t i = 0; i < input.levels.size(); ++i) read_level(input.levels[i], static_cast<std::int32_t>(i));
  }
  tokens_.push_back(nullptr);
  block_sizes_.push_back(config_.block_size);
  if (shared_) return;
  if (config_.storage == Storage::kPaged || config_.storage == Storage::kBlockSparse) {
    read_block_rows(input);
    return;
  }
  need_absent("kv_indices", input.kv_indices, "this storage has no block lists");
  need_absent("kv_positions", input.kv_positions, "this storage has no block lists");
  const bool dense = config_.storage == Storage::kDense;
  if (dense) need_absent("kv_indptr", input.kv_indptr, "Dense lists no blocks");
  if (dense && num_blocks_ >= 0 && batch_ > num_blocks_)
    throw Fault(text("qo_indptr has %d requests, the pool has %lld", batch_, static_cast<long long>(num_blocks_)));
  if (!dense && num_blocks_ >= 0 && input.kv_indptr[batch_] > num_blocks_)
    throw Fault(text("kv_indptr ends at %lld, need at most the pool's %lld rows",
                     static_cast<long long>(input.kv_indptr[batch_]), static_cast<long long>(num_blocks_)));
  num_slots_ = dense ? std::int64_t{batch_} * config_.block_size : input.kv_indptr[batch_];
  for (std::int32_t b = 0; b < batch_; ++b)
    if (qo_[b] < qo_[b + 1])
      add_row(dense ? b : input.kv_indptr[b], 0, qo_[b], qo_[b + 1], kv_len_[b]);
}

// Paged: one list a request.  BlockSparse: one for each `block_rows` rows of a request.
void Planner::read_block_rows(const Input& input) {
  const Ints &indptr = input.kv_indptr, &indices = input.kv_indices, &positions = input.kv_positions;
  const bool sparse = config_.storage == Storage::kBlockSparse, listed = sparse || positions.given;
  std::int64_t rows = batch_;
  const auto step = [&](std::int32_t b) { return sparse ? config_.block_rows : std::max(1, qo_[b + 1] - qo_[b]); };
  if (listed) {
    need_given("kv_indptr", indptr);
    need_indptr("kv_indptr", indptr);
    if (sparse) rows = 0;
    for (std::int32_t b = 0; sparse && b < batch_; ++b) rows += ceil_div(qo_[b + 1] - qo_[b], config_.block_rows);
    need_size("kv_indptr", indptr, rows + 1, "block rows + 1");
  }
  if (!indices.given) throw Fault("kv_indices is missing");
  if (indices.size < indptr[rows])
    throw Fault(text("kv_indices has %lld entries, need kv_indptr[-1] = %lld", static_cast<long long>(indices.size),
                     static_cast<long long>(indptr[rows])));
  if (positions.given) {
    if (positions.size < indptr[rows])
      throw Fault(text("kv_positions has %lld entries, need kv_indptr[-1] = %lld",
                       static_cast<long long>(positions.size), static_cast<long long>(indptr[rows])));
  } else if (sparse && indices.device) {
    throw Fault("kv_positions is missing: BlockSparse needs it where kv_indices is on a device");
  } else if (sparse && batch_ > 1) {
    throw Fault("kv_positions is missing: BlockSparse needs it for more than one request");
  }
  std::int64_t entries = 0, row = 0;
  for (std::int32_t b = 0; b < batch_; ++b)
    for (std::int32_t begin = qo_[b]; begin < qo_[b + 1] || (!sparse && begin == qo_[b]); begin += step(b), ++row) {
      if (begin == qo_[b + 1]) continue;  // no rows, nobody reads the list
      const std::int64_t blocks =
          listed ? indptr[row + 1] - indptr[row] : ceil_div(kv_len_[b], config_.block_size);
      if (blocks * config_.block_size > kMax)
        throw Fault(text("kv_indptr[%lld] gives more than 2**31 - 1 keys", static_cast<long long>(row + 1)));
      const auto keys = static_cast<std::int32_t>(listed ? blocks * config_.block_size : kv_len_[b]);
      add_row(indptr[row], 0, begin, std::min(begin + step(b), qo_[b + 1]), keys);
      entries += blocks;
    }
  if (indices.device || positions.device)
    return keep_lists("", 0, indices, positions, indptr[rows], config_.block_size, 0);
  copy_lists("", 0, indices, positions, entries, config_.block_size, 0, sparse);
}

// The largest block that a list may name.
std::int64_t Planner::last_block(std::int32_t block_size) const {
  return num_blocks_ >= 0 ? num_blocks_ * config_.block_size / block_size - 1 : kMax - 1;
}

// Where a list on the GPU lies from the arena's copy there, or where this copies one of the host's.
std::int64_t Planner::place_list(const std::string& name, const Ints& list, std::int64_t size, std::int64_t last) {
  if (list.device) return reinterpret_cast<std::int64_t>(list.data) - arena_address_;
  need_limit("blocks", entries_ += size, config_.limits.blocks, "entries of kv_indices");
  const std::int64_t offset = allocate(size * 4);
  copy_ints(name.c_str(), list, 0, size, last, at<std::int32_t>(offset));
  return offset;
}

// Lists of which the GPU holds one or both keep their numbering.  Positions on the GPU are unknown here, so that every
// key is visited and masked; indices there are unchecked.
void Planner::keep_lists(const char* prefix, std::int32_t level, const Ints& indices, const Ints& positions,
                         std::int64_t size, std::int32_t block_size, std::size_t first_row) {
  Level& view = at<Level>(at<PlanHeader>(0)->levels_at)[level];
  view.indices = place_list(std::string(prefix) + "kv_indices", indices, size, last_block(block_size));
  if (!indices.device) {
    const auto* blocks = at<std::int32_t>(view.indices);
    for (std::int64_t i = 0; i < size; ++i)
      num_slots_ = std::max(num_slots_, (std::int64_t{blocks[i]} + 1) * block_size);
  }
  if (!positions.given) return;
  view.positions = place_list(std::string(prefix) + "kv_positions", positions, size, kMax - block_size);
  for (std::size_t i = first_row; i < rows_.size(); ++i) {
    rows_[i].order = Order::kUnsorted;
    if (!positions.device) order_row(at<std::int32_t>(view.positions), block_size, &rows_[i]);
  }
}

// Moves the lists of block rows [first_row, …) into the arena; their `list` then counts the level's own entries.
void Planner::copy_lists(const char* prefix, std::int32_t level, const Ints& indices, const Ints& positions,
                         std::int64_t entries, std::int32_t block_size, std::size_t first_row, bool by_index) {
  need_limit("blocks", entries_ += entries, config_.limits.blocks, "entries of kv_indices");
  Level& view = at<Level>(at<PlanHeader>(0)->levels_at)[level];
  const bool placed = positions.given || by_index;
  view.indices = allocate(entries * 4);
  auto* to = at<std::int32_t>(view.indices);
  std::int32_t* place = nullptr;
  if (placed) {
    view.positions = allocate(entries * 4);
    place = at<std::int32_t>(view.positions);
  }
  const std::string index_name = std::string(prefix) + "kv_indices", place_name = std::string(prefix) + "kv_positions";
  const std::int64_t last = last_block(block_size);
  // Lists that follow each other are copied at once.
  std::int64_t cursor = 0, run_from = 0, run = 0, largest = -1;
  const auto copy_run = [&] {
    const std::int64_t begin = cursor - run;
    largest = std::max(largest, copy_ints(index_name.c_str(), indices, run_from, run, last, to + begin));
    if (positions.given) copy_ints(place_name.c_str(), positions, run_from, run, kMax - block_size, place + begin);
  };
  for (std::size_t i = first_row; i < rows_.size(); ++i) {
    BlockRow& row = rows_[i];
    if (row.list != run_from + run) {
      copy_run();
      run_from = row.list, run = 0;
    }
    const std::int64_t blocks = ceil_div(row.keys, block_size);
    row.list = cursor;
    cursor += blocks, run += blocks;
  }
  copy_run();
  num_slots_ = std::max(num_slots_, (largest + 1) * block_size);
  if (!placed) return;
  if (!positions.given) place_blocks(to, entries, block_size, place);
  for (std::size_t i = first_row; i < rows_.size(); ++i) order_row(place, block_size, &rows_[i]);
}

// What can be said of a level without reading its lists; returns its block rows.
std::int64_t Planner::check_level(const LevelInput& input, const std::string& prefix) {
  const auto name = [&](const char* argument) { return prefix + argument; };
  const Ints &qo = input.qo_indptr, &indptr = input.kv_indptr;
  need_given(name("qo_indptr").c_str(), qo);
  need_indptr(name("qo_indptr").c_str(), qo);
  const std::int64_t rows = qo.size - 1, covered = qo[rows];
  need_given(name("kv_indptr").c_str(), indptr);
  need_indptr(name("kv_indptr").c_str(), indptr);
  need_size(name("kv_indptr").c_str(), indptr, rows + 1, "block rows + 1");
  if (!input.kv_indices.given) throw Fault(name("kv_indices is missing"));
  const std::pair<const char*, const Ints*> lists[] = {{"kv_indices", &input.kv_indices},
                                                       {"kv_positions", &input.kv_positions}};
  for (const auto& [argument, ints] : lists)
    if (ints->given && ints->size < indptr[rows])
      throw Fault(text("%s has %lld entries, need kv_indptr[-1] = %lld", name(argument).c_str(),
                       static_cast<long long>(ints->size), static_cast<long long>(indptr[rows])));
  if (input.kv_positions.given) need_given(name("kv_positions").c_str(), input.kv_positions);
  if (input.block_size < 1)
    throw Fault(text("%s is %d, need at least 1", name("block_size").c_str(), input.block_size));
  if (input.kv_len.given) {
    need_given(name("kv_len").c_str(), input.kv_len);
    need_size(name("kv_len").c_str(), input.kv_len, rows, "block rows");
  }
  need_limit("level_rows", level_rows_ += covered, config_.limits.level_rows, "token rows over all levels");
  return rows;
}

// Copies the token rows that a level gathers.
void Planner::read_tokens(const Ints& given, const std::string& name, std::int64_t covered, std::int32_t level) {
  need_given(name.c_str(), given);
  need_size(name.c_str(), given, covered, "qo_indptr[-1]");
  Level& view = at<Level>(at<PlanHeader>(0)->levels_at)[level];
  view.tokens = allocate(covered * 4);
  auto* tokens = at<std::int32_t>(view.tokens);
  copy_ints(name.c_str(), given, 0, covered, std::int64_t{num_rows_} - 1, tokens);
  stamp_.assign(static_cast<std::size_t>(num_rows_), 0);
  for (std::int64_t t = 0; t < covered; ++t)
    if (stamp_[static_cast<std::size_t>(tokens[t])]++ != 0)
      throw Fault(text("%s[%lld] is %d again, need each token row once a level", name.c_str(),
                       static_cast<long long>(t), tokens[t]));
  tokens_.back() = tokens;
}

void Planner::read_level(const LevelInput& input, std::int32_t level) {
  const std::string prefix = text("levels[%d].", level);
  const std::int64_t rows = check_level(input, prefix), covered = input.qo_indptr[rows];
  const Ints &qo = input.qo_indptr, &indptr = input.kv_indptr;
  Level& view = at<Level>(at<PlanHeader>(0)->levels_at)[level];
  view.block_size = input.block_size;
  tokens_.push_back(nullptr);
  block_sizes_.push_back(input.block_size);
  if (input.tokens.given) {
    read_tokens(input.tokens, prefix + "tokens", covered, level);
  } else if (covered > num_rows_) {
    throw Fault(text("%sqo_indptr ends at %lld, need at most qo_indptr[-1] = %d", prefix.c_str(),
                     static_cast<long long>(covered), num_rows_));
  }
  const std::size_t first_row = rows_.size();
  std::int64_t entries = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t room = (indptr[r + 1] - indptr[r]) * input.block_size;
    const std::int64_t keys = input.kv_len.given ? input.kv_len[r] : room;
    if (keys < 0 || keys > std::min(room, kMax))
      throw Fault(text("%skv_len[%lld] is %lld, need 0 to %lld (its blocks)", prefix.c_str(),
                       static_cast<long long>(r), static_cast<long long>(keys),
                       static_cast<long long>(std::min(room, kMax))));
    if (keys == 0 || qo[r] == qo[r + 1]) continue;
    add_row(indptr[r], level, static_cast<std::int32_t>(qo[r]), static_cast<std::int32_t>(qo[r + 1]),
            static_cast<std::int32_t>(keys));
    entries += ceil_div(keys, input.block_size);
  }
  const Ints &indices = input.kv_indices, &positions = input.kv_positions;
  if (indices.device || positions.device)
    return keep_lists(prefix.c_str(), level, indices, positions, indptr[rows], input.block_size, first_row);
  copy_lists(prefix.c_str(), level, indices, positions, entries, input.block_size, first_row, false);
}

}  // namespace attngen::plan
