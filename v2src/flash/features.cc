#include "flash/features.h"

#include <cinttypes>

namespace aotriton::v2::inline abi1::flash {

Error check_reserved(const char* op, std::span<const uint8_t> reserved) noexcept {
  for (const uint8_t byte : reserved)
    if (byte) return fail(Error::not_supported, "%s: a reserved field is not zero", op);
  return Error::success;
}

namespace {

// Whether no feature is asked for that needs a closer look, as in most calls.
bool asks_nothing(const aotriton_attn_features& f) {
  const void* const all[] = {f.bias.data,         f.alibi_slopes.data, f.sinks.data,     f.cu_seqlens_q.data,
                             f.cu_seqlens_k.data, f.seqused_q.data,    f.seqused_k.data, f.block_table.data,
                             f.q_descale.data,    f.k_descale.data,    f.v_descale.data, f.dropout_seed,
                             f.dropout_offset};
  uintptr_t data = 0;
  for (const void* one : all) data |= reinterpret_cast<uintptr_t>(one);
  int64_t numbers = f.max_seqlen_q | f.max_seqlen_k;
  if (!f.windowed) numbers |= f.window_left | f.window_right;
  for (const uint8_t byte : f.reserved) numbers |= byte;
  return !data && !numbers && f.dropout == 0 && f.softcap == 0;
}

// Refuses what no kernel has; `cached`: the operator takes keys and values as caches store them.
Error check_features(const char* op, const aotriton_attn_features& f, bool cached) {
  const std::pair<const char*, const void*> of_caches[] = {{"block_table", f.block_table.data},
                                                           {"q_descale", f.q_descale.data},
                                                           {"k_descale", f.k_descale.data},
                                                           {"v_descale", f.v_descale.data}};
  for (const auto& [name, data] : of_caches)
    if (!cached && data) return fail(Error::not_supported, "%s: no kernel has %s yet; served without it", op, name);
  for (const uint8_t byte : f.reserved)
    if (byte) return fail(Error::not_supported, "%s: a reserved field of features is not zero", op);
  if (!f.windowed && (f.window_left || f.window_right))
    return fail(Error::invalid_argument,
                "%s: window_left is %" PRId64 " and window_right %" PRId64 ", but windowed is 0", op, f.window_left,
                f.window_right);
  for (const auto& [name, length] : {std::pair{"max_seqlen_q", f.max_seqlen_q}, {"max_seqlen_k", f.max_seqlen_k}})
    if (length < 0 || length > INT32_MAX)
      return fail(Error::invalid_argument, "%s: %s is %" PRId64 ", which must be from 0 to %d", op, name, length,
                  INT32_MAX);
  return Error::success;
}

}  // namespace

[[gnu::hot]] Error bind_features(const aotriton_attn_features& f, const Indices& x, Call* call) noexcept {
  const size_t optional[] = {x.bias,      x.alibi_slopes, x.sinks,        x.cu_seqlens_q,  x.cu_seqlens_k,
                             x.seqused_q, x.seqused_k,    x.dropout_seed, x.dropout_offset};
  const bool cached = x.block_table != Indices::kAbsent;
  for (const size_t made :
       {x.level, x.lo, x.hi, x.features, x.longest_q, x.longest_k, x.packed_sequences, x.self_attention})
    call->set_whole(made, 0);  // by the checks
  call->set_whole(x.causal_variant, f.causal_variant);
  call->set_whole(x.window_left, f.windowed ? f.window_left : -1);
  call->set_whole(x.window_right, f.windowed ? f.window_right : -1);
  call->set_real(x.softcap, f.softcap);
  call->set_real(x.dropout, f.dropout);
  call->set_whole(x.max_seqlen_q, f.max_seqlen_q);
  call->set_whole(x.max_seqlen_k, f.max_seqlen_k);
  call->plain = asks_nothing(f);
  if (call->plain) [[likely]]
    return Error::success;
  AOTRITON_TRY(check_features(call->info->name, f, cached));
  leave_out_features(*call);
  static constexpr int64_t kOne[] = {1};
  const auto number = [](const void* data) { return View{const_cast<void*>(data), DType::int64, kOne, kOne}; };
  const View given[] = {View::of(f.bias),         View::of(f.alibi_slopes), View::of(f.sinks),
                        View::of(f.cu_seqlens_q), View::of(f.cu_seqlens_k), View::of(f.seqused_q),
                        View::of(f.seqused_k),    number(f.dropout_seed),   number(f.dropout_offset)};
  for (size_t i = 0; i < std::size(given); ++i)
    if (given[i].data) call->views[optional[i]] = given[i];
  if (f.block_table.data) call->views[x.block_table] = View::of(f.block_table);
  if (f.q_descale.data) call->views[x.q_descale] = View::of(f.q_descale);
  if (f.k_descale.data) call->views[x.k_descale] = View::of(f.k_descale);
  if (f.v_descale.data) call->views[x.v_descale] = View::of(f.v_descale);
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash
