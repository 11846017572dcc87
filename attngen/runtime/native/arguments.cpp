#include "arguments.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "convert.hpp"

namespace attngen::host {
namespace {

constexpr const char* kExtentNames[5] = {"B", "Rows", "Slots", "Q", "KV"};

// What an empty tensor is read as: one zero, whatever the index.
alignas(64) constexpr char kZeros[64] = {};

std::string quoted(const std::string& name) { return "`" + name + "`"; }

bool fits(Type type, std::int64_t value) {
  switch (type) {
    case Type::kI32: return value == static_cast<std::int32_t>(value);
    case Type::kI16: return value == static_cast<std::int16_t>(value);
    case Type::kI8: return value == static_cast<std::int8_t>(value);
    case Type::kU8: return value == static_cast<std::uint8_t>(value);
    default: return true;
  }
}

double element(Type type, const char* at) {
  const auto read = [at](auto sample) {
    decltype(sample) value;
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  double result = 0;
  const auto read_float = [&](auto format) {
    using Format = decltype(format);
    result = Format::widen(read(typename Format::Storage{}));
  };
  if (with_float(type, read_float)) return result;
  switch (type) {
    case Type::kI64: return static_cast<double>(read(std::int64_t{}));
    case Type::kI32: return read(std::int32_t{});
    case Type::kI16: return read(std::int16_t{});
    case Type::kI8: return read(std::int8_t{});
    case Type::kU8: return read(std::uint8_t{});
    default: return *at != 0;
  }
}

// The shortest text that reads back as the same number.
std::string number(double value) {
  char text[32];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

// As Python writes it, so that 9.0 isn't taken for an integer.
std::string real(double value) {
  const std::string digits = number(value);
  return digits.find_first_not_of("-0123456789") == std::string::npos ? digits + ".0" : digits;
}

std::string got(const Value& value, DLDevice expected) {
  switch (value.kind) {
    case Value::Kind::kBool: return value.integer ? "True" : "False";
    case Value::Kind::kInt: return std::to_string(value.integer);
    case Value::Kind::kFloat: return real(value.real);
    case Value::Kind::kTensor: return describe(*value.tensor, expected);
    case Value::Kind::kOther: return std::string("a ") + value.type;
    case Value::Kind::kMissing: break;
  }
  return "nothing";
}

}  // namespace

Arguments::Arguments(std::vector<Parameter> parameters, bool check_ranges, Place place)
    : parameters_(std::move(parameters)), check_ranges_(check_ranges), place_(place) {
  if (place_.zeros == nullptr) place_.zeros = kZeros;
  std::size_t words = 0;
  std::int64_t names = 0;
  for (const Parameter& parameter : parameters_) {
    offsets_.push_back(words);
    words += parameter.scalar ? 2 : 1 + 2 * parameter.dims.size();
    for (const Dim& dim : parameter.dims)
      if (dim.kind == Dim::Kind::kBound && dim.value >= names) names = dim.value + 1;
  }
  words_.assign(words, 0);
  bound_.assign(names, -1);
  bound_by_.assign(names, nullptr);
  // A tensor that this call doesn't read still has to be safe to load from.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].scalar) continue;
    std::int64_t* at = words_.data() + offsets_[i];
    at[0] = reinterpret_cast<std::int64_t>(place_.zeros);
    for (std::size_t axis = 0; axis < parameters_[i].dims.size(); ++axis) at[1 + 2 * axis] = 1;
  }
}

void Arguments::fill(const Value* values, const Extents& extents) {
  bound_.assign(bound_.size(), -1);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (parameter.planned || !parameter.needed) continue;
    std::int64_t* words = words_.data() + offsets_[i];
    if (values[i].kind == Value::Kind::kMissing) missing(parameter, &extents);
    if (parameter.scalar)
      fill_scalar(parameter, values[i], words);
    else
      fill_tensor(parameter, values[i], extents, words);
  }
  if (!check_ranges_ || place_.device.device_type != kDLCPU) return;
  // Last, since a range may end at a dimension that a later tensor binds.
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (values[i].kind == Value::Kind::kTensor) check_range(parameters_[i], *values[i].tensor);
}

void Arguments::plan_scalars(const Value* values) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].planned) continue;
    if (values[i].kind == Value::Kind::kMissing) missing(parameters_[i], nullptr);
    fill_scalar(parameters_[i], values[i], words_.data() + offsets_[i]);
  }
}

