// Gives pieces of (task, KV head) to workers, queue by queue.
//
// Tasks of the prefill class go whole to the least loaded worker, longest first.  Tasks of the decode class, and any
// that alone exceed the mean load, form one flattened (task, KV head, tile of keys) range that is cut where a worker
// reaches the limit: a worker gets a contiguous stretch of it, hence at most two partial pieces.  The limit is the
// smallest that lets everything fit.
//
// Where all tasks are cut and gcd(workers, heads) = g > 1, g groups of heads / g heads and workers / g workers do the
// same with neighbouring workers walking the KV heads of one tile in lockstep, and only the first group is scheduled.
// NOTE: where queues that are grouped differently share merges, they are united into one ungrouped schedule.
#include <algorithm>
#include <numeric>

#include "plan.hpp"

namespace attngen::plan {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

void Planner::balance() {
  pieces_.clear();
  schedules_.clear();
  if (config_.batch_invariant) {
    request_tasks_.assign(static_cast<std::size_t>(batch_), 0);
    for (const Task& task : tasks_) ++request_tasks_[static_cast<std::size_t>(task.request)];
  }
  std::int32_t first_worker = 0;
  for (std::size_t queue = 0; queue < config_.queues.size(); ++queue) {
    const std::int32_t workers = config_.queues[queue];
    first_piece_ = pieces_.size();
    heads_ = config_.num_kv_heads;
    workers_ = workers;
    balance_queue(static_cast<std::int32_t>(queue));
    Schedule& schedule = schedules_.emplace_back();
    schedule = {first_worker, workers / workers_, heads_, workers_, first_piece_, pieces_.size(), 0, 0, 0, 0, 0};
    first_worker += workers;
  }
  const auto works = [](const Schedule& schedule) { return schedule.piece_begin < schedule.piece_end; };
  if (shared_ && std::count_if(schedules_.begin(), schedules_.end(), works) > 1) unite();
}

void Planner::balance_queue(std::int32_t queue) {
  queue_tasks_.clear();
  std::int64_t total = 0;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (tile(tasks_[i]).queue != queue) continue;
    queue_tasks_.push_back(static_cast<std::int32_t>(i));
    total += tasks_[i].cost;
  }
  load_.assign(static_cast<std::size_t>(workers_), 0);
  if (config_.batch_invariant) return chunk_all();
  const std::int64_t mean = ceil_div(total * heads_, workers_);
  whole_tasks_.clear();
  cut_tasks_.clear();
  for (const std::int32_t i : queue_tasks_) {
    const bool whole = tile(task_at(i)).rows > kDecodeRows && task_at(i).cost <= mean;
    (whole ? whole_tasks_ : cut_tasks_).push_back(i);
  }
  if (!whole_tasks_.empty()) {
    for (std::int32_t head = 0; head < heads_; ++head)
      for (const std::int32_t i : whole_tasks_) pieces_.push_back({i, head, task_at(i).kv_begin, task_at(i).kv_end, 0});
    assign_longest_first();
  } else {
    const std::int32_t groups = std::gcd(heads_, workers_);
    heads_ /= groups;
    workers_ /= groups;
  }
  if (!cut_tasks_.empty()) cut(find_limit(), true);
}

// Makes one schedule of all queues' workers, whose merges may thus have parts from several queues.
void Planner::unite() {
  std::int32_t workers = 0;
  united_.clear();
  for (const Schedule& own : schedules_) {
    for (std::int32_t g = 0; g < own.groups; ++g)
      for (std::size_t i = own.piece_begin; i < own.piece_end; ++i) {
        Piece piece = pieces_[i];
        piece.head += g * own.heads;
        piece.worker = own.first_worker + piece.worker * own.groups + g;
        united_.push_back(piece);
      }
    workers += own.groups * own.workers;
  }
  pieces_.swap(united_);
  schedules_.clear();
  schedules_.push_back({0, 1, config_.num_kv_heads, workers, 0, pieces_.size(), 0, 0, 0, 0, 0});
}

// With batch_invariant every request is cut alike in every batch: at absolute multiples of a chunk whose size depends
// on the request's own lengths alone, the smallest of chunk_tiles · 2^k that leaves at most max_chunks pieces.
void Planner::chunk_all() {
  for (std::int32_t head = 0; head < heads_; ++head)
    for (const std::int32_t i : queue_tasks_) {
      const Task& task = task_at(i);
      const std::int64_t beside = std::int64_t{request_tasks_[static_cast<std::size_t>(task.request)]} *
                                  (tile(task).rows > kDecodeRows ? heads_ : 1);
      const std::int64_t most = std::max<std::int64_t>(1, config_.max_chunks / beside);
      std::int64_t chunk = config_.chunk_tiles * tile(task).keys;
      const std::int64_t keys = std::max(kv_len_[task.request], task.kv_end);
      while (ceil_div(keys, chunk) > most) chunk *= 2;
      std::int64_t begin = task.kv_begin;
      do {
        const std::int64_t end = std::min<std::int64_t>((begin / chunk + 1) * chunk, task.kv_end);
        pieces_.push_back({i, head, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), 0});
        begin = end;
      } while (begin < task.kv_end);
    }
  assign_longest_first();
}

std::int64_t Planner::piece_cost(const Piece& piece) const {
  const Task& task = task_at(piece.task);
  const TileCost& cost = tile(task);
  const bool partial = piece.kv_begin != task.kv_begin || piece.kv_end != task.kv_end;
  return cost.a + cost.b * ceil_div(piece.kv_end - piece.kv_begin, cost.keys) + (partial ? cost.c : 0);
}

