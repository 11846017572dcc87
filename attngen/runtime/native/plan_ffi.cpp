// The planner for Python: `planner(config) -> plan(arena, …)`, in the layout that runtime/plan.py writes.
#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <numeric>
#include <utility>

#include "plan.hpp"

namespace attngen::plan {
namespace {

namespace ffi = tvm::ffi;

// Reads the flat configuration in order.
class Reader {
 public:
  explicit Reader(const ffi::Array<std::int64_t>& words) : words_(words) {}
  std::int64_t next() { return words_[next_++]; }
  std::int32_t next32() { return static_cast<std::int32_t>(next()); }
  bool done() const { return next_ == static_cast<std::int64_t>(words_.size()); }

 private:
  const ffi::Array<std::int64_t>& words_;
  std::int64_t next_ = 0;
};

Config read_config(Reader& words) {
  Config config{};
  config.num_qo_heads = words.next32();
  config.num_kv_heads = words.next32();
  config.group = config.num_qo_heads / config.num_kv_heads;
  for (std::int64_t queues = words.next(); queues > 0; --queues) config.queues.push_back(words.next32());
  config.num_workers = std::accumulate(config.queues.begin(), config.queues.end(), 0);
  config.num_scalars = words.next32();
  config.storage = static_cast<Storage>(words.next());
  config.block_size = words.next32();
  config.block_rows = words.next32();
  config.batch_invariant = words.next() != 0;
  config.chunk_tiles = words.next();
  config.max_chunks = words.next();
  Limits& limits = config.limits;
  for (std::int64_t* limit : {&limits.batch, &limits.q_tokens, &limits.q_len, &limits.kv_tokens, &limits.kv_len,
                              &limits.levels, &limits.level_rows, &limits.blocks, &limits.partial_rows, &limits.merges})
    *limit = words.next();
  for (std::int64_t tiles = words.next(); tiles > 0; --tiles) {
    TileCost tile{};
    tile.rows = words.next32();
    tile.keys = words.next32();
    tile.queue = words.next32();
    tile.a = words.next();
    tile.b = words.next();
    tile.c = words.next();
    config.tiles.push_back(tile);
  }
  return config;
}

KeyBounds read_bounds(Reader& words, std::int32_t num_scalars) {
  const bool has_mask = words.next() != 0;
  std::vector<KeyBounds::Program> programs(static_cast<std::size_t>(words.next()));
  for (KeyBounds::Program& program : programs)
    for (std::int64_t steps = words.next(); steps > 0; --steps) {
      const auto op = static_cast<BoundOp>(words.next());
      program.emplace_back(op, words.next());
    }
  return KeyBounds(std::move(programs), has_mask, num_scalars);
}

// A host array; or one on GPU `gpu`, where that isn't negative.
Ints read_ints(const ffi::AnyView& value, const char* name, std::int32_t gpu = -1) {
  if (value == nullptr) return {};
  const auto tensor = value.try_cast<ffi::TensorView>();
  if (!tensor) throw Fault(text("%s is a %s, need a tensor or a list of integers", name, value.GetTypeKey().c_str()));
  const DLDataType type = tensor->dtype();
  if (type.code != kDLInt || (type.bits != 32 && type.bits != 64) || type.lanes != 1)
    throw Fault(text("%s has type %s, need int32 or int64", name, std::string(ffi::DLDataTypeToString(type)).c_str()));
  if (tensor->ndim() != 1) throw Fault(text("%s has %d dimensions, need 1", name, tensor->ndim()));
  if (!tensor->IsContiguous()) throw Fault(text("%s is not contiguous", name));
  const DLDevice device = tensor->device();
  Ints ints;
  ints.device = device.device_type != kDLCPU && device.device_type != kDLCUDAHost;
  if (ints.device && gpu < 0) throw Fault(text("%s is on a device, need host integers", name));
  if (ints.device && (device.device_type != kDLCUDA || device.device_id != gpu))
    throw Fault(text("%s is on another device, need it on cuda:%d or host integers", name, gpu));
  if (ints.device && type.bits != 32) throw Fault(text("%s on a device has type int64, need int32 there", name));
  ints.data = static_cast<const std::byte*>(tensor->data_ptr()) + tensor->byte_offset();
  ints.size = tensor->size(0);
  ints.given = true;
  ints.wide = type.bits == 64;
  return ints;
}

class Call {
 public:
  Call(Planner* planner, std::int32_t num_scalars) : planner_(planner), num_scalars_(num_scalars) {}

  std::int64_t operator()(ffi::PackedArgs args) {
    Input& input = input_;
    const auto arena = args[0].cast<ffi::TensorView>();
    input.arena = static_cast<std::byte*>(arena.data_ptr()) + arena.byte_offset();
    input.arena_bytes = arena.numel();
    input.num_blocks = args[1] == nullptr ? -1 : args[1].cast<std::int64_t>();
    input.arena_address = args[2].cast<std::int64_t>();
    const std::int32_t gpu = input.arena_address == 0 ? -1 : args[3].cast<std::int32_t>();
    input.qo_indptr = read_ints(args[4], "qo_indptr");
    input.kv_indptr = read_ints(args[5], "kv_indptr");
    input.kv_indices = read_ints(args[6], "kv_indices", gpu);
    input.kv_len = read_ints(args[7], "kv_len");
    input.last_page_len = read_ints(args[8], "last_page_len");
    input.kv_positions = read_ints(args[9], "kv_positions", gpu);
    std::int32_t next = 10;
    scalars_.clear();
    for (std::int32_t i = 0; i < num_scalars_; ++i) scalars_.push_back(args[next++].cast<std::int64_t>());
    input.scalars = scalars_.data();
    input.levels.clear();
    for (std::int32_t level = 0; next < args.size(); ++level) {
      const auto take = [&](const char* name, std::int32_t where = -1) {
        return read_ints(args[next++], text("levels[%d].%s", level, name).c_str(), where);
      };
      LevelInput view{};
      view.qo_indptr = take("qo_indptr");
      view.tokens = take("tokens");
      view.kv_indptr = take("kv_indptr");
      view.kv_indices = take("kv_indices", gpu);
      view.kv_len = take("kv_len");
      view.kv_positions = take("kv_positions", gpu);
      view.block_size = args[next++].cast<std::int32_t>();
      input.levels.push_back(view);
    }
    return planner_->plan(input);
  }

 private:
  Planner* planner_;
  std::int32_t num_scalars_;
  Input input_{};
  std::vector<std::int64_t> scalars_;
};

// Runs `body`; what it finds wrong becomes a ValueError in Python.
template <class Body>
auto checked(Body body) {
  try {
    return body();
  } catch (const std::invalid_argument& fault) {
    TVM_FFI_THROW(ValueError) << fault.what();
  }
}

ffi::Function make_planner(const ffi::Array<std::int64_t>& words) {
  return checked([&] {
    Reader reader(words);
    Config config = read_config(reader);
    const std::int32_t num_scalars = config.num_scalars;
    KeyBounds bounds = read_bounds(reader, num_scalars);
    if (!reader.done()) throw Fault("planner: the configuration has words left over");
    auto planner = std::make_shared<Planner>(std::move(config), std::move(bounds));
    auto call = std::make_shared<Call>(planner.get(), num_scalars);
    return ffi::Function::FromPacked([planner, call](ffi::PackedArgs args, ffi::Any* result) {
      *result = checked([&] { return (*call)(args); });
    });
  });
}

}  // namespace
}  // namespace attngen::plan

TVM_FFI_DLL_EXPORT_TYPED_FUNC(planner, attngen::plan::make_planner);
