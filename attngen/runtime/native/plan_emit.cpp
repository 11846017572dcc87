// Writes the schedule into the arena.
#include <algorithm>
#include <limits>

#include "plan.hpp"

namespace attngen::plan {

// Finds where rows have several partials and gives each a place: parts of a merge in the order of `pieces_`, which for
// one task is the order of its keys.
void Planner::join() {
  const auto heads = static_cast<std::size_t>(heads_);
  const std::size_t places = (shared_ ? units_.size() : tasks_.size()) * heads;
  part_count_.assign(places, 0);
  const auto each_unit = [&](const Piece& piece, auto visit) {
    if (!shared_) return visit(static_cast<std::size_t>(piece.task), 0, task_at(piece.task).packed_count);
    for (auto r = static_cast<std::size_t>(ref_begin_[static_cast<std::size_t>(piece.task)]);
         r < static_cast<std::size_t>(ref_begin_[static_cast<std::size_t>(piece.task) + 1]); ++r) {
      const auto unit = static_cast<std::size_t>(refs_[r].unit);
      visit(unit, refs_[r].offset, units_[unit].packed_count);
    }
  };
  for (const Piece& piece : pieces_)
    each_unit(piece, [&](std::size_t unit, std::int32_t, std::int32_t) {
      ++part_count_[unit * heads + static_cast<std::size_t>(piece.head)];
    });
  merge_of_.assign(places, -1);
  merges_.clear();
  merge_rows_.clear();
  segments_.clear();
  piece_segments_.clear();
  partial_rows_ = 0;
  std::int32_t parts = 0;
  for (const Piece& piece : pieces_) {
    piece_segments_.push_back(static_cast<std::int32_t>(segments_.size()));
    each_unit(piece, [&](std::size_t unit, std::int32_t offset, std::int32_t count) {
      const std::size_t place = unit * heads + static_cast<std::size_t>(piece.head);
      if (part_count_[place] == 1) {
        segments_.push_back({offset, count, kWriteThrough, -1});
        return;
      }
      if (merge_of_[place] < 0) {
        merge_of_[place] = static_cast<std::int32_t>(merges_.size());
        const std::int32_t first = shared_ ? units_[unit].packed_begin : task_at(piece.task).packed_begin;
        merges_.push_back({first, count, piece.head, parts, part_count_[place], 0});
        merge_rows_.push_back(static_cast<std::int32_t>(partial_rows_));
        parts += part_count_[place];
        partial_rows_ += std::int64_t{count} * part_count_[place];
      }
      Merge& merge = merges_[static_cast<std::size_t>(merge_of_[place])];
      const std::int32_t row = merge_rows_[static_cast<std::size_t>(merge_of_[place])] + merge.arrivals++ * count;
      segments_.push_back({offset, count, row, merge_of_[place]});
    });
  }
  piece_segments_.push_back(static_cast<std::int32_t>(segments_.size()));
  num_parts_ = parts;
}

// Orders pieces by worker, keeping their order inside one; counts items and segments a worker.
void Planner::sort_pieces() {
  const auto workers = static_cast<std::size_t>(workers_);
  piece_begin_.assign(workers + 1, 0);
  segment_begin_.assign(workers + 1, 0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto worker = static_cast<std::size_t>(pieces_[i].worker);
    ++piece_begin_[worker + 1];
    segment_begin_[worker + 1] += piece_segments_[i + 1] - piece_segments_[i];
  }
  for (std::size_t w = 0; w < workers; ++w) {
    piece_begin_[w + 1] += piece_begin_[w];
    segment_begin_[w + 1] += segment_begin_[w];
  }
  order_.resize(pieces_.size());
  stamp_.assign(piece_begin_.begin(), piece_begin_.end());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::int32_t place = stamp_[static_cast<std::size_t>(pieces_[i].worker)]++;
    order_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(i);
  }
}

// The first group's items by worker; their segments are numbered by worker too.
void Planner::make_items() {
  items_.resize(pieces_.size());
  ordered_.resize(segments_.size());
  std::int32_t segment = 0;
  for (std::size_t n = 0; n < order_.size(); ++n) {
    const auto i = static_cast<std::size_t>(order_[n]);
    const Piece& piece = pieces_[i];
    const Task& task = task_at(piece.task);
    Item& item = items_[n];
    item.list = task.list;
    item.level = task.level;
    item.tile = task.tile;
    item.kv_head = piece.head;
    item.packed_begin = task.packed_begin;
    item.packed_count = task.packed_count;
    item.kv_begin = piece.kv_begin;
    item.kv_end = piece.kv_end;
    item.full_from = std::clamp(task.full_from, piece.kv_begin, piece.kv_end);
    item.full_to = std::clamp(task.full_to, item.full_from, piece.kv_end);
    item.segment_begin = segment;
    item.segment_count = piece_segments_[i + 1] - piece_segments_[i];
    item.request = task.request;
    for (std::int32_t s = piece_segments_[i]; s < piece_segments_[i + 1]; ++s)
      ordered_[static_cast<std::size_t>(segment++)] = segments_[static_cast<std::size_t>(s)];
  }
}

