// Cuts block rows into tasks, and rows into the units that merges own.
#include <algorithm>

#include "plan.hpp"

namespace attngen::plan {
namespace {

// How many keys of a list lie at positions below `position`; for lists whose positions ascend.
std::int32_t keys_below(const BlockRow& row, std::int32_t block_size, std::int64_t position) {
  if (row.order == Order::kShifted)
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(position - row.shift, 0, row.keys));
  const std::int64_t blocks = (std::int64_t{row.keys} + block_size - 1) / block_size;
  const std::int64_t before = std::lower_bound(row.positions, row.positions + blocks, position) - row.positions;
  if (before == 0) return 0;
  const std::int64_t inside = std::min<std::int64_t>(block_size, position - row.positions[before - 1]);
  return static_cast<std::int32_t>(std::min<std::int64_t>((before - 1) * block_size + inside, row.keys));
}

}  // namespace

// The smallest tile that holds the rows, or the largest there is.
std::int32_t Planner::tile_for(std::int64_t packed_rows) const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < config_.tiles.size(); ++i) {
    const std::int32_t rows = config_.tiles[i].rows, so_far = config_.tiles[best].rows;
    if (so_far < packed_rows ? rows > so_far : rows >= packed_rows && rows < so_far) best = i;
  }
  return static_cast<std::int32_t>(best);
}

std::int32_t Planner::token_row(const BlockRow& row, std::int32_t token) const {
  const std::int32_t* tokens = tokens_[static_cast<std::size_t>(row.level)];
  return tokens == nullptr ? token : tokens[token];
}

// A task of rows of the view's tokens [first, last]: the keys that any of them may see, rounded outward to tiles, and
// those that all of them see unmasked.
void Planner::add_task(const BlockRow& row, std::int32_t tile, std::int32_t packed_begin, std::int32_t packed_count,
                       std::int32_t first, std::int32_t last) {
  const TileCost& cost = config_.tiles[static_cast<std::size_t>(tile)];
  const std::int32_t block_size = block_sizes_[static_cast<std::size_t>(row.level)];
  const bool gathered = tokens_[static_cast<std::size_t>(row.level)] != nullptr;
  std::int32_t begin = row.keys, end = 0, full_from = 0, full_to = row.order == Order::kUnsorted ? 0 : row.keys;
  for (std::int32_t token = first; token <= last;) {
    const std::int32_t b = row_request_[token_row(row, token)];
    std::int32_t low = token_row(row, token), high = low;
    if (gathered) {
      for (++token; token <= last && row_request_[token_row(row, token)] == b; ++token) {
        low = std::min(low, token_row(row, token));
        high = std::max(high, token_row(row, token));
      }
    } else {
      high = std::min(last, qo_[b + 1] - 1);
      token = high + 1;
    }
    const std::int64_t to_position = std::int64_t{kv_len_[b]} - qo_[b + 1];
    const KeyRange range =
        bounds_.evaluate(low + to_position, high + to_position, qo_[b + 1] - qo_[b], kv_len_[b]);
    if (range.first >= range.last) {
      full_to = 0;
    } else if (row.order == Order::kUnsorted) {
      begin = 0, end = row.keys;
    } else {
      begin = std::min(begin, keys_below(row, block_size, range.first));
      end = std::max(end, keys_below(row, block_size, range.last));
      full_from = std::max(full_from, keys_below(row, block_size, range.full_from));
      full_to = std::min(full_to, keys_below(row, block_size, range.full_to));
    }
  }
  // NOTE: made in place: a copy of fields just written stalls.
  Task& task = tasks_.emplace_back();
  task.list = row.list;
  task.cost = cost.a;
  task.level = row.level;
  task.tile = tile;
  task.packed_begin = packed_begin;
  task.packed_count = packed_count;
  task.request = row_request_[token_row(row, first)];
  task.several = gathered || row_request_[last] != task.request;  // which ascend where nothing is gathered
  if (begin >= end) return;
  task.kv_begin = begin < cost.keys ? 0 : begin / cost.keys * cost.keys;
  task.tiles = (end - task.kv_begin + cost.keys - 1) / cost.keys;
  task.kv_end = static_cast<std::int32_t>(
      std::min<std::int64_t>(task.kv_begin + std::int64_t{task.tiles} * cost.keys, row.keys));
  task.full_from = std::clamp(full_from, task.kv_begin, task.kv_end);
  task.full_to = std::clamp(full_to, task.full_from, task.kv_end);
  task.cost += cost.b * task.tiles;
}

void Planner::divide_row(const BlockRow& row, std::int32_t token_begin, std::int32_t token_end) {
  const std::int32_t begin = token_begin * config_.group, end = token_end * config_.group;
  const std::int32_t tile = tile_for(end - begin), step = config_.tiles[static_cast<std::size_t>(tile)].rows;
  if (end - begin <= step) return add_task(row, tile, begin, end - begin, token_begin, token_end - 1);
  for (std::int32_t packed = begin; packed < end; packed += std::min(step, end - packed)) {
    const std::int32_t count = std::min(step, end - packed);
    add_task(row, tile, packed, count, packed / config_.group, (packed + count - 1) / config_.group);
  }
}

