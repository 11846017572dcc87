// What Python calls of the host library, besides the planner (plan_ffi.cpp), and what its parts share.
#include "host.hpp"

#include <dlfcn.h>
#include <tvm/ffi/tvm_ffi.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "append.hpp"
#include "arguments.hpp"
#include "cuda_append.hpp"
#include "cuda_launch.hpp"
#include "launch.hpp"
#include "merge.hpp"

namespace attngen::host {

namespace ffi = tvm::ffi;

void refuse(const std::string& message) { TVM_FFI_THROW(ValueError) << message; }

void fail(const std::string& message) { TVM_FFI_THROW(RuntimeError) << message; }

const TypeRow& type_row(Type type) {
  static constexpr TypeRow kRows[kNumTypes] = {
      {"f32", 4, {kDLFloat, 32, 1}},         {"f16", 2, {kDLFloat, 16, 1}},        {"bf16", 2, {kDLBfloat, 16, 1}},
      {"e4m3", 1, {kDLFloat8_e4m3fn, 8, 1}}, {"e5m2", 1, {kDLFloat8_e5m2, 8, 1}},  {"i64", 8, {kDLInt, 64, 1}},
      {"i32", 4, {kDLInt, 32, 1}},           {"i16", 2, {kDLInt, 16, 1}},          {"i8", 1, {kDLInt, 8, 1}},
      {"u8", 1, {kDLUInt, 8, 1}},            {"bool", 1, {kDLBool, 8, 1}},
  };
  return kRows[static_cast<int>(type)];
}

bool same_type(DLDataType a, Type b) {
  const DLDataType& type = type_row(b).dlpack;
  return a.code == type.code && a.bits == type.bits && a.lanes == 1;
}

namespace {

std::optional<Type> find_type(DLDataType type) {
  for (int i = 0; i < kNumTypes; ++i)
    if (same_type(type, static_cast<Type>(i))) return static_cast<Type>(i);
  return std::nullopt;
}

}  // namespace

bool same_device(DLDevice a, DLDevice b) {
  return a.device_type == b.device_type && (a.device_type == kDLCPU || a.device_id == b.device_id);
}

std::string device_name(DLDevice device) {
  if (device.device_type == kDLCPU) return "cpu";
  return device.device_type == kDLCUDA ? "cuda:" + std::to_string(device.device_id) : "another device";
}

std::string describe(const DLTensor& tensor, DLDevice expected) {
  const std::optional<Type> type = find_type(tensor.dtype);
  std::string text = type ? type_row(*type).name : std::string(ffi::DLDataTypeToString(tensor.dtype));
  text += "[";
  for (int axis = 0; axis < tensor.ndim; ++axis) text += (axis ? ", " : "") + std::to_string(tensor.shape[axis]);
  text += "]";
  const bool told = tensor.device.device_type == kDLCPU && same_device(tensor.device, expected);
  return told ? text : text + " on " + device_name(tensor.device);
}

namespace {

// What Python calls the type of a value that is neither a number nor a tensor.
const char* type_name(const ffi::AnyView& any) {
  const std::string key = any.GetTypeKey();
  if (key.find("Str") != std::string::npos) return "str";
  if (key.find("Array") != std::string::npos || key.find("List") != std::string::npos) return "list";
  return key.find("Map") != std::string::npos || key.find("Dict") != std::string::npos ? "dict" : "Python object";
}

Value read_value(const ffi::AnyView& any) {
  Value value;
  switch (any.type_index()) {
    case ffi::TypeIndex::kTVMFFINone: break;
    case ffi::TypeIndex::kTVMFFIBool:
      value.kind = Value::Kind::kBool;
      value.integer = any.cast<bool>();
      break;
    case ffi::TypeIndex::kTVMFFIInt:
      value.kind = Value::Kind::kInt;
      value.integer = any.cast<std::int64_t>();
      break;
    case ffi::TypeIndex::kTVMFFIFloat:
      value.kind = Value::Kind::kFloat;
      value.real = any.cast<double>();
      break;
    default:
      if (const auto tensor = any.try_cast<DLTensor*>()) {
        value.kind = Value::Kind::kTensor;
        value.tensor = *tensor;
      } else {
        value.kind = Value::Kind::kOther;
        value.type = type_name(any);
      }
  }
  return value;
}

const DLTensor* read_tensor(const ffi::AnyView& any, const char* name) {
  const auto tensor = any.try_cast<DLTensor*>();
  if (!tensor) {
    const Value value = read_value(any);
    const bool other = value.kind == Value::Kind::kOther;
    refuse(std::string("argument `") + name + "` is a " + (other ? value.type : "number or None") +
           "; it needs a tensor");
  }
  return *tensor;
}

const DLTensor* read_optional_tensor(const ffi::AnyView& any, const char* name) {
  return any == nullptr ? nullptr : read_tensor(any, name);
}

// A row of a flat specification, read in order.
class Reader {
 public:
  explicit Reader(ffi::Array<ffi::Any> values) : values_(std::move(values)) {}
  template <class T>
  T next() {
    return values_[next_++].cast<T>();
  }
  std::int64_t integer() { return next<std::int64_t>(); }
  Type type() { return static_cast<Type>(integer()); }

