// A call with its images loaded and its arguments written: what is left to do is to write other pointers, and to
// launch.
#pragma once

#include "call/call.h"
#include "launch/device.h"
#include "launch/params_layout.h"
#include "program/image.h"

namespace aotriton::v2::inline abi1 {

inline constexpr uint8_t kWorkspaceSlot = 255;  // of a pointer argument: the workspace

// Words of a key, which has all of a call but its pointers: whether there are a workspace and hints, and whether the
// call is plain; for each operand, of a plain call the plain ones, a word, its sizes and its strides; then the scalars.
inline constexpr size_t kKeyWords = kMaxOperands * (1 + 2 * kMaxRank) + kMaxScalars + 1;

// The operands of a key.
inline size_t operands_of_key(const OperatorInfo& info, bool plain) noexcept {
  return plain ? info.plain_operands() : info.operands.size();
}

// A call's key, taken from the call as it was given: checks may change the call.
struct Key {
  explicit Key(const Call& call) noexcept;

  const OperatorInfo* info;
  uint64_t hash;                // which equal keys share
  const aotriton_hints* hints;  // the caller's; null: none
  size_t count;
  int64_t words[kKeyWords];
};

struct PreparedLaunch {
  Image* image;
  void* function;
  uint32_t grid[3];
  uint16_t first, count;  // of its arguments
  bool early;             // as Launch::early
};

// An argument that follows an operand's data: a pointer, or a tensor map. `offset` is into the workspace.
struct PointerArgument {
  uint16_t argument;
  uint8_t slot;
  bool map;
  size_t offset;
};

// One block of memory, with all that it points at behind it, but for its chunks.
class Prepared {
 public:
  const Driver* driver;
  uint64_t context_id;
  void* context;
  const OperatorInfo* info;
  size_t workspace_bytes;
  uint64_t hash;  // of the key, with the hints
  // Of a call in chunks, which launches nothing of its own: one for the first `chunk_count` chunks, and one for a last
  // chunk of another size, or null.
  Prepared *chunk, *last_chunk;
  int64_t chunk_count;
  uint32_t block_bytes;  // of this and all that stands behind it
  uint16_t argument_count, pointer_count, key_count;
  uint8_t launch_count, operand_count;  // of the operands those in the key
  uint8_t one_place[2];                 // as Call::one_place
  uint32_t layout;                      // the number of that of its arguments; 0: it has none
  bool empty;
  bool stale;  // the driver failed while pointers were written: those that the arguments hold are not `data`

  // What stands behind this in its block.
  PreparedLaunch* launches;
  void** data;       // that the arguments hold now, in the caller's order, with the workspace last
  int64_t* extents;  // bytes of each operand, in the caller's order; 0 of what was not given
  // Bytes from an operand in one chunk to that in the next, in the caller's order; null without chunks.
  int64_t* chunk_strides;
  const int64_t* key;
  const aotriton_hints* hints;  // null: none
  void** arguments;
  PointerArgument* pointers;
  uint16_t* sizes;  // of the arguments

  // Where a memo has it.
  Prepared *next_of_bucket, *newer, *older;

  // Whether a call on a stream of this context differs from this one in pointers alone.
  bool is(const Key& other, uint64_t id) const noexcept;

  // Checks these pointers and writes them to the arguments. null_pointer, misaligned_pointer, invalid_stride,
  // workspace_too_small.
  Error rebind(void* const* pointers, void* workspace, size_t workspace_size) noexcept;
  // The same of a call that is made anew where that fails: no message is left.
  Error rebind(const Call& call) noexcept;
  // The same of its params struct, where only what moves may differ.
  Error rebind(const ParamsLayout& layout, const void* params) noexcept;

  // Launches in a context that is this call's own.
  Error launch(const Contexts& contexts, Stream stream) noexcept;

  // The caller's workspace that the arguments hold now.
  void*& workspace() const noexcept { return data[info->operands.size()]; }

  // Frees what `Builder::finish` made. Null is nothing to free.
  static void destroy(Prepared* prepared) noexcept;

 private:
  // Whether a look without branches finds nothing wrong with these pointers.
  bool surely_suit(void* const* pointers) const noexcept;
  Error check_pointers(void* const* pointers) const noexcept;
  // As rebind() without its checks.
  Error write_pointers(void* const* new_data, void* new_workspace) noexcept;
  Error launch_chunks(const Contexts& contexts, Stream stream) noexcept;
  Error launch_kernels(const Contexts& contexts, Stream stream, bool are_anew = false) noexcept;
};

// A call with this key, which must outlive it, these pointers and these extents.
class CallOfKey {
 public:
  CallOfKey(const OperatorInfo& info, const int64_t* key, void* const* pointers, const int64_t* extents) noexcept;
  CallOfKey(const CallOfKey&) = delete;
  CallOfKey& operator=(const CallOfKey&) = delete;

  const Call& call() const noexcept { return call_; }

 private:
  Call call_;
};

}  // namespace aotriton::v2::inline abi1
