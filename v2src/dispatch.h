// From a kernel with its tensors to its launch, in three steps: select an entry, prepare its image, submit.
//
// A Kernel is one call of one Triton kernel: info(), addressing(ArchInfo::aligned), functional(Addressing),
// keys(multiprocessors), grid(Psels) and arguments(), with the types Functional and Psels that codegen made for it.
#pragma once

#include <array>
#include <bit>
#include <cstdio>
#include <optional>

#include "archs.h"
#include "error.h"
#include "kernel.h"
#include "load.h"
#include "log.h"
#include "lookup.h"

namespace aotriton::v2::inline abi1 {

inline const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::none:
      return "none";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float32";
  }
  return "unknown";
}

inline const char* addressing_name(Addressing addressing) noexcept {
  switch (addressing) {
    case Addressing::general:
      return "general";
    case Addressing::offset32:
      return "offset32";
    case Addressing::descriptor:
      return "descriptor";
  }
  return "unknown";
}

// no_winner, with the choices that the call made.
template <class Functional>
Error no_winner(const KernelInfo& kernel, const char* arch, const Functional& functional) noexcept {
  const char* causal = "";
  if constexpr (requires { functional.CAUSAL; }) causal = functional.CAUSAL ? " CAUSAL=True" : " CAUSAL=False";
  return fail(Error::no_winner, "%s %s: T=%s BLOCK_DMODEL=%d%s ADDRESSING=%s is not in this build's coverage",
              kernel.name, arch, functional.T == DType::float16 ? "fp16" : "bf16", functional.BLOCK_DMODEL, causal,
              addressing_name(functional.ADDRESSING));
}

// The entry that won for this call.
template <class Kernel>
Error select(const Kernel& kernel, const ArchInfo& arch, int multiprocessors, Selection* selection) noexcept {
  const KernelInfo& info = Kernel::info();
  const KernelTable* table = find_table(info, arch.arch);
  if (!table) return unknown_arch(info, arch.arch);
  const auto functional = kernel.functional(kernel.addressing(arch.aligned));
  const auto keys = kernel.keys(multiprocessors);
  const auto values = std::bit_cast<std::array<int64_t, sizeof keys / sizeof(int64_t)>>(keys);
  if (!find_cell(info, *table, functional.godel_number(), values, selection))
    return no_winner(info, arch.arch, functional);
  return Error::success;
}

// A launch with its image loaded and its arguments in place.
class Prepared {
 public:
  template <class Kernel>
  Error prepare(const Kernel& kernel, const Device& device, Image& image, const int32_t* psels,
                Stream stream) noexcept {
    AOTRITON_TRY(load_image(device, image, stream, &function_));
    image_ = &image;
    grid_ = kernel.grid(typename Kernel::Psels(psels));
    kernel.arguments().collect(arguments_.emplace(*device.driver, image));
    return arguments_->finish();
  }

  // The entry that won, logged at its first use.
  template <class Kernel>
  Error prepare_winner(const Kernel& kernel, const Device& device, Stream stream) noexcept {
    Selection selection;
    AOTRITON_TRY(select(kernel, *device.arch, device.multiprocessors, &selection));
    log_first_use(selection);
    return prepare(kernel, device, *selection.entry().image, selection.entry().psels, stream);
  }

  Error submit(const Device& device, Stream stream) noexcept {
    return launch(device, *image_, function_, grid_, *arguments_, stream);
  }

 private:
  Image* image_ = nullptr;
  void* function_ = nullptr;
  Grid grid_ = {};
  std::optional<ArgumentList> arguments_;
};

// Appends what this call would run to the explanation.
template <class Kernel>
Error explain_kernel(const Kernel& kernel, const ArchInfo& arch, int multiprocessors,
                     Explanation* explanation) noexcept {
  Selection selection;
  AOTRITON_TRY(select(kernel, arch, multiprocessors, &selection));
  explanation->kernels[explanation->kernel_count++] = explain(selection);
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
