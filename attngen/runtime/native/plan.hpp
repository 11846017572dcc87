// The planner: lengths and index lists in, work queues in one arena out.  Integers only, so that a plan is the same
// bits everywhere.
//
//   read      checks the arguments and copies the key lists into the arena       plan_input.cpp
//   divide    cuts block rows into tasks: a tile of packed rows × a key range     plan_tasks.cpp
//   balance   gives pieces of (task, KV head) to workers                          plan_balance.cpp
//   emit      writes items, segments and merges                                   plan_emit.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "attngen/work.hpp"
#include "bounds.hpp"

namespace attngen::plan {

// A tile with at most this many packed rows belongs to the decode class, whose items are cut freely along the keys.
inline constexpr std::int32_t kDecodeRows = 32;

// Wrong input; the text names the argument, what it got and what it needs.
struct Fault : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

enum class Storage : std::int64_t { kPaged = 0, kRagged = 1, kDense = 2, kBlockSparse = 3 };

// Costs are in units of 1/1024 of the cheapest tile.
struct TileCost {
  std::int32_t rows, keys, queue;
  std::int64_t a, b, c;
};

struct Limits {
  std::int64_t batch, q_tokens, q_len, kv_tokens, kv_len, levels, level_rows, blocks, partial_rows, merges;
};

struct Config {
  std::int32_t num_qo_heads, num_kv_heads, group, num_workers, num_scalars;
  Storage storage;
  std::int32_t block_size;   // page size, 1 for Ragged, the capacity of a request for Dense, bc for BlockSparse
  std::int32_t block_rows;   // br for BlockSparse
  bool batch_invariant;
  std::int64_t chunk_tiles;  // of the smallest chunk with batch_invariant
  std::int64_t max_chunks;   // of one request's tiles together with batch_invariant
  Limits limits;
  std::vector<std::int32_t> queues;  // workers of each, num_workers in all
  std::vector<TileCost> tiles;       // in the order of the manifests
};

// A caller's array of 32- or 64-bit integers in host memory, or of 32-bit ones on the GPU that only kernels read.
struct Ints {
  const void* data = nullptr;
  std::int64_t size = 0;
  bool given = false, wide = false, device = false;

  std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
};

struct LevelInput {
  Ints qo_indptr, tokens, kv_indptr, kv_indices, kv_len, kv_positions;
  std::int32_t block_size;
};

struct Input {
  std::byte* arena;
  std::int64_t arena_bytes;
  Ints qo_indptr, kv_indptr, kv_indices, kv_len, last_page_len, kv_positions;
  std::int64_t arena_address = 0;  // of the arena's copy on a GPU; 0: there is none
  std::int64_t num_blocks = -1;    // of the pool; negative: not known
  const std::int64_t* scalars = nullptr;
  std::vector<LevelInput> levels;
};

// How logical positions run along a key list.
enum class Order : std::int8_t { kShifted, kSorted, kUnsorted };

// Token rows of one view that visit one key list.
struct BlockRow {
  std::int64_t list = 0;  // first block, as an item names it
  std::int32_t level = 0;
  std::int32_t token_begin = 0, token_end = 0;
  std::int32_t keys = 0;   // length of the list
  std::int32_t shift = 0;  // kShifted: position of key 0
  Order order = Order::kShifted;
  const std::int32_t* positions = nullptr;  // kSorted: of each block's first key
};

// A tile of packed rows against a range of one key list, for every KV head.
struct Task {
  std::int64_t list;
  std::int64_t cost;
  std::int32_t level, tile, packed_begin, packed_count;
  std::int32_t kv_begin, kv_end, full_from, full_to;
  std::int32_t request, tiles;
  bool several;  // its rows may belong to other requests than `request` too
};

// Keys [kv_begin, kv_end) of a task for one KV head, done by one worker of a group.
struct Piece {
  std::int32_t task, head, kv_begin, kv_end, worker;
};

// Workers [first_worker, first_worker + groups · workers): `groups` groups of KV heads and workers that work alike, and
// the pieces of the first.  All that follows counts the first group alone.
struct Schedule {
  std::int32_t first_worker, groups, heads, workers;
  std::size_t piece_begin, piece_end;
  std::size_t segment_begin, segment_end;  // of `segments_`
  std::size_t merge_begin, merge_end;      // of `merges_`
  std::int64_t partial_rows;
};

// How much of each array of the arena is written.
struct Cursor {
  std::int32_t item, segment, merge, partial_row;
};

// Rows that are never separated: every task covers all of them or none.
struct Unit {
  std::int32_t packed_begin, packed_count;
};

struct UnitRef {
  std::int32_t unit, offset;  // from the task's first row
};

class Planner {
 public:
  Planner(Config config, KeyBounds bounds);

  // Writes the plan for `input` into its arena and returns the bytes in use.  Throws Fault and leaves the arena
  // without a valid header where the input is wrong.
  std::int64_t plan(const Input& input);

