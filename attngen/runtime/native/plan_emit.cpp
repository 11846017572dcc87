// Writes the schedule into the arena.
#include <algorithm>
#include <limits>

#include "plan.hpp"

namespace attngen::plan {

// Finds where rows have several partials and gives each a place: parts of a merge in the order of `pieces_`, which for
// one task is the order of its keys.
void Planner::join(Schedule& schedule) {
  schedule.segment_begin = schedule.segment_end = segments_.size();
  schedule.merge_begin = schedule.merge_end = merges_.size();
  if (schedule.piece_begin == schedule.piece_end) return;
  const auto heads = static_cast<std::size_t>(schedule.heads);
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
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i)
    each_unit(pieces_[i], [&](std::size_t unit, std::int32_t, std::int32_t) {
      ++part_count_[unit * heads + static_cast<std::size_t>(pieces_[i].head)];
    });
  merge_of_.assign(places, -1);
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i) {
    const Piece& piece = pieces_[i];
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
        merges_.push_back({first, count, piece.head, static_cast<std::int32_t>(schedule.parts), part_count_[place], 0});
        merge_rows_.push_back(static_cast<std::int32_t>(schedule.partial_rows));
        schedule.parts += part_count_[place];
        schedule.partial_rows += std::int64_t{count} * part_count_[place];
      }
      const auto merge = static_cast<std::size_t>(merge_of_[place]);
      const std::int32_t row = merge_rows_[merge] + merges_[merge].arrivals++ * count;
      segments_.push_back({offset, count, row, static_cast<std::int32_t>(merge - schedule.merge_begin)});
    });
  }
  schedule.segment_end = segments_.size();
  schedule.merge_end = merges_.size();
}

// Gives each array its place in the arena.
void Planner::place() {
  std::int64_t items = 0, segments = 0, merges = 0, parts = 0, rows = 0;
  for (const Schedule& schedule : schedules_) {
    items += schedule.groups * static_cast<std::int64_t>(schedule.piece_end - schedule.piece_begin);
    segments += schedule.groups * static_cast<std::int64_t>(schedule.segment_end - schedule.segment_begin);
    merges += schedule.groups * static_cast<std::int64_t>(schedule.merge_end - schedule.merge_begin);
    parts += schedule.groups * schedule.parts;
    rows += schedule.groups * schedule.partial_rows;
  }
  // NOTE: limits.py proves that these never fail for a batch inside the limits.
  if (rows > config_.limits.partial_rows || merges > config_.limits.merges)
    throw Fault(text("workspace holds %lld partial rows and %lld merges, got %lld and %lld",
                     static_cast<long long>(config_.limits.partial_rows), static_cast<long long>(config_.limits.merges),
                     static_cast<long long>(rows), static_cast<long long>(merges)));
  auto* header = at<PlanHeader>(0);
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
}

// Orders pieces by worker, keeping their order inside one; counts items and segments a worker.
void Planner::sort_pieces(const Schedule& schedule) {
  const auto workers = static_cast<std::size_t>(schedule.workers);
  piece_begin_.assign(workers + 1, 0);
  segment_begin_.assign(workers + 1, 0);
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i) {
    const auto worker = static_cast<std::size_t>(pieces_[i].worker);
    ++piece_begin_[worker + 1];
    segment_begin_[worker + 1] += piece_segments_[i + 1] - piece_segments_[i];
  }
  for (std::size_t w = 0; w < workers; ++w) {
    piece_begin_[w + 1] += piece_begin_[w];
    segment_begin_[w + 1] += segment_begin_[w];
  }
  order_.resize(schedule.piece_end - schedule.piece_begin);
  stamp_.assign(piece_begin_.begin(), piece_begin_.end());
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i) {
    const std::int32_t place = stamp_[static_cast<std::size_t>(pieces_[i].worker)]++;
    order_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(i);
  }
}

