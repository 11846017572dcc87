// Writes the schedule into the arena.
#include <algorithm>
#include <limits>

#include "plan.hpp"

namespace attngen::plan {

void Planner::add_merge(Schedule& schedule, std::int32_t first, std::int32_t count, std::int32_t head,
                        std::int32_t parts) {
  merges_.push_back({first, count, head, static_cast<std::int32_t>(schedule.partial_rows), parts, 0});
  schedule.partial_rows += std::int64_t{count} * parts;
}

// Without levels a row belongs to one task, whose pieces for one head follow each other in the order of its keys.
void Planner::join_tasks(Schedule& schedule) {
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end;) {
    const Piece& piece = pieces_[i];
    const std::int32_t count = task_at(piece.task).packed_count;
    std::size_t end = i + 1;
    while (end < schedule.piece_end && pieces_[end].task == piece.task && pieces_[end].head == piece.head) ++end;
    Segment segment{0, count, kWriteThrough, -1};
    if (end - i > 1) {
      segment.partial = static_cast<std::int32_t>(schedule.partial_rows);
      segment.merge = static_cast<std::int32_t>(merges_.size() - schedule.merge_begin);
      add_merge(schedule, task_at(piece.task).packed_begin, count, piece.head, static_cast<std::int32_t>(end - i));
      merges_.back().arrivals = merges_.back().part_count;
    }
    for (; i < end; ++i) {
      piece_segments_.push_back(static_cast<std::int32_t>(segments_.size()));
      segments_.push_back(segment);
      if (segment.merge >= 0) segment.partial += count;
    }
  }
}

// Finds where rows have several partials and gives each a place: parts of a merge in the order of `pieces_`.
void Planner::join(Schedule& schedule) {
  const auto heads = static_cast<std::size_t>(schedule.heads);
  part_count_.assign(units_.size() * heads, 0);
  const auto each_unit = [&](const Piece& piece, auto visit) {
    for (auto r = static_cast<std::size_t>(ref_begin_[static_cast<std::size_t>(piece.task)]);
         r < static_cast<std::size_t>(ref_begin_[static_cast<std::size_t>(piece.task) + 1]); ++r) {
      const auto unit = static_cast<std::size_t>(refs_[r].unit);
      visit(units_[unit], refs_[r].offset, unit * heads + static_cast<std::size_t>(piece.head));
    }
  };
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i)
    each_unit(pieces_[i], [&](const Unit&, std::int32_t, std::size_t place) { ++part_count_[place]; });
  merge_of_.assign(part_count_.size(), -1);
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i) {
    piece_segments_.push_back(static_cast<std::int32_t>(segments_.size()));
    each_unit(pieces_[i], [&](const Unit& unit, std::int32_t offset, std::size_t place) {
      const std::int32_t count = unit.packed_count;
      if (part_count_[place] == 1) {
        segments_.push_back({offset, count, kWriteThrough, -1});
        return;
      }
      if (merge_of_[place] < 0) {
        merge_of_[place] = static_cast<std::int32_t>(merges_.size());
        add_merge(schedule, unit.packed_begin, count, pieces_[i].head, part_count_[place]);
      }
      const auto merge = static_cast<std::size_t>(merge_of_[place]);
      const std::int32_t row = merges_[merge].partial + merges_[merge].arrivals++ * count;
      segments_.push_back({offset, count, row, static_cast<std::int32_t>(merge - schedule.merge_begin)});
    });
  }
}

