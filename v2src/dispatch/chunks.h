// A call whose hints limit its workspace, in chunks of its batch that keep the limit.
#pragma once

#include <utility>

#include "base/error.h"
#include "dispatch/select.h"

namespace aotriton::v2::inline abi1 {

// A checked call's part of `size` along its operator's cut, from `begin` on. The whole call must outlive it.
class Chunk {
 public:
  Chunk(CheckedCall whole, int64_t begin, int64_t size) noexcept;
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  CheckedCall checked() noexcept { return CheckedCall(call_); }

 private:
  Call call_;
};

// Bytes between an operand's data in one chunk and in the next; 0 where the operand is not given, or not cut.
int64_t chunk_stride(const Call& whole, size_t slot, int64_t size) noexcept;

// A checked call as it is run: all of it at once, or in chunks, one after the other. It refers to the call and to a
// Dispatch.
class ChunkedCall {
 public:
  CheckedCall whole() const noexcept { return whole_; }
  int64_t count() const noexcept { return count_; }                 // of chunks; 1: the call at once
  int64_t size() const noexcept { return size_; }                   // of all but the last one, along the cut
  const Dispatch& dispatch() const noexcept { return *dispatch_; }  // of the call, or of the first chunk

  // Returns step(ChosenCall), an Error or a Result, of the call or, where it is in chunks, of the first one.
  template <class Step>
  auto first(Step&& step) const noexcept -> decltype(step(std::declval<ChosenCall>())) {
    if (count_ == 1) return step(ChosenCall(*whole_, *dispatch_));
    Chunk chunk(whole_, 0, size_);
    const Result<ChosenCall> chosen = lay_out(chunk.checked(), *dispatch_);
    AOTRITON_TRY(chosen.error());
    return step(*chosen);
  }

  // Runs step(ChosenCall) -> Error for the call or, where it is in chunks, for the first one and for a last one of
  // another size.
  template <class Step>
  Error each(Step&& step) const noexcept {
    AOTRITON_TRY(first(step));
    const int64_t length = count_ == 1 ? 0 : whole_->sizes[whole_->info->cut], rest = length ? length % size_ : 0;
    if (!rest) return Error::success;
    Chunk last(whole_, length - rest, rest);
    Dispatch made;
    const Result<ChosenCall> chosen = abi1::dispatch(last.checked(), dispatch_->gpu, &made, Backends::within_limit);
    AOTRITON_TRY(chosen.error());
    return step(*chosen);
  }

 private:
  friend Result<ChunkedCall> plan_chunks(CheckedCall call, const Gpu& gpu, Backends among, By by,
                                         Dispatch* made) noexcept;

  ChunkedCall(CheckedCall whole, const Dispatch& dispatch) noexcept : whole_(whole), dispatch_(&dispatch) {}

  CheckedCall whole_;
  const Dispatch* dispatch_;
  int64_t count_ = 1, size_ = 0;
};

// Dispatches the call, into *made, in the chunks that are predicted to take the least time within the limit of its
// hints; all of it at once where there is no limit, or where chunks are no faster. Errors as dispatch().
Result<ChunkedCall> plan_chunks(CheckedCall call, const Gpu& gpu, Backends among, By by, Dispatch* made) noexcept;

}  // namespace aotriton::v2::inline abi1
