// A call with its images loaded and its arguments in place: what is left to do is to put other pointers in, and launch.
#pragma once

#include "call.h"
#include "device.h"
#include "image.h"

namespace aotriton::v2::inline abi1 {

inline constexpr size_t kWorkspaceSlot = kMaxOperands;  // where pointers have the workspace's own

// What a prepared call was prepared from but for its pointers: a word for each operand, then its sizes and strides,
// then the scalars, then whether there are a workspace and hints.
inline constexpr size_t kKeyWords = kMaxOperands * (1 + 2 * kMaxRank) + kMaxScalars + 1;

struct PreparedLaunch {
  const Image* image;
  void* function;
  uint32_t grid[3];
  uint16_t first, count;  // of its arguments
};

// An argument that follows an operand's data: a pointer, or a tensor map. `offset` is into the workspace.
struct PointerPlace {
  uint16_t argument;
  uint8_t slot;
  bool map;
  size_t offset;
};

// One block of memory: behind this stand the arguments' places, their sizes, the pointer places and the bytes.
class Prepared {
 public:
  const Driver* driver;
  uint64_t context_id;
  void* context;
  const OperatorInfo* info;
  size_t workspace_bytes;
  bool empty;
  uint8_t launch_count;
  uint16_t argument_count, place_count;
  uint32_t byte_count;
  PreparedLaunch launches[kMaxKernels];
  void* data[kMaxOperands + 1];   // that the arguments hold now, in the caller's order
  int64_t extents[kMaxOperands];  // bytes of each operand, in the caller's order; 0 of what was not given
  int64_t key[kKeyWords];
  aotriton_hints hints;  // where the key has some
  // Of a call in pieces, which launches nothing of its own: the first `part_count`, and one of another size or null.
  Prepared *part, *last_part;
  int64_t part_count;
  int64_t part_steps[kMaxOperands];  // bytes from an operand in one piece to that in the next, in the caller's order
  uint64_t hash;

  // Whether a call on a stream of this context is this one, but for its pointers.
  bool is(const Call& call, uint64_t id) const noexcept;

  // Makes these the pointers, where they may be: null_pointer, misaligned_pointer, invalid_stride, workspace_too_small.
  Error rebind(void* const* pointers, void* workspace, size_t workspace_size) noexcept;
  Error rebind(const Call& call) noexcept;

  // Launches in a context that is this call's own.
  Error launch(const Contexts& contexts, Stream stream) noexcept;

  // The same without asking whether they may be.
  void place(void* const* pointers, void* workspace) noexcept;

  void** arguments() noexcept { return reinterpret_cast<void**>(this + 1); }
  PointerPlace* places() noexcept { return reinterpret_cast<PointerPlace*>(arguments() + argument_count); }
  uint16_t* sizes() noexcept { return reinterpret_cast<uint16_t*>(places() + place_count); }

  // Frees what `Builder::finish` made. Null is nothing to free.
  static void destroy(Prepared* prepared) noexcept;

 private:
  Error check_pointers(void* const* pointers) const noexcept;
  Error launch_parts(const Contexts& contexts, Stream stream) noexcept;
};

// The key of a call, and a number that calls with equal keys share.
size_t write_key(const Call& call, int64_t* key) noexcept;
uint64_t hash_of(const Call& call) noexcept;

// A call with this key and these pointers.
class CallOfKey {
 public:
  CallOfKey(const OperatorInfo& info, const int64_t* key, void* const* pointers) noexcept;
  CallOfKey(const CallOfKey&) = delete;
  CallOfKey& operator=(const CallOfKey&) = delete;

  const Call& call() const noexcept { return call_; }

 private:
  Call call_;
  int64_t sizes_[kMaxOperands][kMaxRank], strides_[kMaxOperands][kMaxRank];  // which the views point at
};

}  // namespace aotriton::v2::inline abi1
