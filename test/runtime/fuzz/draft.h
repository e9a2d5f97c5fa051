// A call under construction, whatever its operator: made from sizes that suit it, then spoiled in places.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "call/call.h"

namespace fuzz {

using namespace aotriton::v2;

// Every choice of a run follows from its seed.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}

  uint64_t any() { return random_(); }
  uint64_t below(uint64_t count) { return random_() % count; }
  bool percent(uint64_t of) { return below(100) < of; }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  template <class T, size_t N>
  T one_of(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  std::mt19937_64 random_;
};

// Numbers at which something changes, or goes wrong.
inline int64_t wild_number(Chance& chance) {
  static constexpr int64_t kValues[] = {0,
                                        1,
                                        -1,
                                        2,
                                        7,
                                        8,
                                        9,
                                        15,
                                        16,
                                        63,
                                        64,
                                        65,
                                        127,
                                        128,
                                        255,
                                        256,
                                        257,
                                        1000,
                                        4096,
                                        65534,
                                        65535,
                                        65536,
                                        1 << 20,
                                        INT32_MAX - 1024,
                                        INT32_MAX - 1023,
                                        INT32_MAX - 1022,
                                        INT32_MAX,
                                        int64_t{INT32_MAX} + 1,
                                        UINT32_MAX,
                                        int64_t{1} << 32,
                                        int64_t{1} << 36,
                                        int64_t{1} << 39,
                                        (int64_t{1} << 39) - 8,
                                        int64_t{1} << 40,
                                        int64_t{1} << 47,
                                        int64_t{1} << 55,
                                        int64_t{1} << 61,
                                        int64_t{1} << 62,
                                        INT64_MAX,
                                        INT64_MAX - 7,
                                        INT64_MIN,
                                        INT64_MIN + 1};
  return chance.percent(20) ? static_cast<int64_t>(chance.any()) : chance.one_of(kValues);
}

inline void* wild_address(Chance& chance) {
  static constexpr uintptr_t kValues[] = {0,
                                          1,
                                          2,
                                          8,
                                          16,
                                          32,
                                          256,
                                          4096,
                                          0x10000,
                                          uintptr_t{1} << 40,
                                          (uintptr_t{1} << 47) - 16,
                                          uintptr_t{1} << 47,
                                          UINTPTR_MAX - 255,
                                          UINTPTR_MAX - 15,
                                          UINTPTR_MAX - 1,
                                          UINTPTR_MAX};
  if (chance.percent(50)) return reinterpret_cast<void*>(chance.one_of(kValues));
  return reinterpret_cast<void*>((chance.any() >> chance.below(40)) & ~(uintptr_t{1} << chance.below(6)));
}

// What is counted in 16, 31 or 32 bits ends here, or a tile before.
inline int64_t near_limit(Chance& chance) {
  static constexpr int64_t kLimits[] = {65535, 65536, int64_t{1} << 20, INT32_MAX, int64_t{1} << 31, int64_t{1} << 32};
  return chance.one_of(kLimits) - (chance.percent(50) ? 0 : 8 * chance.between(0, 300));
}

inline float wild_real(Chance& chance) {
  static constexpr float kValues[] = {0, -0.0f, 1, -1, 1e-30f, 1e-45f, 2.4e38f, FLT_MAX, NAN, INFINITY, -INFINITY};
  return chance.one_of(kValues);
}

struct DraftTensor {
  void* data;
  aotriton_dtype dtype;
  int64_t sizes[kMaxRank], strides[kMaxRank];
};

class Draft {
 public:
  explicit Draft(const OperatorInfo& operator_info) : info(&operator_info), tensors(info->operands.size()) {}

  const OperatorInfo* info;
  int64_t sizes[kMaxSizes] = {};
  std::vector<DraftTensor> tensors;  // by slot
  int64_t whole[kMaxScalars] = {};
  float real[kMaxScalars] = {};
  void* workspace = nullptr;
  size_t workspace_size = 0;
  std::string hints_text;                    // what `hints` was parsed from
  std::optional<aotriton::v2::hints> hints;  // none: the call has none

