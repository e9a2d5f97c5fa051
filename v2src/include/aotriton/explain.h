// Which kernel a call gets, and why: answered from the built-in tables, without a GPU.
#pragma once

#include <aotriton/types.h>

#include <cstdint>

namespace aotriton::v2::inline abi1 {

// Where a winner comes from. Only `measured` was timed on this arch, for this functional and bin, with this very image.
enum class Provenance : uint8_t { measured, borrowed, predicted, imported };

AOTRITON_API const char* provenance_name(Provenance provenance) noexcept;

struct RunnerUp {
  const char* config;  // psels and copts
  float median_us;
};

struct TuningKeyValue {
  const char* name;
  int64_t value;           // of this call
  int32_t representative;  // of the bin it falls in
};

inline constexpr int kMaxBackends = 4;

struct BackendTime {
  const char* name;
  float median_us;  // measured time of all its kernels in the bin's representative problem; 0 when there is none
};

// The dispatch of one kernel. Pointers are to constant data that lives as long as the process.
struct KernelChoice {
  const char* kernel;
  const char* arch;
  const char* functional;
  int godel_number;
  int key_count;
  TuningKeyValue keys[4];
  const char* image;
  const char* psels;
  const char* copts;
  Provenance provenance;
  const char* source;  // what was borrowed from, predicted by or imported from; empty when measured here
  float median_us;     // measured median of the bin's representative problem; 0 when there is none
  int runner_up_count;
  const RunnerUp* runners_up;
  const char* backend;  // of the operator, that the kernel belongs to
  int backend_count;
  BackendTime backends[kMaxBackends];  // that the operator has; the times are those that were compared
};

struct Explanation {
  int kernel_count = 0;
  KernelChoice kernels[4];  // in launch order
};

}  // namespace aotriton::v2::inline abi1
