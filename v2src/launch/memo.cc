#include "launch/memo.h"

#include <algorithm>
#include <cstring>
#include <iterator>
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

[[gnu::hot]] Prepared* Memo::last(const ParamsLayout& layout, const void* params) noexcept {
  for (LastCall& one : last_) {
    if (one.info != layout.info) continue;
    if (!one.prepared || !one.has_params || read_at<size_t>(params, 0) != layout.bytes) return nullptr;
    // What may differ is made equal, so that the rest can be compared in one go.
    const auto take = [&]<class T>(size_t offset, T value) { memcpy(one.params + offset, &value, sizeof value); };
    for (const MovingPointer& moving : layout.moving) take(moving.offset, read_at<void*>(params, moving.offset));
    if (layout.workspace) {
      void* const workspace = read_at<void*>(params, layout.workspace);
      if (!workspace == !read_at<void*>(one.params, layout.workspace)) take(layout.workspace, workspace);
      take(layout.workspace_size, read_at<size_t>(params, layout.workspace_size));
    }
    one.has_params = !memcmp(one.params, params, layout.bytes);
    if (!one.has_params) return nullptr;
    move_to_front(one.prepared);
    return one.prepared;
  }
  return nullptr;
}

[[gnu::hot]] void Memo::note(Prepared* prepared, const ParamsLayout* layout, const void* params) noexcept {
  const OperatorInfo* const info = prepared->info;
  LastCall* last = std::find_if(last_, std::end(last_), [&](const LastCall& one) { return one.info == info; });
  if (last == std::end(last_)) last = &last_[next_++ % kOperators];
  last->has_params = layout && last->prepared == prepared;
  last->info = info;
  last->prepared = prepared;
  if (last->has_params) memcpy(last->params, params, layout->bytes);
}

[[gnu::hot]] Prepared* Memo::find(const Key& key, uint64_t context_id) noexcept {
  for (Prepared* kept = bucket_of(key.hash); kept; kept = kept->next_of_bucket) {
    if (!kept->is(key, context_id)) continue;
    move_to_front(kept);
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

void Memo::move_to_front(Prepared* prepared) noexcept {
  if (prepared == newest_) return;
  take_out(prepared);
  put_first(prepared);
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
  for (LastCall& one : last_)
    if (one.prepared == prepared) one.prepared = nullptr;
}

[[gnu::hot]] Memo* memo_of_thread() noexcept { return of_thread; }

[[gnu::hot]] MemoOfCall::MemoOfCall() noexcept {
  memo_ = of_thread;
  if (memo_) [[likely]]
    return;
  memo_ = ended ? own_ = new (std::nothrow) Memo : make_of_thread();
}

}  // namespace aotriton::v2::inline abi1
