#include "append.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "convert.hpp"
#include "threads.hpp"

namespace attngen::host {
namespace {

constexpr std::int64_t kTokensPerTask = 32;
constexpr std::int64_t kLaneStep = 16;

// Where token `slot` of head `head` starts in a pool, in elements.
std::int64_t offset(const Strides& strides, std::int64_t block_size, std::int64_t slot, std::int64_t head) {
  return slot / block_size * strides.block + slot % block_size * strides.token + head * strides.head;
}

template <class From, class To>
void convert_row(const void* from, void* to, std::int64_t lanes) {
  const auto* source = static_cast<const typename From::Storage*>(from);
  auto* target = static_cast<typename To::Storage*>(to);
  for (std::int64_t d = 0; d < lanes; ++d) target[d] = To::narrow(From::widen(source[d]));
}

using Convert = void (*)(const void* from, void* to, std::int64_t lanes);

void copy2(const void* from, void* to, std::int64_t lanes) { std::memcpy(to, from, lanes * 2); }
void copy1(const void* from, void* to, std::int64_t lanes) { std::memcpy(to, from, lanes); }
void copy4(const void* from, void* to, std::int64_t lanes) { std::memcpy(to, from, lanes * 4); }

Convert converter(Type from, Type to) {
  if (from == to) return type_row(from).bytes == 1 ? copy1 : type_row(from).bytes == 2 ? copy2 : copy4;
  Convert found = nullptr;
  with_float(from, [&](auto source) {
    with_float(to, [&](auto target) { found = convert_row<decltype(source), decltype(target)>; });
  });
  return found;
}

char* row_of(const DLTensor& tensor, Type type, std::int64_t token, std::int64_t head) {
  return data(tensor) + (token * stride(tensor, 0) + head * stride(tensor, 1)) * type_row(type).bytes;
}

class Append {
 public:
  Append(const AppendSpec& spec, const PoolView& pool, const Tokens& tokens, const std::int64_t* words)
      : spec_(spec), pool_(pool), tokens_(tokens), words_(words), slots_(data<std::int32_t>(*tokens.slots)) {}

  void run(std::int64_t begin, std::int64_t end) const {
    scatter(begin, end, *tokens_.v, tokens_.v_type, spec_.pool.head_dim_v, pool_.v, pool_.v_strides);
    if (spec_.kernel)
      transform(begin, end);
    else
      scatter(begin, end, *tokens_.k, tokens_.k_type, spec_.pool.head_dim, pool_.k, pool_.k_strides);
  }

 private:
  void scatter(std::int64_t begin, std::int64_t end, const DLTensor& from, Type type, std::int64_t lanes, void* pool,
               const Strides& strides) const {
    const Convert convert = converter(type, spec_.pool.type);
    const std::int64_t bytes = type_row(spec_.pool.type).bytes;
    for (std::int64_t token = begin; token < end; ++token) {
      if (slots_[token] < 0) continue;
      for (std::int64_t head = 0; head < spec_.pool.heads; ++head)
        convert(row_of(from, type, token, head),
                static_cast<char*>(pool) + offset(strides, pool_.block_size, slots_[token], head) * bytes, lanes);
    }
  }

  // Stages the task's keys of one head at a time as fp32 rows for the variant's key stage.
  void transform(std::int64_t begin, std::int64_t end) const {
    const std::int64_t lanes = spec_.pool.head_dim, row = (lanes + kLaneStep - 1) / kLaneStep * kLaneStep;
    const std::int64_t bytes = type_row(spec_.pool.type).bytes;
    const Convert widen = converter(tokens_.k_type, Type::kF32), narrow = converter(Type::kF32, spec_.pool.type);
    auto* x = static_cast<float*>(thread_scratch(kTokensPerTask * row * 4));
    std::int32_t kv[kTokensPerTask], slot[kTokensPerTask];
    for (std::int64_t head = 0; head < spec_.pool.heads; ++head) {
      std::int32_t count = 0;
      for (std::int64_t token = begin; token < end; ++token) {
        if (slots_[token] < 0) continue;
        widen(row_of(*tokens_.k, tokens_.k_type, token, head), x + count * row, lanes);
        std::fill(x + count * row + lanes, x + (count + 1) * row, 0.0f);
        kv[count] = data<std::int32_t>(*tokens_.positions)[token];
        slot[count++] = slots_[token];
      }
      if (count == 0) return;
      const KeyTransform call{x, row, kv, slot, words_, count, static_cast<std::int32_t>(head), spec_.num_qo_heads,
                              static_cast<std::int32_t>(spec_.pool.heads),
                              static_cast<std::int32_t>(spec_.num_qo_heads / spec_.pool.heads), 0};
      spec_.kernel->transform_keys(&call);
      for (std::int32_t i = 0; i < count; ++i)
        narrow(x + i * row,
               static_cast<char*>(pool_.k) + offset(pool_.k_strides, pool_.block_size, slot[i], head) * bytes, lanes);
    }
  }