// Sets the worker of every piece of the queue so far; equal costs keep their order and equal loads the lower worker.
void Planner::assign_longest_first() {
  using Weighted = std::pair<std::int64_t, std::int32_t>;
  std::vector<Weighted>& order = weighted_;
  order.clear();
  for (std::size_t i = first_piece_; i < pieces_.size(); ++i)
    order.emplace_back(-piece_cost(pieces_[i]), static_cast<std::int32_t>(i));
  std::sort(order.begin(), order.end());
  std::vector<Weighted>& heap = heap_;
  heap.clear();
  for (std::int32_t w = 0; w < workers_; ++w) heap.emplace_back(0, w);
  for (const auto& [cost, i] : order) {
    const Weighted busier{heap[0].first - cost, heap[0].second};
    pieces_[static_cast<std::size_t>(i)].worker = busier.second;
    std::size_t hole = 0;  // sift down from the top
    for (std::size_t child = 1; child < heap.size(); child = 2 * hole + 1) {
      if (child + 1 < heap.size() && heap[child + 1] < heap[child]) ++child;
      if (busier < heap[child]) break;
      heap[hole] = heap[child];
      hole = child;
    }
    heap[hole] = busier;
  }
  for (const auto& [load, worker] : heap) load_[static_cast<std::size_t>(worker)] = load;
}

// Fills workers in order up to `limit`; whether everything fits.  With `keep`, writes the pieces.
bool Planner::cut(std::int64_t limit, bool keep) {
  std::size_t i = 0;
  std::int32_t head = 0, done = 0;  // tiles of the current (task, head) that are placed
  for (std::int32_t worker = 0; worker < workers_; ++worker) {
    std::int64_t room = limit - load_[static_cast<std::size_t>(worker)];
    while (i < cut_tasks_.size()) {
      const Task& task = task_at(cut_tasks_[i]);
      const TileCost& cost = tile(task);
      const std::int32_t rest = task.tiles - done;
      const std::int64_t whole = cost.a + cost.b * rest + (done > 0 ? cost.c : 0);
      const bool all = whole <= room;
      const std::int64_t some = all ? rest : room < cost.a + cost.b + cost.c ? 0 : (room - cost.a - cost.c) / cost.b;
      if (!all && (some < 1 || some >= rest)) break;
      if (keep) {
        const std::int32_t begin = task.kv_begin + done * cost.keys;
        const std::int32_t end = all ? task.kv_end : begin + static_cast<std::int32_t>(some) * cost.keys;
        pieces_.push_back({cut_tasks_[i], head, begin, end, worker});
      }
      if (!all) {
        done += static_cast<std::int32_t>(some);
        break;
      }
      room -= whole;
      done = 0;
      if (++head == heads_) head = 0, ++i;
    }
  }
  return i == cut_tasks_.size();
}

// The smallest limit that `cut` can meet, to an eighth of a tile.
//
// `high` always fits: a worker that closes has used all but a + b + c of its room, and each of the at most `workers_`
// cuts adds at most a + 2c to the total; so were all workers closed, workers · (high - a - b - c) would exceed the
// total with what the cuts add.
std::int64_t Planner::find_limit() {
  std::int64_t total = 0, a = 0, b = 0, c = 0;
  for (const std::int32_t i : cut_tasks_) {
    const TileCost& cost = tile(task_at(i));
    total += task_at(i).cost * heads_;
    a = std::max(a, cost.a), b = std::max(b, cost.b), c = std::max(c, cost.c);
  }
  for (std::int32_t w = 0; w < workers_; ++w) total += load_[static_cast<std::size_t>(w)];
  std::int64_t low = ceil_div(total, workers_);
  if (cut(low, false)) return fewer_parts(low);
  std::int64_t high = low + 2 * a + b + 3 * c + 1;
  while (high - low > std::max<std::int64_t>(1, b / 8)) {
    const std::int64_t middle = low + (high - low) / 2;
    (cut(middle, false) ? high : low) = middle;
  }
  return fewer_parts(high);
}

// Whoever merges last reads all parts of a row, c each, after everybody else is done.  Where the longest task would be
// split into many, a higher limit that splits it into fewer can end sooner, although workers stay idle.
std::int64_t Planner::fewer_parts(std::int64_t limit) const {
  if (!whole_tasks_.empty()) return limit;
  std::int64_t best = limit, best_end = 0;
  const Task* longest = nullptr;
  for (const std::int32_t i : cut_tasks_)
    if (longest == nullptr || task_at(i).cost > longest->cost) longest = &task_at(i);
  const TileCost& cost = tile(*longest);
  const std::int64_t room = limit - cost.a - cost.c;
  if (longest->cost <= limit || cost.c == 0 || room < cost.b) return limit;
  const std::int64_t most = ceil_div(longest->tiles, room / cost.b);
  best_end = limit + cost.c * most;
  for (std::int64_t parts = most - 1; parts >= 1; --parts) {
    const std::int64_t each = cost.a + cost.b * ceil_div(longest->tiles, parts) + (parts > 1 ? cost.c : 0);
    const std::int64_t end = std::max(each, limit) + (parts > 1 ? cost.c * parts : 0);
    if (end < best_end) best = std::max(each, limit), best_end = end;
  }
  return best;
}

}  // namespace attngen::plan