  // Between the draft and the fields of a parameter struct, in the draft's direction.
  bool reading = false;
  template <class... CTensors>
  void exchange_tensors(CTensors&... fields) {
    size_t slot = 0;
    (exchange_tensor(tensors.at(slot++), fields), ...);
  }
  template <class T>
  void exchange(T& own, T& field) {
    (reading ? own : field) = reading ? field : own;
  }
  template <class Field>
  void exchange_whole(size_t scalar, Field& field) {
    if (!reading) field = static_cast<Field>(whole[scalar]);
    whole[scalar] = static_cast<int64_t>(field);  // cut to what the field holds
  }

  bool given(size_t slot) const { return tensors[slot].data || !info->operands[slot].optional; }

  std::string text() const {
    std::string made = info->name;
    for (size_t slot = 0; slot < tensors.size(); ++slot) {
      const DraftTensor& tensor = tensors[slot];
      char line[400];
      int used =
          snprintf(line, sizeof line, "\n  %s %p dtype %d", info->operands[slot].name, tensor.data, tensor.dtype);
      for (size_t i = 0; i < info->operands[slot].dims.size(); ++i)
        used += snprintf(line + used, sizeof line - static_cast<size_t>(used), "%s%ld:%ld", i ? ", " : " [size:stride ",
                         tensor.sizes[i], tensor.strides[i]);
      made += std::string(line) + "]";
    }
    for (size_t i = 0; i < info->scalars.size(); ++i)
      made += std::string("\n  ") + info->scalars[i].name + " " +
              (info->scalars[i].type == ScalarType::fp32 ? std::to_string(real[i]) : std::to_string(whole[i]));
    char line[100];
    snprintf(line, sizeof line, "\n  workspace %p of %zu bytes", workspace, workspace_size);
    return made + line + (hints ? "\n  hints " + hints_text : "");
  }

 private:
  template <class CTensor>
  void exchange_tensor(DraftTensor& own, CTensor& field) {
    exchange(own.data, field.data);
    exchange(own.dtype, field.dtype);
    for (size_t i = 0; i < std::size(field.sizes); ++i)
      exchange(own.sizes[i], field.sizes[i]), exchange(own.strides[i], field.strides[i]);
  }
};

// Makes and spoils drafts. Addresses are apart from each other until they begin anew.
class Drafter {
 public:
  explicit Drafter(Chance& chance) : chance_(chance) {}

  // A draft of these sizes and scalars, with every operand.
  void lay_out(Draft& draft) {
    const OperatorInfo& info = *draft.info;
    gap_ = uintptr_t{1} << 32;
    if (chance_.percent(8)) {
      draft.sizes[chance_.below(info.given_sizes)] = near_limit(chance_);
      gap_ = uintptr_t{1} << 58;
    }
    const int64_t dtype = info.dtypes.empty() ? 0 : info.dtypes[chance_.below(info.dtypes.size())];
    for (size_t slot = 0; slot < info.operands.size(); ++slot) {
      const OperandInfo& operand = info.operands[slot];
      DraftTensor& tensor = draft.tensors[slot];
      // Features are asked for by test_feature_calls.py: most of them together are refused.
      const bool feature = slot >= info.plain_operands(),
                 left_out = feature || (operand.optional && chance_.percent(30));
      tensor.data = left_out ? nullptr : next_address();
      if (tensor.data && !operand.alignment && chance_.percent(15))
        tensor.data = static_cast<char*>(tensor.data) + (chance_.percent(50) ? 2 : 4) * chance_.between(1, 7);
      tensor.dtype = operand.dtype == DType::none ? static_cast<aotriton_dtype>(dtype)
                                                  : static_cast<aotriton_dtype>(operand.dtype);
      for (size_t i = 0; i < operand.dims.size(); ++i) tensor.sizes[i] = draft.sizes[operand.dims[i]];
      stride(operand, tensor);
    }
    const bool without_workspace = chance_.percent(20);
    draft.workspace = without_workspace ? nullptr : next_address();
    draft.workspace_size = without_workspace ? 0 : size_t{1} << 62;
  }