void Arguments::hold(const Value* values, Held& held) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (values[i].kind != Value::Kind::kTensor || parameters_[i].planned || !parameters_[i].needed) continue;
    for (std::size_t axis = 0; axis < parameters_[i].dims.size(); ++axis)
      if (const Dim& dim = parameters_[i].dims[axis]; dim.kind == Dim::Kind::kAtLeast)
        held.narrow(static_cast<int>(dim.value), values[i].tensor->shape[axis], quoted(parameters_[i].name));
  }
}

void Arguments::read_planned_at(std::int64_t address) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].planned) continue;
    words_[offsets_[i] + 1] = address;
    address += 8;
  }
}

void Arguments::write_planned(std::int64_t* words) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].planned) *words++ = words_[offsets_[i]];
}

void Arguments::missing(const Parameter& parameter, const Extents* extents) const {
  refuse("missing argument " + quoted(parameter.name) + ": the variant needs " + wanted(parameter, extents));
}

void Arguments::fill_scalar(const Parameter& parameter, const Value& value, std::int64_t* words) const {
  const bool real = parameter.type == Type::kF32;
  const bool truth = parameter.type == Type::kBool;
  const bool integral = !real && !truth;
  if (value.kind == Value::Kind::kTensor) {
    const DLTensor& tensor = *value.tensor;
    if (tensor.ndim != 0 || !same_type(tensor.dtype, parameter.type) || !same_device(tensor.device, place_.device))
      refuse("argument " + quoted(parameter.name) + " is " + got(value, place_.device) + "; it needs " + wanted(parameter, nullptr));
    words[0] = 0;
    words[1] = reinterpret_cast<std::int64_t>(data(tensor));
    return;
  }
  double checked = 0;
  words[1] = 0;
  if (truth && value.kind == Value::Kind::kBool) {
    words[0] = value.integer;
    checked = static_cast<double>(value.integer);
  } else if (integral && value.kind == Value::Kind::kInt && fits(parameter.type, value.integer)) {
    words[0] = value.integer;
    checked = static_cast<double>(value.integer);
  } else if (real && (value.kind == Value::Kind::kFloat || value.kind == Value::Kind::kInt)) {
    checked = value.kind == Value::Kind::kInt ? static_cast<double>(value.integer) : value.real;
    const float narrowed = static_cast<float>(checked);
    if (std::isinf(narrowed) && !std::isinf(checked))
      refuse("argument " + quoted(parameter.name) + " is " + got(value, place_.device) + ", which is too large for an f32");
    words[0] = bits_of(narrowed);
  } else {
    refuse("argument " + quoted(parameter.name) + " is " + got(value, place_.device) + "; it needs " + wanted(parameter, nullptr));
  }
  if (!check_ranges_) return;
  if ((parameter.low && checked < parameter.low->number) || (parameter.high && checked >= parameter.high->number))
    refuse("argument " + quoted(parameter.name) + " is " + got(value, place_.device) + ", outside its declared range " +
           number(parameter.low->number) + ".." + number(parameter.high->number));
}

void Arguments::fill_tensor(const Parameter& parameter, const Value& value, const Extents& extents,
                            std::int64_t* words) {
  if (value.kind != Value::Kind::kTensor)
    refuse("argument " + quoted(parameter.name) + " is " + got(value, place_.device) + "; it needs " + wanted(parameter, &extents));
  const DLTensor& tensor = *value.tensor;
  const bool same_rank = tensor.ndim == static_cast<int>(parameter.dims.size());
  if (!same_rank || !same_type(tensor.dtype, parameter.type) || !same_device(tensor.device, place_.device))
    wrong_shape(parameter, tensor, extents);
  bind(parameter, tensor, extents);
  bool empty = false;
  words[0] = reinterpret_cast<std::int64_t>(data(tensor));
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    empty |= tensor.shape[axis] == 0;
    words[1 + 2 * axis] = tensor.shape[axis];
    words[2 + 2 * axis] = stride(tensor, axis);
  }
  if (!empty) return;
  words[0] = reinterpret_cast<std::int64_t>(place_.zeros);
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    words[1 + 2 * axis] = 1;
    words[2 + 2 * axis] = 0;
  }
}