 private:
  // plan_input.cpp
  void read(const Input& input);
  void read_requests(const Input& input);
  void read_lengths(const Input& input);
  void read_last_pages(const Ints& last, const Ints& indptr, std::int32_t* kv_len) const;
  void lay_out(const Input& input);
  void describe();
  void read_lists(const Input& input);
  void read_block_rows(const Input& input);
  void add_row(std::int64_t list, std::int32_t level, std::int32_t token_begin, std::int32_t token_end,
               std::int32_t keys);
  std::int64_t check_level(const LevelInput& input, const std::string& prefix);
  void read_tokens(const Ints& given, const std::string& name, std::int64_t covered, std::int32_t level);
  void read_level(const LevelInput& input, std::int32_t level);
  void copy_lists(const char* prefix, std::int32_t level, const Ints& indices, const Ints& positions,
                  std::int64_t entries, std::int32_t block_size, std::size_t first_row, bool by_index);
  void keep_lists(const char* prefix, std::int32_t level, const Ints& indices, const Ints& positions,
                  std::int64_t size, std::int32_t block_size, std::size_t first_row);
  std::int64_t place_list(const std::string& name, const Ints& list, std::int64_t size, std::int64_t last);
  std::int64_t last_block(std::int32_t block_size) const;
  std::int64_t allocate(std::int64_t bytes, std::int64_t alignment = 16);
  template <class T>
  T* at(std::int64_t offset) {
    return reinterpret_cast<T*>(arena_ + offset);
  }

  // plan_tasks.cpp
  void divide();
  void divide_row(const BlockRow& row, std::int32_t token_begin, std::int32_t token_end);
  void divide_shared_row(const BlockRow& row);
  void add_task(const BlockRow& row, std::int32_t tile, std::int32_t packed_begin, std::int32_t packed_count,
                std::int32_t first, std::int32_t last);
  std::int32_t tile_for(std::int64_t packed_rows) const;
  std::int32_t token_row(const BlockRow& row, std::int32_t token) const;
  void find_units();
  void cover_rest();
  template <class Visit>
  void each_run(const Task& task, Visit visit) const;

  // plan_balance.cpp
  void balance();
  void balance_queue(std::int32_t queue);
  void unite();
  void chunk_all();
  void assign_longest_first();
  std::int64_t piece_cost(const Piece& piece) const;
  bool cut(std::int64_t limit, bool keep);
  std::int64_t find_limit();
  std::int64_t fewer_parts(std::int64_t limit) const;

  // plan_emit.cpp
  void emit();
  void join(Schedule& schedule);
  void join_tasks(Schedule& schedule);
  void add_merge(Schedule& schedule, std::int32_t first, std::int32_t count, std::int32_t head, std::int32_t parts);
  void place();
  void sort_pieces(const Schedule& schedule);
  void write(const Schedule& schedule, Cursor* done);
  void write_item(const Piece& piece, std::int32_t segment_begin, std::int32_t segment_count, Item* item);
  void write_worker(const Schedule& schedule, std::int32_t local, const Cursor& done);
  void write_merges(const Schedule& schedule, const Cursor& done);

  const Task& task_at(std::int32_t i) const { return tasks_[static_cast<std::size_t>(i)]; }
  const TileCost& tile(const Task& task) const { return config_.tiles[static_cast<std::size_t>(task.tile)]; }

  const Config config_;
  KeyBounds bounds_;

  // Scratch of one plan, kept so that planning allocates nothing once warm.
  std::byte* arena_ = nullptr;
  std::int64_t arena_bytes_ = 0, used_ = 0, num_slots_ = 0;
  std::int64_t arena_address_ = 0, num_blocks_ = -1, entries_ = 0, level_rows_ = 0;
  std::int32_t batch_ = 0, num_rows_ = 0, max_q_len_ = 0, max_kv_len_ = 0;
  const std::int32_t *qo_ = nullptr, *kv_len_ = nullptr, *row_request_ = nullptr;
  bool shared_ = false;                      // levels are given
  std::vector<const std::int32_t*> tokens_;  // a level
  std::vector<std::int32_t> block_sizes_;    // a level
  std::vector<BlockRow> rows_;
  std::vector<Task> tasks_;
  std::vector<std::int32_t> ref_begin_;
  std::vector<UnitRef> refs_;
  std::vector<Unit> units_;
  std::vector<std::int32_t> stamp_;

  std::int32_t heads_ = 0, workers_ = 0;  // KV heads and workers of one group of the queue that is being balanced
  std::vector<std::int32_t> queue_tasks_, whole_tasks_, cut_tasks_, request_tasks_;
  std::vector<Schedule> schedules_;
  std::vector<Piece> pieces_, united_;  // of the first group of each schedule
  std::vector<std::pair<std::int64_t, std::int32_t>> weighted_, heap_;
  std::vector<std::int64_t> load_;
  std::size_t first_piece_ = 0;                            // of the queue that is being balanced
  std::vector<std::int32_t> piece_begin_, segment_begin_;  // a worker of a group

  std::vector<std::int32_t> part_count_, merge_of_;  // a unit and KV head
  std::vector<Segment> segments_;
  std::vector<std::int32_t> piece_segments_;  // first segment of each piece
  std::vector<Merge> merges_;
  std::vector<std::int32_t> order_;           // pieces by worker
};

// "`name[i]` is 3, …" without a sentence's worth of stream code at every check.
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace attngen::plan
