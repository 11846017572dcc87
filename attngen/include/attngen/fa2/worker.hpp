// A persistent CTA: walks its worker's items, the next one fetched while this one is computed.
#pragma once

#include "attngen/fa2/convert.hpp"
#include "attngen/fa2/finish.hpp"
#include "attngen/fa2/keys.hpp"
#include "attngen/fa2/warp.hpp"

namespace attngen::fa2 {

extern __shared__ __align__(128) char dynamic_shared[];

// kTiles bytes of tiles, then the books, then `room` of vector stages.
template <class S, class Fn, int kTiles>
struct SharedMemory {
  static constexpr int kBooks = round_up(kTiles, 16);
  static constexpr int kRoom = round_up(kBooks + static_cast<int>(sizeof(Books<S, Fn>)), 16);
  static constexpr bool kUsesRoom = Fn::kUsesLaneAt || S::kHeadDim % 16 != 0 || S::kHeadDimV % 16 != 0;
  static constexpr int kRoomFloats = VectorLayout<S::kHeadDim>::kRows * VectorLayout<S::kHeadDim>::kRoom >
                                             VectorLayout<S::kHeadDimV>::kRows * VectorLayout<S::kHeadDimV>::kRoom
                                         ? VectorLayout<S::kHeadDim>::kRows * VectorLayout<S::kHeadDim>::kRoom
                                         : VectorLayout<S::kHeadDimV>::kRows * VectorLayout<S::kHeadDimV>::kRoom;
  static constexpr int kBytes = kRoom + (kUsesRoom ? S::kWarps * kRoomFloats * 4 : 0);
  static_assert(kBytes <= S::kSharedBytes, "shared memory: the kernel needs more than its tile's row says");

  ATTNGEN_DEVICE static Books<S, Fn>& books() { return *reinterpret_cast<Books<S, Fn>*>(dynamic_shared + kBooks); }
  ATTNGEN_DEVICE static float* room() {
    return reinterpret_cast<float*>(dynamic_shared + kRoom) + (kUsesRoom ? ptx::warp() * kRoomFloats : 0);
  }
};

// For every item of this CTA's worker:
//   attend(item, level, prefetch)   makes its rows, and leaves every thread past its last use of the tiles and of its
//                                   copies; calls prefetch() once, which asks for the next item by copies of the group
//                                   that is committed next
//   leave(item)                     stores them, while the first entries of the next item's lists come
// Between an item's leave() and the next one's attend() warps don't meet.
template <class S, class Fn, class Attend, class Leave>
ATTNGEN_DEVICE void each_item(const Params& params, Books<S, Fn>& books, KeyLoader<S, Fn>& loader, const Attend& attend,
                              const Leave& leave) {
  const char* arena = reinterpret_cast<const char*>(params.plan);
  const auto& worker =
      reinterpret_cast<const Worker*>(arena + kWorkersAt)[params.first_worker + static_cast<int>(blockIdx.x)];
  if (worker.item_begin == worker.item_end) return;
  const auto levels = [&] {  // opaque, or it would take two registers throughout
    return reinterpret_cast<const Level*>(ptx::opaque(arena) + params.levels_at);
  };
  const auto level_of = [&](const Item& item) -> const Level& {
    return item.level == 0 ? books.level : levels()[item.level];
  };
  const auto slot = [&](std::int32_t i) -> Item& { return books.items[i % kItems]; };
  const auto fetch = [](Item& to, const Item* item) {
    if (ptx::thread() < static_cast<int>(sizeof(Item) / 16))
      ptx::copy_async<16>(ptx::shared_address(&to) + 16 * threadIdx.x, reinterpret_cast<const uint4*>(item) + threadIdx.x,
                          16);
  };
  fetch(slot(worker.item_begin), &worker.first);
  if (ptx::thread() == 0) {
    books.level = levels()[0];
    books.item = worker.item_begin;
    books.item_end = worker.item_end;
    books.move = worker.move;
    books.plan_items = reinterpret_cast<const Item*>(arena + worker.items_at);
    books.plan_merges = reinterpret_cast<const Merge*>(arena + worker.merges_at);
  }
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncthreads();
  if (ptx::thread() == 0) loader.locate(slot(books.item), level_of(slot(books.item)));
  __syncthreads();
  loader.start(slot(books.item));
  for (;;) {
    const Item& item = slot(books.item);
    attend(item, level_of(item), [&] {
      const std::int32_t next = books.item + 1;
      if (next < books.item_end) fetch(slot(next), books.plan_items + next);
    });
    const std::int32_t own = books.item, next = own + 1;
    const bool more = next < books.item_end;
    __syncthreads();
    if (more) {
      if (ptx::thread() == 0) {
        books.item = next;
        slot(next) = moved(slot(next), books.move);
        loader.locate(slot(next), level_of(slot(next)));
      }
      __syncthreads();
      loader.start(slot(next));
    }
    leave(slot(own));
    if (!more) break;
  }
}

// The functor of a launch, its tables filled; all threads.
template <class S, class Fn, int kWords>
ATTNGEN_DEVICE Fn make_functor(const Launch<kWords>& launch, Books<S, Fn>& books) {
  const Params& params = launch.params;
  Fn fn(launch.words, {S::kHeadDim, S::kHeadDimV, params.num_qo_heads, params.num_kv_heads, params.group});
  if constexpr (Fn::kHasTables) {
    fn.fill(books.tables, threadIdx.x, S::kThreads);
    __syncthreads();
    fn.derive(books.tables, threadIdx.x, S::kThreads);
    fn.tables = &books.tables;
  }
  return fn;
}

}  // namespace attngen::fa2
