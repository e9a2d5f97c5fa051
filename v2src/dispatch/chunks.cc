#include "dispatch/chunks.h"

#include <algorithm>
#include <string_view>

namespace aotriton::v2::inline abi1 {

namespace {

constexpr int64_t kAlignment = 16;  // bytes: what all kernels can make use of

// The dimension of an operand that is cut; its rank where none is.
size_t cut_of(const OperatorInfo& info, size_t slot) {
  const std::span<const uint8_t> dims = info.operands[slot].dims;
  return static_cast<size_t>(std::find(dims.begin(), dims.end(), info.cut) - dims.begin());
}

// Whether the data of all chunks is aligned as that of the first one is, so that what serves that serves the others.
bool alike(const Call& whole, int64_t size) {
  for (size_t slot = 0; slot < whole.info->operands.size(); ++slot)
    if (chunk_stride(whole, slot, size) % kAlignment) return false;
  return true;
}

// The outcome of the call's limit of its workspace; null where there is none.
aotriton_hint_outcome* limit_outcome(Dispatch* dispatch) {
  for (size_t i = 0; i < dispatch->hint_count; ++i)
    if (std::string_view(dispatch->hints[i].name) == "workspace_limit") return &dispatch->hints[i];
  return nullptr;
}

bool keeps_limit(Dispatch& dispatch) {
  const aotriton_hint_outcome* const outcome = limit_outcome(&dispatch);
  return outcome && outcome->honoured;
}

}  // namespace

Chunk::Chunk(CheckedCall whole, int64_t begin, int64_t size) noexcept : call_(*whole) {
  const OperatorInfo& info = *call_.info;
  call_.sizes[info.cut] = size;
  for (size_t slot = 0; slot < info.operands.size(); ++slot) {
    View& view = call_.views[slot];
    if (!view.sizes) continue;
    auto& [sizes, strides] = call_.dims[slot];
    const size_t rank = info.operands[slot].dims.size(), cut = cut_of(info, slot);
    if (view.data)
      view.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view.data) +
                                          static_cast<uintptr_t>(chunk_stride(*whole, slot, begin)));
    std::copy_n(view.sizes, rank, sizes);
    std::copy_n(view.strides, rank, strides);
    if (cut < rank) sizes[cut] = size;
    if (cut + 1 == rank) call_.suited = false;  // the chunk may begin anywhere
    view.sizes = sizes;
    view.strides = strides;
    if (call_.extents[slot]) call_.extents[slot] = extent(info.operands[slot], view);
  }
}

int64_t chunk_stride(const Call& whole, size_t slot, int64_t size) noexcept {
  const View& view = whole[slot];
  const size_t cut = cut_of(*whole.info, slot);
  if (!view.sizes || cut == whole.info->operands[slot].dims.size() || view.sizes[cut] == 1) return 0;
  // A tensor without elements may have any strides: unsigned numbers may wrap, and what they are aligned to stays.
  const uint64_t stride = static_cast<uint64_t>(view.strides[cut]), bytes = static_cast<uint64_t>(bytes_of(view.dtype));
  return static_cast<int64_t>(static_cast<uint64_t>(size) * stride * bytes);
}

[[gnu::hot]] Result<ChunkedCall> plan_chunks(CheckedCall call, const Gpu& gpu, Backends among, By by,
                                             Dispatch* made) noexcept {
  Dispatch& best = *made;
  if (const Error error = dispatch(call, gpu, &best, among, by).error(); error != Error::success) return error;
  ChunkedCall chunks(call, best);
  if (!best.limited || call->info->cut == kNoNumber || call->whole) return chunks;
  const int64_t length = call->sizes[call->info->cut];
  bool kept = keeps_limit(best);
  float best_us = best.predicted_us;
  for (int64_t wanted = 2; wanted < 2 * length; wanted *= 2) {
    const int64_t size = (length + wanted - 1) / wanted, count = (length + size - 1) / size;
    if (count < 2 || !alike(*call, size)) continue;
    Chunk first(call, 0, size);
    Dispatch tried;
    if (dispatch(first.checked(), gpu, &tried, Backends::within_limit, by, false).error() != Error::success ||
        !keeps_limit(tried))
      continue;
    const float time = tried.predicted_us * static_cast<float>(count);
    if (kept && !(time > 0 && best_us > 0 && time < best_us)) continue;
    kept = true;
    best_us = time;
    chunks.count_ = count;
    chunks.size_ = size;
    best = tried;
  }
  aotriton_hint_outcome* const outcome = limit_outcome(&best);
  if (chunks.count() > 1 && outcome) outcome->why = "the call is made in chunks, one after the other";
  return chunks;
}

}  // namespace aotriton::v2::inline abi1