  const AppendSpec& spec_;
  const PoolView& pool_;
  const Tokens& tokens_;
  const std::int64_t* words_;
  const std::int32_t* slots_;
};

// The largest position + 1, after checking every slot: nothing is written where one is wrong.
std::int64_t check_slots(const Tokens& tokens, std::int64_t count, std::int64_t num_slots) {
  const auto* slots = data<std::int32_t>(*tokens.slots);
  const auto* positions = tokens.positions ? data<std::int32_t>(*tokens.positions) : nullptr;
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (slots[i] >= num_slots)
      refuse("slot " + std::to_string(slots[i]) + " of token " + std::to_string(i) +
             " is outside the pool, which has " + std::to_string(num_slots) + " rows");
    if (!positions || slots[i] < 0) continue;
    if (positions[i] < 0)
      refuse("position " + std::to_string(positions[i]) + " of token " + std::to_string(i) + " is negative");
    longest = std::max<std::int64_t>(longest, positions[i] + std::int64_t{1});
  }
  return longest;
}

}  // namespace

void map_slots(const Requests& requests, std::int64_t block_size, std::int32_t* slots, std::int32_t* positions) {
  const auto entry = [](const char* name, std::int64_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; };
  const std::int64_t first = requests.qo_indptr[0], last = requests.qo_indptr[requests.batch];
  if (first != 0 || last != requests.num_tokens)
    refuse("qo_indptr goes from " + std::to_string(first) + " to " + std::to_string(last) +
           "; it needs to rise from 0 to the number of tokens, " + std::to_string(requests.num_tokens));
  for (std::int32_t b = 0; b < requests.batch; ++b) {
    const std::int64_t begin = requests.qo_indptr[b], end = requests.qo_indptr[b + 1];
    const std::int64_t list = requests.kv_indptr[b], length = requests.kv_len[b];
    if (end < begin || end > requests.num_tokens)
      refuse("qo_indptr goes from " + std::to_string(begin) + " to " + std::to_string(end) + " at entry " +
             std::to_string(b) + "; it needs to rise from 0 to the number of tokens, " +
             std::to_string(requests.num_tokens));
    if (length < end - begin)
      refuse(entry("kv_len", b) + " is " + std::to_string(length) + ", but " + std::to_string(end - begin) +
             " tokens are appended; it needs the length after appending");
    const std::int64_t blocks = (length + block_size - 1) / block_size;
    const std::int64_t own = requests.kv_indptr[b + 1] - list;
    if (list < 0 || own < blocks || (requests.kv_indices && list + own > requests.num_indices))
      refuse("request " + std::to_string(b) + " has " + std::to_string(own) +
             " blocks of " + std::to_string(block_size) + "; kv_len " + std::to_string(length) + " needs " +
             std::to_string(blocks));
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int64_t position = length - (end - token);
      const std::int64_t at = list + position / block_size;
      const std::int64_t block = requests.kv_indices ? requests.kv_indices[at] : at;
      const std::int64_t slot = block * block_size + position % block_size;
      if (block < 0 || slot > std::numeric_limits<std::int32_t>::max())
        refuse(entry("kv_indices", at) + " is " + std::to_string(block) + ", which is no block of a pool");
      slots[token] = static_cast<std::int32_t>(slot);
      positions[token] = static_cast<std::int32_t>(position);
    }
  }
}

PoolView check_append(const AppendSpec& spec, const DLTensor& k_pool, const DLTensor* v_pool, const Tokens& tokens) {
  const DLDevice device = spec.pool.device;
  const PoolView pool = view_pool(spec.pool, k_pool, v_pool);
  check_writable("the K pool", k_pool);
  if (v_pool) check_writable("the V pool", *v_pool);
  if (tokens.slots->ndim != 1) refuse("argument `slots` is " + describe(*tokens.slots) + "; it needs i32[tokens]");
  const std::int64_t count = tokens.slots->shape[0];
  check_tensor("argument `k`", *tokens.k, tokens.k_type,
               {{"tokens", count}, {"Hk", spec.pool.heads}, {"D", spec.pool.head_dim}}, false, device);
  check_tensor("argument `v`", *tokens.v, tokens.v_type,
               {{"tokens", count}, {"Hk", spec.pool.heads}, {"Dv", spec.pool.head_dim_v}}, false, device);
  check_tensor("argument `slots`", *tokens.slots, Type::kI32, {{"tokens", count}}, false, device);
  if (tokens.positions)
    check_tensor("argument `positions`", *tokens.positions, Type::kI32, {{"tokens", count}}, false, device);
  if (!converter(tokens.k_type, spec.pool.type) || !converter(tokens.v_type, spec.pool.type))
    refuse("arguments `k` and `v` are " + describe(*tokens.k) + " and " + describe(*tokens.v) +
           "; they need a float type");
  return pool;
}

void append(const AppendSpec& spec, const DLTensor& k_pool, const DLTensor* v_pool, const Tokens& tokens,
            Arguments& arguments, const Value* values) {
  const PoolView pool = check_append(spec, k_pool, v_pool, tokens);
  const std::int64_t count = tokens.slots->shape[0];
  const std::int64_t num_slots = pool.blocks * pool.block_size;
  const std::int64_t longest = check_slots(tokens, count, num_slots);
  arguments.fill(values, {{0, 0, num_slots, 0, longest}});
  const Append work(spec, pool, tokens, arguments.words());
  const auto task = [&](std::int32_t index) {
    work.run(index * kTokensPerTask, std::min(count, (index + 1) * kTokensPerTask));
  };
  parallel(spec.threads, static_cast<std::int32_t>((count + kTokensPerTask - 1) / kTokensPerTask), task);
}

}  // namespace attngen::host
