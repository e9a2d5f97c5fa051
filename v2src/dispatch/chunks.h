// From a call whose hints limit its workspace to pieces of it that keep the limit.
#pragma once

#include "base/error.h"
#include "dispatch/select.h"

namespace aotriton::v2::inline abi1 {

// How a call is run: in so many pieces, one after the other, of `size` along its operator's cut; the last one may have
// less. A count of 1: whole.
struct Pieces {
  int64_t count, size;
  Dispatch dispatch;  // of the whole call, or of the first piece
};

// A checked call's piece of `size` along its operator's cut, from `begin` on. The whole call must outlive it.
class Piece {
 public:
  Piece(const Call& whole, int64_t begin, int64_t size) noexcept;
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  Call call;
};

// Bytes between an operand's data in one piece and in the next; 0 where the operand is not given, or not cut.
int64_t step_of(const Call& whole, size_t slot, int64_t size) noexcept;

// Dispatches the checked call, in the pieces in which it is predicted to take the least time within the limit of its
// hints; all of it at once where there is no limit, or where it makes no difference. Errors as dispatch().
Error plan_pieces(Call& call, const Place& place, Backends among, By by, Pieces* pieces) noexcept;

// Runs step(part, dispatch) -> Error for the call or, where it is in pieces, for the first one and for a last one of
// another size.
template <class Step>
Error each_part(Call& call, const Pieces& pieces, Step step) noexcept {
  if (pieces.count == 1) return step(call, pieces.dispatch);
  const int64_t length = call.sizes[call.info->cut], rest = length % pieces.size;
  Piece first(call, 0, pieces.size);
  AOTRITON_TRY(lay_out(first.call, pieces.dispatch));
  AOTRITON_TRY(step(first.call, pieces.dispatch));
  if (!rest) return Error::success;
  Piece last(call, length - rest, rest);
  Dispatch found;
  AOTRITON_TRY(dispatch(last.call, pieces.dispatch.place, &found, Backends::within_limit));
  return step(last.call, found);
}

}  // namespace aotriton::v2::inline abi1