// Copies the first group's items for every group: worker `local` of each lie side by side, so that they are neighbours.
void Planner::write_worker(std::int32_t local, Item* items, Segment* segments, std::int32_t* worker_at) const {
  const auto w = static_cast<std::size_t>(local);
  const std::int32_t item_begin = piece_begin_[w], count = piece_begin_[w + 1] - item_begin;
  const std::int32_t segment_begin = segment_begin_[w], segment_count = segment_begin_[w + 1] - segment_begin;
  const auto merges = static_cast<std::int32_t>(merges_.size()), rows = static_cast<std::int32_t>(partial_rows_);
  const Item* own_items = items_.data() + item_begin;
  const Segment* own_segments = ordered_.data() + segment_begin;
  const std::int32_t groups = groups_, heads = heads_;
  for (std::int32_t g = 0; g < groups; ++g) {
    const std::int32_t first = groups * item_begin + g * count;
    const std::int32_t moved = groups * segment_begin + g * segment_count - segment_begin;
    worker_at[local * groups + g] = first;
    for (std::int32_t n = 0; n < count; ++n) {
      Item& item = items[first + n];
      item = own_items[n];
      item.kv_head = own_items[n].kv_head + g * heads;
      item.segment_begin = own_items[n].segment_begin + moved;
    }
    for (std::int32_t n = 0; n < segment_count; ++n) {
      const bool through = own_segments[n].merge < 0;
      Segment& segment = segments[segment_begin + moved + n];
      segment = own_segments[n];
      segment.partial = own_segments[n].partial + (through ? 0 : g * rows);
      segment.merge = own_segments[n].merge + (through ? 0 : g * merges);
    }
  }
}

void Planner::emit() {
  join();
  sort_pieces();
  make_items();
  auto* header = at<PlanHeader>(0);
  const std::int64_t items = std::int64_t{groups_} * static_cast<std::int64_t>(pieces_.size());
  const std::int64_t segments = std::int64_t{groups_} * static_cast<std::int64_t>(segments_.size());
  const std::int64_t merges = std::int64_t{groups_} * static_cast<std::int64_t>(merges_.size());
  const std::int64_t parts = std::int64_t{groups_} * num_parts_, rows = partial_rows_ * groups_;
  // NOTE: limits.py proves that these never fail for a batch inside the limits.
  if (rows > config_.limits.partial_rows || merges > config_.limits.merges)
    throw Fault(text("workspace holds %lld partial rows and %lld merges, got %lld and %lld",
                     static_cast<long long>(config_.limits.partial_rows), static_cast<long long>(config_.limits.merges),
                     static_cast<long long>(rows), static_cast<long long>(merges)));
  header->items_at = allocate(items * static_cast<std::int64_t>(sizeof(Item)), 64);
  header->segments_at = allocate(segments * static_cast<std::int64_t>(sizeof(Segment)));
  header->merges_at = allocate(merges * static_cast<std::int64_t>(sizeof(Merge)));
  header->parts_at = allocate(parts * 4);
  header->num_items = static_cast<std::int32_t>(items);
  header->num_segments = static_cast<std::int32_t>(segments);
  header->num_merges = static_cast<std::int32_t>(merges);
  header->num_parts = static_cast<std::int32_t>(parts);
  header->num_partial_rows = static_cast<std::int32_t>(rows);
  header->bytes = used_;
  header->num_slots = num_slots_;
  auto* worker_at = at<std::int32_t>(header->worker_at);
  for (std::int32_t w = 0; w < workers_; ++w)
    write_worker(w, at<Item>(header->items_at), at<Segment>(header->segments_at), worker_at);
  worker_at[config_.num_workers] = header->num_items;
  for (const Piece& piece : pieces_) header->num_empty += piece.kv_begin == piece.kv_end ? groups_ : 0;
  write_merges(at<Merge>(header->merges_at), at<std::int32_t>(header->parts_at));
}

void Planner::write_merges(Merge* merges, std::int32_t* parts) const {
  for (std::int32_t g = 0; g < groups_; ++g)
    for (std::size_t m = 0; m < merges_.size(); ++m) {
      Merge merge = merges_[m];
      merge.kv_head += g * heads_;
      merge.part_begin += g * num_parts_;
      const auto first = static_cast<std::int32_t>(merge_rows_[m] + g * partial_rows_);
      for (std::int32_t p = 0; p < merge.part_count; ++p) parts[merge.part_begin + p] = first + p * merge.packed_count;
      *merges++ = merge;
    }
}

Planner::Planner(Config config, KeyBounds bounds) : config_(std::move(config)), bounds_(std::move(bounds)) {}

std::int64_t Planner::plan(const Input& input) {
  read(input);
  divide();
  balance();
  emit();
  at<PlanHeader>(0)->version = kWorkVersion;
  return used_;
}

}  // namespace attngen::plan
