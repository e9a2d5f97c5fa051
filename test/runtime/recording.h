// A driver table that stands in for CUDA or HIP and writes down what the library asks of it. For tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace aotriton::v2::inline abi1 {

struct RecordedLoad {
  const void* context;
  std::string head;  // first 16 bytes of the binary, which must have as many
};

struct RecordedLaunch {
  const void* context;  // current at the launch
  const void* stream;
  std::string entry;
  std::string head;  // of the binary that the function is from
  uint32_t grid[3];
  uint32_t threads, shared;
  uint32_t max_shared;  // that the function was given; 0 where none
  bool early;
  std::vector<std::vector<unsigned char>> arguments;

  // Argument `index` as a T; its recorded bytes must be as many. A tensor map holds the TensorMapRequest.
  template <class T>
  T argument(size_t index) const {
    T value{};
    const std::vector<unsigned char>& bytes = arguments.at(index);
    if (bytes.size() != sizeof(T)) throw std::length_error("argument " + std::to_string(index) + " has another size");
    __builtin_memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  TensorMapRequest tensor_map(size_t index) const {
    TensorMapRequest request;
    const TensorMap map = argument<TensorMap>(index);
    static_assert(sizeof request <= sizeof map);
    __builtin_memcpy(&request, &map, sizeof request);
    return request;
  }
};

struct RecordedFill {
  void* data;
  uint32_t pattern;
  int64_t bytes, width, rows, pitch;
};

struct RecordedDevice {
  std::string arch;
  int multiprocessors;
  uint64_t life = 1;  // a context at the same address with another life is another context
  int ordinal = 0;
  std::string name = {};  // of its product
  uint64_t memory = 0;
};

// What the stand-in pretends, and what it saw. Contexts are any pointers that are keys of `devices`.
struct Recording {
  std::map<const void*, RecordedDevice> devices;
  std::map<const void*, void*> stream_contexts;  // streams but the default one
  std::set<const void*> capturing;               // streams
  int fail_at = 0;                               // this call, counted from 1, returns kRecordedFailure; 0: none

  int calls = 0;
  std::vector<RecordedLoad> loads;
  std::vector<RecordedLaunch> launches;
  std::vector<RecordedFill> fills;
  int encoded = 0, replaced = 0;  // tensor maps, and addresses in them
  int modules = 0;                // loaded at present
};

inline constexpr int kRecordedFailure = 999;

// Starts anew: driver() is the stand-in for `vendor`, "cuda" or "hip", and all devices are forgotten.
// Images that were loaded stay marked as loaded: the caller clears those it uses.
Recording& start_recording(const char* vendor);

// The context that is current in this thread.
void set_current_context(void* context);
void* current_context();

}  // namespace aotriton::v2::inline abi1