void Arguments::bind(const Parameter& parameter, const DLTensor& tensor, const Extents& extents) {
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    const Dim& dim = parameter.dims[axis];
    const std::int64_t size = tensor.shape[axis];
    switch (dim.kind) {
      case Dim::Kind::kExact:
        if (size != dim.value) wrong_shape(parameter, tensor, extents);
        break;
      case Dim::Kind::kAtLeast:
        if (size < extents.sizes[dim.value]) wrong_shape(parameter, tensor, extents);
        break;
      case Dim::Kind::kBound:
        if (bound_[dim.value] < 0) {
          bound_[dim.value] = size;
          bound_by_[dim.value] = &parameter;
        } else if (bound_[dim.value] != size) {
          wrong_shape(parameter, tensor, extents);
        }
    }
  }
}

void Arguments::check_range(const Parameter& parameter, const DLTensor& tensor) const {
  if (!parameter.low || !parameter.high) return;
  const auto resolve = [this](const Limit& limit) {
    return limit.dim >= 0 && bound_[limit.dim] >= 0 ? static_cast<double>(bound_[limit.dim]) : limit.number;
  };
  const double low = resolve(*parameter.low), high = resolve(*parameter.high);
  std::int64_t count = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) count *= tensor.shape[axis];
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, offset = 0;
    for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
      offset += rest % tensor.shape[axis] * stride(tensor, axis);
      rest /= tensor.shape[axis];
    }
    const double value = element(parameter.type, data(tensor) + offset * type_row(parameter.type).bytes);
    if (!(value >= low && value < high))
      refuse("argument " + quoted(parameter.name) + " holds " + number(value) + " at flat index " + std::to_string(i) +
             ", outside its declared range " + number(low) + ".." + number(high));
  }
}

void Arguments::wrong_shape(const Parameter& parameter, const DLTensor& tensor, const Extents& extents) const {
  std::string message = "argument " + quoted(parameter.name) + " is " + describe(tensor, place_.device) +
                        "; it needs " + wanted(parameter, &extents);
  for (const Dim& dim : parameter.dims)
    if (dim.kind == Dim::Kind::kBound && bound_[dim.value] >= 0 && bound_by_[dim.value] != &parameter)
      message += " (" + quoted(bound_by_[dim.value]->name) + " makes " + dim.name + " " +
                 std::to_string(bound_[dim.value]) + ")";
  refuse(message);
}

std::string Arguments::wanted(const Parameter& parameter, const Extents* extents) const {
  const char* type = type_row(parameter.type).name;
  if (parameter.scalar) {
    const bool truth = parameter.type == Type::kBool;
    const char* what = parameter.type == Type::kF32 ? "a number" : truth ? "a bool" : "an integer";
    return std::string(what) + (truth ? "" : std::string(" that fits ") + type) + ", or a 0-d " +
           device_name(place_.device) + " tensor of " + type;
  }
  std::string text = std::string(type) + "[";
  for (std::size_t axis = 0; axis < parameter.dims.size(); ++axis) {
    const Dim& dim = parameter.dims[axis];
    if (axis) text += ", ";
    if (dim.kind == Dim::Kind::kExact)
      text += (dim.name.empty() ? "" : dim.name + " = ") + std::to_string(dim.value);
    else if (dim.kind == Dim::Kind::kAtLeast)
      text += std::string(kExtentNames[dim.value]) +
              (extents ? " >= " + std::to_string(extents->sizes[dim.value]) : std::string());
    else
      text += dim.name + (bound_[dim.value] >= 0 ? " = " + std::to_string(bound_[dim.value]) : std::string());
  }
  return text + "] on " + device_name(place_.device);
}

}  // namespace attngen::host
