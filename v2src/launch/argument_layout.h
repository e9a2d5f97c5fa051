// How the arguments of a call's launches lie, and what of the call each of them follows. Calls of the same images share
// it, whatever their sizes, so a thread lays out its first call of some images and writes the arguments of the others.
#pragma once

#include "call/call.h"
#include "dispatch/launch_plan.h"
#include "launch/prepared.h"

namespace aotriton::v2::inline abi1 {

// A launch to come. `early`: as Launch::early.
struct Part {
  const KernelInfo* kernel;
  Image* image;
  const KernelPlan* plan;
  bool early;
};

// What an argument follows. `flat_map` could be packed, but is not in these calls.
// `workspace`: no bytes of an argument, but where its pointer goes.
enum class Follows : uint8_t { stride, data, real, i32, i64, map, packed_map, flat_map, scratch, workspace };
inline constexpr size_t kFollows = 10;

// An argument that is not the same in all calls; of a tensor map the first one, with its sizes and strides behind.
struct Source {
  static constexpr uint8_t kNoNumber = 255;
  uint16_t at;       // byte
  uint8_t launch;    // its number
  uint8_t slot;      // of a tensor, or a scalar's number
  uint8_t which;     // dimension of the stride, or the number of the map among the image's
  uint8_t number;    // of the plan
  uint16_t pointer;  // of scratch and workspace
};
static_assert(kMaxNumbers <= Source::kNoNumber);

class ArgumentLayout {
 public:
  ArgumentLayout(const ArgumentLayout&) = delete;
  ArgumentLayout& operator=(const ArgumentLayout&) = delete;

  // That of a call's launches; `in_workspace`: tensors lie in the call's workspace. not_supported where a kernel takes
  // more than drivers pass, or what the driver does not have; damaged_image; out_of_memory. To be destroyed.
  static Error make(const Call& call, std::span<const Part> parts, bool in_workspace, const Driver& driver,
                    ArgumentLayout** made) noexcept;
  static void destroy(ArgumentLayout* layout) noexcept;

  // Whether it is that of these launches.
  bool suits(const Call& call, std::span<const Part> parts, bool in_workspace, const Driver& driver) const noexcept;

  // Writes the arguments of a call that it suits. `offsets`: into the workspace, by slot.
  Error write(const Call& call, std::span<const Part> parts, const size_t* offsets) noexcept;

  uint32_t number;  // its maker's, who gives each another one
  size_t launch_count, argument_count, pointer_count, byte_count;
  // What stands behind this in its block.
  unsigned char* bytes;  // aligned as tensor maps are
  PreparedLaunch* launches;
  PointerArgument* pointers;
  uint32_t* offsets;  // of the arguments into bytes
  uint16_t* sizes;

 private:
  class Draft;

  ArgumentLayout() noexcept = default;

  std::span<const Source> sources(Follows what) const noexcept {
    const auto index = static_cast<size_t>(what);
    return {sources_ + begins_[index], sources_ + begins_[index + 1]};
  }
  Error write_map(const Call& call, const Part& part, const Source& source, bool packs) noexcept;

  const Driver* driver_;
  const KernelInfo* kernels_[kMaxKernels];  // by launch
  uint8_t from_[kMaxOperands];
  uint32_t strided_, given_;  // slots, as bits, with a stride among the arguments, and which of them are given
  bool in_workspace_;
  Source* sources_;  // in the order of what they follow
  uint16_t begins_[kFollows + 1];
};

}  // namespace aotriton::v2::inline abi1