  // A number, the name of a bound dimension by index (-1 - index), or nothing.
  std::optional<Limit> limit() {
    const bool given = integer() != 0;
    const auto number = next<double>();
    const auto dim = static_cast<int>(integer());
    return given ? std::optional<Limit>(Limit{number, dim}) : std::nullopt;
  }

 private:
  ffi::Array<ffi::Any> values_;
  std::int64_t next_ = 0;
};

// name, type, scalar, planned, needed, rank, (dim name, kind, value)…, low, high; see runtime/arguments.py.
Parameter read_parameter(const ffi::Array<ffi::Any>& row) {
  Reader reader(row);
  Parameter parameter;
  parameter.name = reader.next<ffi::String>();
  parameter.type = reader.type();
  parameter.scalar = reader.integer() != 0;
  parameter.planned = reader.integer() != 0;
  parameter.needed = reader.integer() != 0;
  for (std::int64_t rank = reader.integer(); rank > 0; --rank) {
    Dim dim;
    dim.name = reader.next<ffi::String>();
    dim.kind = static_cast<Dim::Kind>(reader.integer());
    dim.value = reader.integer();
    parameter.dims.push_back(std::move(dim));
  }
  parameter.low = reader.limit();
  parameter.high = reader.limit();
  return parameter;
}

Arguments read_arguments(const ffi::Array<ffi::Array<ffi::Any>>& rows, bool check, Place place = {}) {
  std::vector<Parameter> parameters;
  for (const ffi::Array<ffi::Any>& row : rows) parameters.push_back(read_parameter(row));
  return Arguments(std::move(parameters), check, place);
}

// block_size, heads_first, may_be_blocked, may_be_flat, type, heads, head_dim, head_dim_v; see runtime/kv.py.
PoolSpec read_pool(const ffi::Array<std::int64_t>& words) {
  return {words[0], words[1] != 0, words[2] != 0, words[3] != 0, static_cast<Type>(words[4]),
          words[5], words[6],      words[7]};
}

std::vector<Value> read_values(ffi::PackedArgs args, int first) {
  std::vector<Value> values;
  values.reserve(args.size() - first + 1);
  for (int i = first; i < args.size(); ++i) values.push_back(read_value(args[i]));
  return values;
}

const Kernel* kernel_of(std::int64_t handle) { return reinterpret_cast<const Kernel*>(handle); }

std::int64_t open_kernel(const ffi::String& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(dlerror());
  const auto find = [&](const char* symbol) { return dlsym(library, symbol); };
  const auto worker = reinterpret_cast<CpuWorker>(find(kCpuWorkerSymbol));
  const auto scratch = reinterpret_cast<CpuScratchBytes>(find(kCpuScratchSymbol));
  if (worker == nullptr || scratch == nullptr)
    fail(std::string(path) + " exports no " + (worker ? kCpuScratchSymbol : kCpuWorkerSymbol));
  auto* kernel = new Kernel{path};
  kernel->worker = worker;
  kernel->scratch_bytes = scratch();
  kernel->transform_keys = reinterpret_cast<CpuTransformKeys>(find(kCpuTransformSymbol));
  return reinterpret_cast<std::int64_t>(kernel);
}

// Touches no GPU: a cubin is loaded by the first launcher on a device.
std::int64_t open_cubin(const ffi::String& path, std::int64_t threads, std::int64_t shared_bytes) {
  auto* kernel = new Kernel{path};
  kernel->cubin = std::make_unique<cuda::Cubin>(path);
  kernel->threads = static_cast<int>(threads);
  kernel->shared_bytes = static_cast<int>(shared_bytes);
  return reinterpret_cast<std::int64_t>(kernel);
}

void use_cuda_library(const ffi::String& name) { cuda::use_library(name); }

// What a launcher needs to live on: the arena (of bytes) and partials, held for as long as the launcher.
struct Workspace {
  ffi::Tensor arena, partial_out, partial_lse, arrived;
};

// Pool, then type, num_qo_heads, num_kv_heads, softmax, num_levels; see runtime/engine.py.
LaunchSpec read_spec(const ffi::Array<std::int64_t>& pool, const ffi::Array<std::int64_t>& words, double lse_scale,
                     const Workspace& workspace) {
  LaunchSpec spec{};
  spec.pool = read_pool(pool);
  spec.type = static_cast<Type>(words[0]);
  spec.num_qo_heads = static_cast<std::int32_t>(words[1]);
  spec.num_kv_heads = static_cast<std::int32_t>(words[2]);
  spec.softmax = words[3] != 0;
  spec.num_levels = static_cast<std::int32_t>(words[4]);
  spec.lse_scale = lse_scale;
  spec.partial_out = static_cast<float*>(workspace.partial_out.data_ptr());
  spec.partial_lse = static_cast<float*>(workspace.partial_lse.data_ptr());
  spec.arrived = static_cast<std::uint32_t*>(workspace.arrived.data_ptr());
  return spec;
}

// Reads the tensors of a call, q, k, v or None, out, lse or None, raw, then the value of every parameter from `first`,
// and hands them on.
template <class Body>
void with_call(ffi::PackedArgs args, int first, Body body) {
  constexpr int kMost = 64;
  const int count = args.size() - first;
  Value few[kMost];
  std::vector<Value> many(count > kMost ? count : 0);
  Value* values = count > kMost ? many.data() : few;
  for (int i = 0; i < count; ++i) values[i] = read_value(args[first + i]);
  body(Call{read_tensor(args[0], "q"), read_tensor(args[1], "kv"), read_optional_tensor(args[2], "kv"),
            read_tensor(args[3], "out"), read_optional_tensor(args[4], "lse"), args[5].cast<bool>(), values});
}

// (run, forget, planned) of a launcher that lives as long as any of them.
ffi::Array<ffi::Function> make_launcher(std::int64_t kernel, std::int64_t threads,
                                        const ffi::Array<std::int64_t>& pool, const ffi::Array<std::int64_t>& words,
                                        double lse_scale, ffi::Tensor arena, ffi::Tensor partial_out,
                                        ffi::Tensor partial_lse, ffi::Tensor arrived,
                                        const ffi::Array<ffi::Array<ffi::Any>>& parameters, bool check) {
  struct Own {
    Workspace workspace;
    Launcher launcher;
  };
  const Workspace workspace{arena, partial_out, partial_lse, arrived};
  const auto own = std::shared_ptr<Own>(new Own{
      workspace, {read_spec(pool, words, lse_scale, workspace), kernel_of(kernel), static_cast<int>(threads),
                  static_cast<PlanHeader*>(arena.data_ptr()), read_arguments(parameters, check)}});

  // run(q, k, v or None, out, lse or None, raw, value of every parameter…)
  ffi::Function run = ffi::Function::FromPacked([own](ffi::PackedArgs args, ffi::Any*) {
    with_call(args, 6, [&](const Call& call) { own->launcher.run(call); });
  });
  ffi::Function forget = ffi::Function::FromPacked([own](ffi::PackedArgs, ffi::Any*) { own->launcher.forget(); });
  // planned(value of every parameter…), of which the planned ones count
  ffi::Function planned = ffi::Function::FromPacked(
      [own](ffi::PackedArgs args, ffi::Any*) { own->launcher.planned(read_values(args, 0).data()); });
  return {run, forget, planned};
}

cuda::Stream stream_of(const ffi::AnyView& handle) {
  return reinterpret_cast<cuda::Stream>(handle.cast<std::int64_t>());
}

// (run, begin, planned, commit, is_capturing, release_graphs) of a launcher that lives as long as any of them.  `device` is DLPack's
// (type, index), `queues` a kernel and its CTAs each, `buffers` pinned bytes [number, bytes of the arena].
ffi::Array<ffi::Function> make_cuda_launcher(const ffi::Array<std::int64_t>& queues,
                                             const ffi::Array<std::int64_t>& device,
                                             const ffi::Array<std::int64_t>& pool,
                                             const ffi::Array<std::int64_t>& words, double lse_scale, ffi::Tensor arena,
                                             ffi::Tensor partial_out, ffi::Tensor partial_lse, ffi::Tensor arrived,
                                             ffi::Tensor zeros, ffi::Tensor buffers,
                                             const ffi::Array<ffi::Array<ffi::Any>>& parameters, bool check) {
  struct Own {
    Workspace workspace;
    ffi::Tensor zeros, buffers;
    CudaLauncher launcher;  // last, since it waits for the device before the rest goes
  };
  const Workspace workspace{arena, partial_out, partial_lse, arrived};
  const DLDevice place{static_cast<DLDeviceType>(device[0]), static_cast<std::int32_t>(device[1])};
  CudaSpec spec{};
  spec.common = read_spec(pool, words, lse_scale, workspace);
  spec.common.pool.device = place;
  spec.device = place.device_id;
  for (std::size_t i = 0; i + 1 < queues.size(); i += 2)
    spec.queues.push_back({kernel_of(queues[i]), static_cast<std::int32_t>(queues[i + 1])});
  spec.arena = reinterpret_cast<cuda::Address>(arena.data_ptr());
  for (std::int64_t i = 0; i < buffers.size(0); ++i)
    spec.buffers.push_back(static_cast<std::byte*>(buffers.data_ptr()) + i * buffers.size(1));
  const auto own = std::shared_ptr<Own>(new Own{
      workspace, zeros, buffers, {std::move(spec), read_arguments(parameters, check, {place, zeros.data_ptr()})}});

  // run(q, k, v or None, out, lse or None, raw, stream, value of every parameter…)
  ffi::Function run = ffi::Function::FromPacked([own](ffi::PackedArgs args, ffi::Any*) {
    with_call(args, 7, [&](const Call& call) { own->launcher.run(call, stream_of(args[6])); });
  });
  ffi::Function begin = ffi::Function::FromPacked([own](ffi::PackedArgs args, ffi::Any* buffer) {
    *buffer = static_cast<std::int64_t>(own->launcher.begin(stream_of(args[0])));
  });
  ffi::Function planned = ffi::Function::FromPacked(
      [own](ffi::PackedArgs args, ffi::Any*) { own->launcher.planned(read_values(args, 0).data()); });
  ffi::Function commit = ffi::Function::FromPacked(
      [own](ffi::PackedArgs args, ffi::Any*) { own->launcher.commit(stream_of(args[0])); });
  ffi::Function is_capturing = ffi::Function::FromPacked([own](ffi::PackedArgs args, ffi::Any* result) {
    *result = own->launcher.is_capturing(stream_of(args[0]));
  });
  ffi::Function release_graphs =
      ffi::Function::FromPacked([own](ffi::PackedArgs, ffi::Any*) { own->launcher.release_graphs(); });
  return {run, begin, planned, commit, is_capturing, release_graphs};
}

// check(value of every parameter…): refuses what lies outside its declared range.  Tensors are on the CPU, and have been
// checked otherwise.
ffi::Function make_range_check(const ffi::Array<ffi::Array<ffi::Any>>& parameters) {
  const auto arguments = std::make_shared<Arguments>(read_arguments(parameters, true));
  return ffi::Function::FromPacked([arguments](ffi::PackedArgs args, ffi::Any*) {
    arguments->fill(read_values(args, 0).data(), Extents{});
  });
}

// out, lse or None, natural, threads, (out, lse or None) of every state…
void merge_states(ffi::PackedArgs args, ffi::Any*) {
  const DLTensor& out = *read_tensor(args[0], "out");
  std::vector<State> states;
  for (int i = 4; i + 1 < args.size(); i += 2)
    states.push_back({read_tensor(args[i], "states"), read_optional_tensor(args[i + 1], "states")});
  const std::optional<Type> type = find_type(out.dtype);
  if (!type || out.ndim != 3)
    refuse("states[0][0] is " + describe(out) + "; it needs a float tensor [rows, heads, lanes]");
  merge(states, out, read_optional_tensor(args[1], "lse"), *type, args[2].cast<bool>(), args[3].cast<int>());
}

// `affine`: there are no kv_indices.
void map_request_slots(ffi::TensorView qo_indptr, ffi::TensorView kv_indptr, ffi::TensorView kv_indices, bool affine,
                       ffi::TensorView kv_len, std::int64_t block_size, ffi::TensorView slots,
                       ffi::TensorView positions) {
  const auto ints = [](const ffi::TensorView& tensor) { return static_cast<std::int32_t*>(tensor.data_ptr()); };
  const Requests requests{ints(qo_indptr),
                          ints(kv_indptr),
                          affine ? nullptr : ints(kv_indices),
                          ints(kv_len),
                          static_cast<std::int32_t>(kv_len.numel()),
                          kv_indices.numel(),
                          slots.numel()};
  map_slots(requests, block_size, ints(slots), ints(positions));
}

// Of an append's arguments: …, k, v, slots, positions or None, …
Tokens read_tokens(ffi::PackedArgs args) {
  Tokens tokens{};
  tokens.k = read_tensor(args[2], "k");
  tokens.v = read_tensor(args[3], "v");
  tokens.slots = read_tensor(args[4], "slots");
  tokens.positions = read_optional_tensor(args[5], "positions");
  const std::optional<Type> k_type = find_type(tokens.k->dtype), v_type = find_type(tokens.v->dtype);
  if (!k_type || !v_type) refuse("arguments `k` and `v` need a float type");
  tokens.k_type = *k_type;
  tokens.v_type = *v_type;
  return tokens;
}

// append(k pool, v pool or None, k, v, slots, positions or None, value of every parameter…)
ffi::Function make_append(std::int64_t kernel, const ffi::Array<std::int64_t>& pool, std::int64_t num_qo_heads,
                          std::int64_t threads, const ffi::Array<ffi::Array<ffi::Any>>& parameters, bool check) {
  AppendSpec spec{};
  spec.pool = read_pool(pool);
  spec.kernel = kernel_of(kernel);
  spec.num_qo_heads = static_cast<std::int32_t>(num_qo_heads);
  spec.threads = static_cast<int>(threads);
  if (spec.kernel && !spec.kernel->transform_keys)
    fail("the kernel " + spec.kernel->path + " exports no " + kCpuTransformSymbol);
  const auto arguments = std::make_shared<Arguments>(read_arguments(parameters, check));
  return ffi::Function::FromPacked([spec, arguments](ffi::PackedArgs args, ffi::Any*) {
    Arguments own = *arguments;  // calls from several threads don't share words
    append(spec, *read_tensor(args[0], "pool"), read_optional_tensor(args[1], "pool"), read_tokens(args), own,
           read_values(args, 6).data());
  });
}

// append(k pool, v pool or None, k, v, slots, positions or None, stream, longest, value of every parameter…); `device`
// is DLPack's (type, index), `zeros` 64 bytes there.
ffi::Function make_cuda_append(std::int64_t kernel, const ffi::Array<std::int64_t>& device,
                               const ffi::Array<std::int64_t>& pool, std::int64_t num_qo_heads, ffi::Tensor zeros,
                               const ffi::Array<ffi::Array<ffi::Any>>& parameters) {
  AppendSpec spec{};
  spec.pool = read_pool(pool);
  spec.pool.device = {static_cast<DLDeviceType>(device[0]), static_cast<std::int32_t>(device[1])};
  spec.kernel = kernel_of(kernel);
  spec.num_qo_heads = static_cast<std::int32_t>(num_qo_heads);
  const auto arguments =
      std::make_shared<Arguments>(read_arguments(parameters, false, {spec.pool.device, zeros.data_ptr()}));
  const cuda::Function function = load_append(spec);
  return ffi::Function::FromPacked([spec, arguments, zeros, function](ffi::PackedArgs args, ffi::Any*) {
    Arguments own = *arguments;
    append_on_gpu(spec, function, *read_tensor(args[0], "pool"), read_optional_tensor(args[1], "pool"),
                  read_tokens(args), args[7].cast<std::int64_t>(), own, read_values(args, 8).data(),
                  stream_of(args[6]));
  });
}

}  // namespace
}  // namespace attngen::host

TVM_FFI_DLL_EXPORT_TYPED_FUNC(open_kernel, attngen::host::open_kernel);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(open_cubin, attngen::host::open_cubin);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(use_cuda_library, attngen::host::use_cuda_library);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launcher, attngen::host::make_launcher);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cuda_launcher, attngen::host::make_cuda_launcher);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(range_check, attngen::host::make_range_check);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(map_slots, attngen::host::map_request_slots);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(append, attngen::host::make_append);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cuda_append, attngen::host::make_cuda_append);

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_merge(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  attngen::host::merge_states(tvm::ffi::PackedArgs(reinterpret_cast<const tvm::ffi::AnyView*>(args), count),
                              reinterpret_cast<tvm::ffi::Any*>(result));
  TVM_FFI_SAFE_CALL_END();
}
