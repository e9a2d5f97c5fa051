// From an operator's call to its launches, in three steps: choose a backend and select its entries, prepare their
// images, submit.
//
// A Kernel is one call of one Triton kernel: info(), addressing(ArchInfo::aligned), functional(Addressing),
// keys(multiprocessors), grid(Psels, multiprocessors) and arguments(), with the types Functional and Psels that codegen
// made for it; and serves(), where it can not run every call.
// A backend is a std::tuple of Kernels in launch order. The first one's last Kernel is the lead of rules/kernel.py.
#pragma once

#include <array>
#include <bit>
#include <cstdio>
#include <optional>
#include <tuple>

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

// Where a call runs.
struct Place {
  const ArchInfo& arch;
  int multiprocessors;
};

// The entry that won for this call; false where the kernel can not serve it.
template <class Kernel>
bool find_entry(const Kernel& kernel, const Place& place, Selection* selection) noexcept {
  if constexpr (requires { kernel.serves(); })
    if (!kernel.serves()) return false;
  const KernelTable* table = find_table(Kernel::info(), place.arch.arch);
  if (!table) return false;
  const auto keys = kernel.keys(place.multiprocessors);
  const auto values = std::bit_cast<std::array<int64_t, sizeof keys / sizeof(int64_t)>>(keys);
  const int number = kernel.functional(kernel.addressing(place.arch.aligned)).godel_number();
  return find_cell(Kernel::info(), *table, number, values, selection);
}

// The same for a kernel of the first backend, which serves everything that the build covers.
template <class Kernel>
Error select(const Kernel& kernel, const Place& place, Selection* selection) noexcept {
  if (find_entry(kernel, place, selection)) return Error::success;
  if (!find_table(Kernel::info(), place.arch.arch)) return unknown_arch(Kernel::info(), place.arch.arch);
  return no_winner(Kernel::info(), place.arch.arch, kernel.functional(kernel.addressing(place.arch.aligned)));
}

inline constexpr size_t kMaxKernels = std::extent_v<decltype(Explanation::kernels)>;

// Runs body(backend, selections) -> Error with the backend that serves the call and an entry for each of its kernels.
template <class Body, class... First, class... Others>
Error with_backend(const OperatorInfo& info, const Place& place, Body body, const std::tuple<First...>& first,
                   const Others&... others) noexcept {
  constexpr size_t kLead = sizeof...(First) - 1;
  Selection lead, selections[kMaxKernels];
  AOTRITON_TRY(select(std::get<kLead>(first), place, &lead));
  const BackendChoice choice = choose_backend(info, place.arch.arch, lead.godel_number, lead.cell);

  // Another backend that can not serve this very call leaves it to the first one.
  size_t index = 0;
  std::optional<Error> result;
  [[maybe_unused]] const auto try_other = [&](const auto& other) {
    if (++index != choice.backend) return;
    Selection* next = selections;
    const auto all = [&](const auto&... kernel) { return (find_entry(kernel, place, next++) && ...); };
    if (!std::apply(all, other)) return;
    for (Selection& selection : selections) selection.backend = choice;
    result = body(other, selections);
  };
  if (choice.backend) (try_other(others), ...);
  if (result) return *result;

  selections[kLead] = lead;
  Error error = Error::success;
  const auto select_one = [&](size_t i, const auto& kernel) {
    if (i != kLead && error == Error::success) error = select(kernel, place, &selections[i]);
  };
  index = 0;
  std::apply([&](const auto&... kernel) { (select_one(index++, kernel), ...); }, first);
  if (error != Error::success) return error;
  for (Selection& selection : selections) selection.backend = {&info, 0, choice.times};
  return body(first, selections);
}

// A launch with its image loaded and its arguments in place.
class Prepared {
 public:
  template <class Kernel>
  Error prepare(const Kernel& kernel, const Device& device, Image& image, const int32_t* psels,
                Stream stream) noexcept {
    AOTRITON_TRY(load_image(device, image, stream, &function_));
    image_ = &image;
    grid_ = kernel.grid(typename Kernel::Psels(psels), device.multiprocessors);
    kernel.arguments().collect(arguments_.emplace(*device.driver, image));
    return arguments_->finish();
  }

  // The entry that was selected, logged at its first use.
  template <class Kernel>
  Error prepare(const Kernel& kernel, const Device& device, const Selection& selection, Stream stream) noexcept {
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

// Launches the kernels of the backend that serves the call; none where one of them can not be prepared.
template <class... Backends>
Error run_operator(const OperatorInfo& info, const Device& device, Stream stream,
                   const Backends&... backends) noexcept {
  const auto body = [&]<class... Kernels>(const std::tuple<Kernels...>& backend, const Selection* selections) {
    std::array<Prepared, sizeof...(Kernels)> prepared;
    Error error = Error::success;
    const auto prepare_one = [&](size_t i, const auto& kernel) {
      if (error == Error::success) error = prepared[i].prepare(kernel, device, selections[i], stream);
    };
    size_t i = 0;
    std::apply([&](const Kernels&... kernel) { (prepare_one(i++, kernel), ...); }, backend);
    if (error != Error::success) return error;
    for (Prepared& one : prepared) AOTRITON_TRY(one.submit(device, stream));
    return Error::success;
  };
  return with_backend(info, {*device.arch, device.multiprocessors}, body, backends...);
}

// What the call would run on `arch`.
template <class... Backends>
Error explain_operator(const OperatorInfo& info, const ArchInfo& arch, Explanation* explanation,
                       const Backends&... backends) noexcept {
  const auto body = [&]<class... Kernels>(const std::tuple<Kernels...>&, const Selection* selections) {
    for (size_t i = 0; i < sizeof...(Kernels); ++i)
      explanation->kernels[explanation->kernel_count++] = explain(selections[i]);
    return Error::success;
  };
  return with_backend(info, {arch, arch.multiprocessors}, body, backends...);
}

}  // namespace aotriton::v2::inline abi1
