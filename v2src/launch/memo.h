// A thread's last calls, prepared. A call is found again by all but its pointers.
#pragma once

#include "launch/arguments.h"
#include "launch/params_layout.h"
#include "launch/prepared.h"

namespace aotriton::v2::inline abi1 {

// An operator's last call. Of one that was made twice in a row, and holds what they point at, the parameters are kept:
// a call with the same is known by them alone.
struct LastCall {
  const OperatorInfo* info = nullptr;
  Prepared* prepared = nullptr;  // null: it is not kept any more
  bool has_params = false;
  char params[kMostParamsBytes];
};

// Keeps the calls that were made last, as many as fit in a fixed number of bytes.
class Memo {
 public:
  Memo() noexcept = default;
  Memo(const Memo&) = delete;
  Memo& operator=(const Memo&) = delete;
  ~Memo();

  // The operator's last call, if it had these parameters but for what may differ; else null.
  Prepared* last(const ParamsLayout& layout, const void* params) noexcept;

  // Notes that this call was its operator's last one, with these parameters, or nulls.
  void note(Prepared* prepared, const ParamsLayout* layout, const void* params) noexcept;

  // The call with this key; null where it is not kept.
  Prepared* find(const Key& key, uint64_t context_id) noexcept;

  // Keeps a call that was built, and forgets those that were made longest ago. Null where there is no memory.
  Prepared* keep(BuiltCall built, const Key& key) noexcept;

  // Forgets a call, and frees it.
  void drop(Prepared* prepared) noexcept;

  Builder builder;

 private:
  static constexpr size_t kBytes = 200 << 10;  // of the calls
  static constexpr size_t kBuckets = 256;
  static constexpr size_t kOperators = 4;  // of which the last call is known

  Prepared*& bucket_of(uint64_t hash) noexcept { return buckets_[hash % kBuckets]; }
  void put_first(Prepared* prepared) noexcept;
  void move_to_front(Prepared* prepared) noexcept;
  void take_out(Prepared* prepared) noexcept;
  void forget(Prepared* prepared) noexcept;

  Prepared* newest_ = nullptr;
  Prepared* oldest_ = nullptr;
  size_t bytes_ = 0;
  Prepared* buckets_[kBuckets] = {};
  LastCall last_[kOperators];
  size_t next_ = 0;  // of these the one that a further operator gets
};

// The thread's own memo; null where it has made no call, or ends.
Memo* memo_of_thread() noexcept;

// The memo for a call of this thread: the thread's own, made by its first call. A call from a destructor at the end of
// the thread or of the process, when the thread's own is gone, gets a memo for itself alone.
class MemoOfCall {
 public:
  MemoOfCall() noexcept;
  MemoOfCall(const MemoOfCall&) = delete;
  MemoOfCall& operator=(const MemoOfCall&) = delete;
  ~MemoOfCall() { delete own_; }

  // Null where there is no memory.
  Memo* get() const noexcept { return memo_; }

 private:
  Memo* memo_;
  Memo* own_ = nullptr;
};

}  // namespace aotriton::v2::inline abi1
