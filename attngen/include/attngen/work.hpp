// What plan() writes and a kernel reads: one arena of fixed size and place, addressed by offsets from its start.
//
// Queues: items whose tiles belong to one kernel, with workers of their own (a CPU's thread, a GPU's CTA).  The workers
// of all queues are numbered in one row, queue after queue.
//
// Packed rows: the rows of one KV head's query group are numbered token · group + (h % group), so that a tile is a
// contiguous range of packed rows.  An item is one such range of one KV head against one range of a key list.
#pragma once

#include <cstdint>

#include "attngen/platform.hpp"

namespace attngen {

inline constexpr std::int32_t kWorkVersion = 5;
inline constexpr std::int32_t kWriteThrough = -1;

// What lies at fixed places, so that a kernel needs no header to find its first item:
//   PlanHeader at 0, Worker[num_workers] at kWorkersAt, Level[limits.levels + 1] behind it, then the plan's scalar
//   arguments, a word each in the manifest's order; the rest where the header says.
inline constexpr std::int64_t kWorkersAt = 256;

// One view of the pool: key lists of blocks.  Key j of a list that starts at block `list` lies in
//   block = indices ? indices[list + j / block_size] : list + j / block_size,   offset = j % block_size,
//   slot  = block · block_size + offset,
//   kv    = positions ? positions[list + j / block_size] + offset : j.
struct Level {
  std::int64_t indices;     // byte offset of i32[] from the arena's start (it may lie outside); 0: affine
  std::int64_t positions;   // byte offset of i32[], the logical position of each block's first key; 0: j itself
  std::int64_t tokens;      // byte offset of i32[], token row of each packed token; 0: the identity
  std::int32_t block_size;
  std::int32_t reserved;
};

// 80 bytes.
struct Item {
  std::int64_t list;            // first block of the key list
  std::int32_t level;
  std::int32_t tile;            // row of the tile table
  std::int32_t kv_head;
  std::int32_t packed_begin;    // first packed row
  std::int32_t packed_count;
  std::int32_t kv_begin;        // range in the key list, in keys
  std::int32_t kv_end;
  std::int32_t full_from;       // keys of the list in [full_from, full_to) need no mask
  std::int32_t full_to;
  std::int32_t segment_begin;   // its rows by merge
  std::int32_t segment_count;
  std::int32_t request;         // of the first row
  std::int32_t q_begin;         // qo_indptr[request], or -1 where rows belong to several requests
  std::int32_t q_len, kv_len;   // of the request
  std::int32_t partial, merge;  // of the first segment
  std::int32_t arrivals;        // of that merge
};

// What a worker adds to the numbers in its items and their segments, which workers that do the same for other KV heads
// share; to `partial` and `merge` where there are such.
struct Move {
  std::int32_t kv_head, partial, merge;
};

// 128 bytes: the worker's range of items, and the first of them at hand.
struct Worker {
  std::int32_t item_begin, item_end;
  Move move;
  std::int32_t reserved0;
  std::int64_t items_at, merges_at;  // the header's, so that a GPU needn't wait for it
  std::int64_t reserved1;
  Item first;                   // items[item_begin], moved already, where there is one
};

// A run of an item's rows that one merge owns.  `partial` is the first of `count` rows in the partial arrays, or
// kWriteThrough where this is the rows' only partial.
struct Segment {
  std::int32_t offset;   // from the item's first packed row
  std::int32_t count;
  std::int32_t partial;
  std::int32_t merge;
};

ATTNGEN_FN Segment moved(Segment segment, const Move& move) {
  if (segment.merge >= 0) segment.partial += move.partial, segment.merge += move.merge;
  return segment;
}

ATTNGEN_FN Item moved(Item item, const Move& move) {
  item.kv_head += move.kv_head;
  if (item.merge >= 0) item.partial += move.partial, item.merge += move.merge;
  return item;
}

// Rows whose partials are merged, part by part in order, by whoever arrives last: part p of row i is partial row
// partial + p · packed_count + i.  Packed rows here number tokens directly (no `tokens` indirection).
struct Merge {
  std::int32_t packed_begin;
  std::int32_t packed_count;
  std::int32_t kv_head;
  std::int32_t partial;
  std::int32_t part_count;
  std::int32_t arrivals;   // segments that must arrive
};

// At offset 0 of the arena; every `…_at` is a byte offset.
struct PlanHeader {
  std::int32_t version;
  std::int32_t num_workers;
  std::int32_t batch;
  std::int32_t num_rows;        // qo_indptr[batch]
  std::int32_t num_items;
  std::int32_t num_segments;
  std::int32_t num_merges;
  std::int32_t num_partial_rows;
  std::int32_t num_levels;
  std::int32_t num_empty;       // rows that no item covers come as items with kv_begin == kv_end, so this counts them
  std::int32_t max_q_len;
  std::int32_t max_kv_len;
  std::int64_t qo_indptr_at;    // i32[batch + 1]
  std::int64_t kv_len_at;       // i32[batch]
  std::int64_t row_request_at;  // i32[num_rows]
  std::int64_t workers_at;      // Worker[num_workers], kWorkersAt
  std::int64_t items_at;        // Item[]
  std::int64_t segments_at;     // Segment[]
  std::int64_t merges_at;       // Merge[]
  std::int64_t levels_at;       // Level[num_levels]
  std::int64_t bytes;           // in use
  std::int64_t num_slots;       // rows that the pool must have
  std::int64_t scalars_at;      // i64[], the plan's scalar arguments
};

// What one launch of a kernel gets.  Strides in elements; addresses of the pool in 64 bits throughout.
struct Strides {
  std::int64_t block, token, head;   // of a K or V pool
};

struct Params {
  const PlanHeader* plan;
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* lse;                   // nullptr: not wanted
  std::int64_t q_row, q_head, out_row, out_head, lse_row, lse_head;
  Strides k_strides, v_strides;
  const std::int64_t* args;     // functor argument words
  float* partial_out;           // f32[partial rows, head_dim_v]; normalised (softmax on) or plain sums
  float* partial_lse;           // f32[partial rows], in log2
  std::uint32_t* arrived;       // one counter a merge, 0 between launches
  double lse_scale;             // ln 2 for natural, 1 for log2
  std::int32_t num_qo_heads, num_kv_heads, group;
  std::int32_t raw;             // leave sink and output to the caller
  std::int64_t levels_at;       // byte offset of Level[] in the arena
  std::int32_t num_levels;      // that the arena has room for
  std::int32_t first_worker;    // of the kernel's queue
};

// The only parameter of a GPU kernel, kLaunchSymbol(const __grid_constant__ Launch<kWords>): `params.args` is not used,
// the argument words follow instead.  Words of scalars given to plan() hold the address of their word in the arena.
template <int kWords>
struct Launch {
  Params params;
  std::int64_t words[kWords];
};
inline constexpr const char* kLaunchSymbol = "attngen_attention";

// Keys of one KV head that the variant's key stage transforms in place, in fp32, when they are appended to a pool that
// holds key(k).  Rows are aligned to 64 bytes, and the lanes from the head dimension up to a multiple of 16 are zero.
struct KeyTransform {
  float* x;                     // f32[count, x_row]
  std::int64_t x_row;           // elements from one key to the next, a multiple of 16
  const std::int32_t* kv;       // logical positions
  const std::int32_t* slot;     // rows of the pool
  const std::int64_t* args;     // functor argument words; those that the key stage doesn't read are harmless zeros
  std::int32_t count, kv_head;
  std::int32_t num_qo_heads, num_kv_heads, group;
  std::int32_t reserved;
};

// What a CPU kernel's shared object exports; the last does nothing where the variant has no key stage.
using CpuWorker = void (*)(const Params*, std::int32_t worker, void* scratch);
using CpuScratchBytes = std::int64_t (*)();
using CpuTransformKeys = void (*)(const KeyTransform*);
inline constexpr const char* kCpuWorkerSymbol = "attngen_cpu_worker";
inline constexpr const char* kCpuScratchSymbol = "attngen_cpu_scratch_bytes";
inline constexpr const char* kCpuTransformSymbol = "attngen_cpu_transform_keys";

}  // namespace attngen
