#include "launch/memo.h"

#include <new>
#include <utility>

namespace aotriton::v2::inline abi1 {

namespace {

size_t bytes_of(const Prepared& prepared) {
  size_t bytes = prepared.block_bytes;
  for (const Prepared* chunk : {prepared.chunk, prepared.last_chunk})
    if (chunk) bytes += chunk->block_bytes;
  return bytes;
}

// These two need no destructor, so they are there until the very end of a thread.
thread_local Memo* of_thread = nullptr;
thread_local bool ended = false;

struct Owner {
  ~Owner() {
    ended = true;
    delete std::exchange(of_thread, nullptr);
  }
};

Memo* make_of_thread() noexcept {
  static thread_local Owner owner;  // from here on
  static_cast<void>(owner);
  return of_thread = new (std::nothrow) Memo;
}

}  // namespace

Memo::~Memo() {
  while (newest_) drop(newest_);
}

[[gnu::hot]] Prepared* Memo::find(const Key& key, uint64_t context_id) noexcept {
  for (Prepared* kept = bucket_of(key.hash); kept; kept = kept->next_of_bucket) {
    if (!kept->is(key, context_id)) continue;
    if (kept != newest_) {
      take_out(kept);
      put_first(kept);
    }
    return kept;
  }
  return nullptr;
}

[[gnu::hot]] Prepared* Memo::keep(BuiltCall built, const Key& key) noexcept {
  // One that would have to go leaves its block to the new one, which is as large as the last one, mostly.
  Prepared* recycled = nullptr;
  if (newest_ && bytes_ + newest_->block_bytes > kBytes) {
    recycled = oldest_;
    forget(recycled);
  }
  Prepared* const made = built.finish(key, recycled);
  if (!made) return nullptr;
  bytes_ += bytes_of(*made);
  while (bytes_ > kBytes && oldest_) drop(oldest_);
  put_first(made);
  Prepared*& bucket = bucket_of(made->hash);
  made->next_of_bucket = bucket;
  return bucket = made;
}

void Memo::drop(Prepared* prepared) noexcept {
  forget(prepared);
  Prepared::destroy(prepared);
}

void Memo::put_first(Prepared* prepared) noexcept {
  prepared->newer = nullptr;
  prepared->older = newest_;
  (newest_ ? newest_->newer : oldest_) = prepared;
  newest_ = prepared;
}

void Memo::take_out(Prepared* prepared) noexcept {
  (prepared->newer ? prepared->newer->older : newest_) = prepared->older;
  (prepared->older ? prepared->older->newer : oldest_) = prepared->newer;
}

void Memo::forget(Prepared* prepared) noexcept {
  Prepared** link = &bucket_of(prepared->hash);
  while (*link != prepared) link = &(*link)->next_of_bucket;
  *link = prepared->next_of_bucket;
  take_out(prepared);
  bytes_ -= bytes_of(*prepared);
}

[[gnu::hot]] MemoOfCall::MemoOfCall() noexcept {
  memo_ = of_thread;
  if (memo_) [[likely]]
    return;
  memo_ = ended ? own_ = new (std::nothrow) Memo : make_of_thread();
}

}  // namespace aotriton::v2::inline abi1
