// A persistent CTA: walks its worker's items, the next one fetched while this one is computed.
#pragma once

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

// Runs attend(item, level, prefetch) for every item of this CTA's worker.  `attend` calls prefetch() once, which asks
// for the next item by copies of the group that is committed next, and leaves every thread past its last use of the
// tiles and of its copies.
template <class S, class Fn, class Attend>
ATTNGEN_DEVICE void each_item(const Params& params, Books<S, Fn>& books, const Attend& attend) {
  const char* arena = reinterpret_cast<const char*>(params.plan);
  const auto& worker =
      reinterpret_cast<const Worker*>(arena + kWorkersAt)[params.first_worker + static_cast<int>(blockIdx.x)];
  const auto levels = [&] {  // opaque, or it would take two registers throughout
    return reinterpret_cast<const Level*>(ptx::opaque(arena) + params.levels_at);
  };
  if (worker.item_begin == worker.item_end) return;
  constexpr int kPieces = sizeof(Item) / 16;
  const auto fetch = [&](Item* to, const Item* item) {
    if (ptx::thread() < kPieces)
      ptx::copy_async<16>(ptx::shared_address(to) + 16 * threadIdx.x, reinterpret_cast<const uint4*>(item) + threadIdx.x,
                          16);
  };
  if (ptx::thread() == 0) {
    books.level = levels()[0];
    books.items_done = worker.item_begin;
    books.items_end = worker.item_end;
    books.move = worker.move;
  }
  fetch(&books.item, &worker.first);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncthreads();
  do {
    const Item& item = books.item;
    attend(item, item.level == 0 ? books.level : levels()[item.level], [&] {
      const std::int32_t next = books.items_done + 1;
      if (next < books.items_end)
        fetch(&books.next_item, reinterpret_cast<const Item*>(arena + params.plan->items_at) + next);
    });
    __syncthreads();
    if (ptx::thread() == 0) {
      ++books.items_done;
      books.item = moved(books.next_item, books.move);
    }
    __syncthreads();
  } while (books.items_done < books.items_end);
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