// Gives each array its place in the arena.
void Planner::place() {
  std::int64_t items = 0, segments = 0, merges = 0, rows = 0;
  for (const Schedule& schedule : schedules_) {
    items += static_cast<std::int64_t>(schedule.piece_end - schedule.piece_begin);
    segments += static_cast<std::int64_t>(schedule.segment_end - schedule.segment_begin);
    merges += schedule.groups * static_cast<std::int64_t>(schedule.merge_end - schedule.merge_begin);
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
  header->num_items = static_cast<std::int32_t>(items);
  header->num_segments = static_cast<std::int32_t>(segments);
  header->num_merges = static_cast<std::int32_t>(merges);
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

// Writes the items of worker `local` of the first group, which those of the others share: neighbours all.
void Planner::write_worker(const Schedule& schedule, std::int32_t local, const Cursor& done) {
  const auto w = static_cast<std::size_t>(local);
  const std::int32_t first_item = done.item + piece_begin_[w];
  const std::int32_t count = piece_begin_[w + 1] - piece_begin_[w];
  const auto merges = static_cast<std::int32_t>(schedule.merge_end - schedule.merge_begin);
  const auto rows = static_cast<std::int32_t>(schedule.partial_rows);
  const auto* header = at<PlanHeader>(0);
  Worker* workers = at<Worker>(header->workers_at) + schedule.first_worker + local * schedule.groups;
  Item* items = at<Item>(header->items_at) + first_item;
  std::int32_t segment = done.segment + segment_begin_[w];
  for (std::int32_t n = 0; n < count; ++n) {
    const auto i = static_cast<std::size_t>(order_[static_cast<std::size_t>(piece_begin_[w] + n)]);
    const std::int32_t own = piece_segments_[i + 1] - piece_segments_[i];
    const Segment* from = &segments_[static_cast<std::size_t>(piece_segments_[i])];
    std::copy_n(from, own, at<Segment>(header->segments_at) + segment);
    write_item(pieces_[i], segment, own, &items[n]);
    items[n].partial = from->partial;
    items[n].merge = from->merge;
    items[n].arrivals =
        from->merge < 0 ? 0 : merges_[schedule.merge_begin + static_cast<std::size_t>(from->merge)].arrivals;
    segment += own;
  }
  for (std::int32_t g = 0; g < schedule.groups; ++g) {
    workers[g].item_begin = first_item;
    workers[g].item_end = first_item + count;
    workers[g].items_at = header->items_at;
    workers[g].merges_at = header->merges_at;
    workers[g].move = {g * schedule.heads, done.partial_row + g * rows, done.merge + g * merges};
    if (count > 0) workers[g].first = moved(items[0], workers[g].move);
  }
}

void Planner::write_item(const Piece& piece, std::int32_t segment_begin, std::int32_t segment_count, Item* item) {
  const Task& task = task_at(piece.task);
  item->list = task.list;
  item->level = task.level;
  item->tile = task.tile;
  item->kv_head = piece.head;
  item->packed_begin = task.packed_begin;
  item->packed_count = task.packed_count;
  item->kv_begin = piece.kv_begin;
  item->kv_end = piece.kv_end;
  item->full_from = std::clamp(task.full_from, piece.kv_begin, piece.kv_end);
  item->full_to = std::clamp(task.full_to, item->full_from, piece.kv_end);
  item->segment_begin = segment_begin;
  item->segment_count = segment_count;
  item->request = task.request;
  item->q_begin = task.several ? -1 : qo_[task.request];
  item->q_len = qo_[task.request + 1] - qo_[task.request];
  item->kv_len = kv_len_[task.request];
}

void Planner::write_merges(const Schedule& schedule, const Cursor& done) {
  const auto* header = at<PlanHeader>(0);
  Merge* to = at<Merge>(header->merges_at) + done.merge;
  for (std::int32_t g = 0; g < schedule.groups; ++g)
    for (std::size_t m = schedule.merge_begin; m < schedule.merge_end; ++m) {
      Merge merge = merges_[m];
      merge.kv_head += g * schedule.heads;
      merge.partial += done.partial_row + g * static_cast<std::int32_t>(schedule.partial_rows);
      *to++ = merge;
    }
}

// Writes one schedule behind those before it.
void Planner::write(const Schedule& schedule, Cursor* done) {
  sort_pieces(schedule);
  for (std::int32_t w = 0; w < schedule.workers; ++w) write_worker(schedule, w, *done);
  write_merges(schedule, *done);
  const std::int32_t groups = schedule.groups;
  std::int32_t empty = 0;
  for (std::size_t i = schedule.piece_begin; i < schedule.piece_end; ++i)
    empty += pieces_[i].kv_begin == pieces_[i].kv_end;
  at<PlanHeader>(0)->num_empty += groups * empty;
  done->item += static_cast<std::int32_t>(schedule.piece_end - schedule.piece_begin);
  done->segment += static_cast<std::int32_t>(schedule.segment_end - schedule.segment_begin);
  done->merge += groups * static_cast<std::int32_t>(schedule.merge_end - schedule.merge_begin);
  done->partial_row += groups * static_cast<std::int32_t>(schedule.partial_rows);
}

void Planner::emit() {
  merges_.clear();
  segments_.clear();
  piece_segments_.clear();
  for (Schedule& schedule : schedules_) {
    schedule.segment_begin = segments_.size();
    schedule.merge_begin = merges_.size();
    shared_ ? join(schedule) : join_tasks(schedule);
    schedule.segment_end = segments_.size();
    schedule.merge_end = merges_.size();
  }
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