// The first group's items by worker; their segments are numbered by worker too.
void Planner::make_items(const Schedule& schedule) {
  items_.resize(order_.size());
  ordered_.resize(schedule.segment_end - schedule.segment_begin);
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
void Planner::write_worker(const Schedule& schedule, std::int32_t local, const Cursor& done) {
  const auto w = static_cast<std::size_t>(local);
  const std::int32_t item_begin = piece_begin_[w], count = piece_begin_[w + 1] - item_begin;
  const std::int32_t segment_begin = segment_begin_[w], segment_count = segment_begin_[w + 1] - segment_begin;
  const auto merges = static_cast<std::int32_t>(schedule.merge_end - schedule.merge_begin);
  const auto rows = static_cast<std::int32_t>(schedule.partial_rows);
  const Item* own_items = items_.data() + item_begin;
  const Segment* own_segments = ordered_.data() + segment_begin;
  const auto* header = at<PlanHeader>(0);
  Worker* workers = at<Worker>(header->workers_at) + schedule.first_worker + local * schedule.groups;
  Item* items = at<Item>(header->items_at);
  Segment* segments = at<Segment>(header->segments_at);
  for (std::int32_t g = 0; g < schedule.groups; ++g) {
    const std::int32_t first = done.item + schedule.groups * item_begin + g * count;
    const std::int32_t moved = done.segment + schedule.groups * segment_begin + g * segment_count - segment_begin;
    for (std::int32_t n = 0; n < count; ++n) {
      Item& item = items[first + n];
      item = own_items[n];
      item.kv_head = own_items[n].kv_head + g * schedule.heads;
      item.segment_begin = own_items[n].segment_begin + moved;
    }
    for (std::int32_t n = 0; n < segment_count; ++n) {
      const bool through = own_segments[n].merge < 0;
      Segment& segment = segments[segment_begin + moved + n];
      segment = own_segments[n];
      segment.partial = own_segments[n].partial + (through ? 0 : done.partial_row + g * rows);
      segment.merge = own_segments[n].merge + (through ? 0 : done.merge + g * merges);
    }
    workers[g].item_begin = first;
    workers[g].item_end = first + count;
    if (count > 0) workers[g].first = items[first];
  }
}

void Planner::write_merges(const Schedule& schedule, const Cursor& done) {
  const auto* header = at<PlanHeader>(0);
  Merge* to = at<Merge>(header->merges_at) + done.merge;
  auto* parts = at<std::int32_t>(header->parts_at);
  for (std::int32_t g = 0; g < schedule.groups; ++g)
    for (std::size_t m = schedule.merge_begin; m < schedule.merge_end; ++m) {
      Merge merge = merges_[m];
      merge.kv_head += g * schedule.heads;
      merge.part_begin += done.part + g * static_cast<std::int32_t>(schedule.parts);
      const std::int32_t first =
          done.partial_row + merge_rows_[m] + g * static_cast<std::int32_t>(schedule.partial_rows);
      for (std::int32_t p = 0; p < merge.part_count; ++p) parts[merge.part_begin + p] = first + p * merge.packed_count;
      *to++ = merge;
    }
}

// Writes one schedule behind those before it.
void Planner::write(const Schedule& schedule, Cursor* done) {
  sort_pieces(schedule);
  make_items(schedule);
  for (std::int32_t w = 0; w < schedule.workers; ++w) write_worker(schedule, w, *done);
  write_merges(schedule, *done);
  const std::int32_t groups = schedule.groups;
  std::int32_t& empty = at<PlanHeader>(0)->num_empty;
  for (const Item& item : items_) empty += item.kv_begin == item.kv_end ? groups : 0;
  done->item += groups * static_cast<std::int32_t>(items_.size());
  done->segment += groups * static_cast<std::int32_t>(ordered_.size());
  done->merge += groups * static_cast<std::int32_t>(schedule.merge_end - schedule.merge_begin);
  done->part += groups * static_cast<std::int32_t>(schedule.parts);
  done->partial_row += groups * static_cast<std::int32_t>(schedule.partial_rows);
}

void Planner::emit() {
  merges_.clear();
  merge_rows_.clear();
  segments_.clear();
  piece_segments_.clear();
  for (Schedule& schedule : schedules_) join(schedule);
  piece_segments_.push_back(static_cast<std::int32_t>(segments_.size()));
  place();
  Cursor done{};
  for (const Schedule& schedule : schedules_) write(schedule, &done);
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
