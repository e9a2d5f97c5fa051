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

// Whether all pieces lie as the first one does, so that what serves that serves the others.
bool alike(const Call& whole, int64_t size) {
  for (size_t slot = 0; slot < whole.info->operands.size(); ++slot)
    if (step_of(whole, slot, size) % kAlignment) return false;
  return true;
}

// Whether the dispatch keeps the limit that the call's hints have.
bool keeps_limit(const Dispatch& dispatch) {
  for (size_t i = 0; i < dispatch.hint_count; ++i)
    if (std::string_view(dispatch.hints[i].name) == "workspace_limit") return dispatch.hints[i].honoured;
  return false;
}

}  // namespace

Piece::Piece(const Call& whole, int64_t begin, int64_t size) noexcept : call(whole) {
  const OperatorInfo& info = *call.info;
  call.sizes[info.cut] = size;
  for (size_t slot = 0; slot < info.operands.size(); ++slot) {
    View& view = call.views[slot];
    if (!view.sizes) continue;
    auto& [sizes, strides] = call.dims[slot];
    const size_t rank = info.operands[slot].dims.size(), cut = cut_of(info, slot);
    if (view.data)
      view.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(view.data) +
                                          static_cast<uintptr_t>(step_of(whole, slot, begin)));
    std::copy_n(view.sizes, rank, sizes);
    std::copy_n(view.strides, rank, strides);
    if (cut < rank) sizes[cut] = size;
    view.sizes = sizes;
    view.strides = strides;
    if (call.extents[slot]) call.extents[slot] = extent(info.operands[slot], view);
  }
}

int64_t step_of(const Call& whole, size_t slot, int64_t size) noexcept {
  const View& view = whole[slot];
  const size_t cut = cut_of(*whole.info, slot);
  if (!view.sizes || cut == whole.info->operands[slot].dims.size() || view.sizes[cut] == 1) return 0;
  // A tensor without elements may have any strides: unsigned numbers may wrap, and what they are aligned to stays.
  const uint64_t stride = static_cast<uint64_t>(view.strides[cut]), bytes = static_cast<uint64_t>(bytes_of(view.dtype));
  return static_cast<int64_t>(static_cast<uint64_t>(size) * stride * bytes);
}

Error plan_pieces(Call& call, const Place& place, Backends among, By by, Pieces* pieces) noexcept {
  pieces->count = 1;
  pieces->size = 0;
  Dispatch& best = pieces->dispatch;
  AOTRITON_TRY(dispatch(call, place, &best, among, by));
  if (!best.limited || call.info->cut == kNoNumber) return Error::success;
  const int64_t length = call.sizes[call.info->cut];
  bool kept = keeps_limit(best);
  float best_us = best.predicted_us;
  for (int64_t wanted = 2; wanted < 2 * length; wanted *= 2) {
    const int64_t size = (length + wanted - 1) / wanted, count = (length + size - 1) / size;
    if (count < 2 || !alike(call, size)) continue;
    Piece first(call, 0, size);
    Dispatch found;
    if (dispatch(first.call, place, &found, Backends::within_limit, by) != Error::success || !keeps_limit(found))
      continue;
    const float time = found.predicted_us * static_cast<float>(count);
    if (kept && !(time > 0 && best_us > 0 && time < best_us)) continue;
    kept = true;
    best_us = time;
    pieces->count = count;
    pieces->size = size;
    best = found;
  }
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