  void spoil(Draft& draft) {
    const OperatorInfo& info = *draft.info;
    const uint64_t what = chance_.below(20);
    if (what < 14) {
      const size_t slot = chance_.below(info.plain_operands());
      spoil(draft.tensors[slot], info.operands[slot].dims.size());
    } else if (what < 16 && !info.scalars.empty()) {
      const size_t scalar = chance_.below(info.scalars.size());
      draft.real[scalar] = wild_real(chance_);
      draft.whole[scalar] =
          info.scalars[scalar].type == ScalarType::boolean ? !draft.whole[scalar] : wild_number(chance_);
    } else if (what < 18) {
      // One size everywhere, so that it is the only thing that is wrong.
      const size_t size = chance_.below(info.given_sizes);
      const int64_t value = wild_number(chance_);
      for (size_t slot = 0; slot < info.operands.size(); ++slot)
        for (size_t i = 0; i < info.operands[slot].dims.size(); ++i)
          if (info.operands[slot].dims[i] == size) draft.tensors[slot].sizes[i] = value;
    } else if (what == 18) {
      draft.workspace = wild_address(chance_);
      if (chance_.percent(30)) draft.workspace = draft.tensors[chance_.below(draft.info->plain_operands())].data;
    } else {
      draft.workspace_size = chance_.below(size_t{1} << chance_.below(40));
    }
  }

  // Other data of the same alignment, but for some.
  void move(Draft& draft) {
    for (DraftTensor& tensor : draft.tensors)
      if (tensor.data && chance_.percent(70))
        tensor.data = static_cast<char*>(next_address()) + reinterpret_cast<uintptr_t>(tensor.data) % 16;
    if (draft.workspace && chance_.percent(50)) draft.workspace = next_address();
    if (chance_.percent(10)) draft.tensors[chance_.below(draft.info->plain_operands())].data = wild_address(chance_);
  }

 private:
  void* next_address() {
    address_ += gap_;
    if (address_ > uintptr_t{1} << (gap_ >> 32 > 1 ? 62 : 46)) address_ = 0x10000 + gap_;
    return reinterpret_cast<void*>(address_);
  }

  // Dimensions in any order that the operand allows, with room behind some of them.
  void stride(const OperandInfo& operand, DraftTensor& tensor) {
    const size_t rank = operand.dims.size();
    size_t order[kMaxRank] = {0, 1, 2, 3};  // innermost last
    const size_t movable = operand.layout == Layout::contiguous ? 0 : operand.layout == Layout::rows ? rank - 1 : rank;
    for (size_t i = movable; i > 1; --i)
      if (chance_.percent(50)) std::swap(order[i - 1], order[chance_.below(i)]);
    uint64_t step = 1;  // it may wrap: then the strides are nonsense, and are to be refused
    for (size_t i = rank; i-- > 0;) {
      const size_t dim = order[i];
      tensor.strides[dim] = static_cast<int64_t>(step);
      step *= static_cast<uint64_t>(tensor.sizes[dim]);
      if (operand.layout != Layout::contiguous && chance_.percent(10))
        step += 8 * chance_.below(4) + chance_.below(20) / 19;
    }
  }

  void spoil(DraftTensor& tensor, size_t rank) {
    const size_t dim = chance_.below(rank);
    switch (chance_.below(6)) {
      case 0:
        tensor.sizes[dim] = wild_number(chance_);
        break;
      case 1:
        tensor.strides[dim] = wild_number(chance_);
        break;
      case 2:
        tensor.data = wild_address(chance_);
        break;
      case 3:
        tensor.dtype = static_cast<aotriton_dtype>(chance_.percent(50) ? chance_.below(5) : chance_.any());
        break;
      case 4:
        tensor.strides[dim] = chance_.between(0, 1 << 20);
        break;
      default:
        tensor.strides[dim] = 8 * static_cast<int64_t>(chance_.below(uint64_t{1} << chance_.below(38)));
    }
  }

  Chance& chance_;
  uintptr_t address_ = 0x10000;
  uintptr_t gap_ = uintptr_t{1} << 32;  // between addresses
};

}  // namespace fuzz