// Rows of several requests share one item a tile unless an item for each request costs less in all, as where the
// larger tile that holds them together costs more than reading the keys again.  Either way each row gets one partial.
void Planner::divide_shared_row(const BlockRow& row) {
  const std::size_t first = tasks_.size();
  const auto cost_since = [this](std::size_t from) {
    std::int64_t cost = 0;
    for (std::size_t i = from; i < tasks_.size(); ++i) cost += tasks_[i].cost;
    return cost;
  };
  divide_row(row, row.token_begin, row.token_end);
  const std::size_t separate = tasks_.size();
  const std::int64_t shared_cost = cost_since(first);
  for (std::int32_t token = row.token_begin; token < row.token_end;) {
    const std::int32_t begin = token, request = row_request_[token_row(row, token)];
    while (token < row.token_end && row_request_[token_row(row, token)] == request) ++token;
    if (begin == row.token_begin && token == row.token_end) return;
    divide_row(row, begin, token);
  }
  const auto at = [this](std::size_t i) { return tasks_.begin() + static_cast<std::ptrdiff_t>(i); };
  tasks_.erase(cost_since(separate) < shared_cost ? at(first) : at(separate),
               cost_since(separate) < shared_cost ? at(separate) : tasks_.end());
}

void Planner::divide() {
  tasks_.clear();
  refs_.clear();
  ref_begin_.clear();
  units_.clear();
  if (!shared_) {
    for (const BlockRow& row : rows_) divide_row(row, row.token_begin, row.token_end);
    return;
  }
  for (const BlockRow& row : rows_) divide_shared_row(row);
  tasks_.erase(std::remove_if(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.tiles == 0; }),
               tasks_.end());
  find_units();
}

// Calls visit(first packed row of a run of consecutive token rows, its length, its offset in the task) run by run.
template <class Visit>
void Planner::each_run(const Task& task, Visit visit) const {
  const std::int32_t group = config_.group, end = task.packed_begin + task.packed_count;
  const std::int32_t* tokens = tokens_[static_cast<std::size_t>(task.level)];
  if (tokens == nullptr) return visit(task.packed_begin, task.packed_count, 0);
  for (std::int32_t packed = task.packed_begin; packed < end;) {
    const std::int32_t begin = packed, token = packed / group;
    std::int32_t next = token + 1;
    while (next * group < end && tokens[next] == tokens[next - 1] + 1) ++next;
    packed = std::min(end, next * group);
    visit(tokens[token] * group + begin % group, packed - begin, begin - task.packed_begin);
  }
}

// Units are the finest intervals that the tasks' runs and the requests cut the packed rows into.
void Planner::find_units() {
  std::vector<std::int32_t> cuts;
  cuts.assign(qo_, qo_ + batch_ + 1);
  for (std::int32_t& row : cuts) row *= config_.group;
  for (const Task& task : tasks_)
    each_run(task, [&](std::int32_t begin, std::int32_t count, std::int32_t) {
      cuts.push_back(begin);
      cuts.push_back(begin + count);
    });
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) units_.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  stamp_.assign(units_.size(), 0);
  for (const Task& task : tasks_) {
    ref_begin_.push_back(static_cast<std::int32_t>(refs_.size()));
    each_run(task, [&](std::int32_t begin, std::int32_t count, std::int32_t offset) {
      auto unit = static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), begin) - cuts.begin());
      for (std::int32_t row = begin; row < begin + count; row += units_[unit++].packed_count) {
        refs_.push_back({static_cast<std::int32_t>(unit), offset + row - begin});
        stamp_[unit] = 1;
      }
    });
  }
  cover_rest();
  ref_begin_.push_back(static_cast<std::int32_t>(refs_.size()));
}

// Rows that no task covers see no key; they get items of their own that say so.
void Planner::cover_rest() {
  const auto known = units_.size();
  for (std::size_t i = 0; i < known; ++i) {
    const Unit unit = units_[i];
    const std::int32_t tile = tile_for(unit.packed_count);
    const TileCost& cost = config_.tiles[static_cast<std::size_t>(tile)];
    const std::int32_t step = cost.rows;
    for (std::int32_t done = 0; stamp_[i] == 0 && done < unit.packed_count; done += step) {
      const std::int32_t begin = unit.packed_begin + done, count = std::min(step, unit.packed_count - done);
      const auto level = static_cast<std::int32_t>(tokens_.size()) - 1;  // the one that numbers token rows directly
      tasks_.push_back({0, cost.a, level, tile, begin, count, 0, 0, 0, 0,
                        row_request_[begin / config_.group], 0, false});
      ref_begin_.push_back(static_cast<std::int32_t>(refs_.size()));
      refs_.push_back({static_cast<std::int32_t>(units_.size()), 0});
      units_.push_back({begin, count});
    }
  }
}

}  // namespace attngen::plan
