#include "flash/features.h"

namespace aotriton::v2::inline abi1::flash {

Error check_v_head_dim(const char* op, const aotriton_tensor4& q, const aotriton_tensor4& v,
                       const aotriton_tensor4& out) noexcept {
  if (v.sizes[3] == q.sizes[3] || out.sizes[3] != v.sizes[3]) return Error::success;
  return fail(Error::not_supported, "%s: no kernel has a head_dim of v that is not q's yet", op);
}

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

}  // namespace

Error check_features(const char* op, const aotriton_attn_features& f) noexcept {
  if (asks_nothing(f)) [[likely]]
    return Error::success;
  const struct {
    const char* name;
    bool asked;
  } features[] = {
      {"bias", f.bias.data != nullptr},
      {"alibi_slopes", f.alibi_slopes.data != nullptr},
      {"sinks", f.sinks.data != nullptr},
      {"cu_seqlens_q", f.cu_seqlens_q.data != nullptr},
      {"cu_seqlens_k", f.cu_seqlens_k.data != nullptr},
      {"seqused_q", f.seqused_q.data != nullptr},
      {"seqused_k", f.seqused_k.data != nullptr},
      {"block_table", f.block_table.data != nullptr},
      {"q_descale", f.q_descale.data != nullptr},
      {"k_descale", f.k_descale.data != nullptr},
      {"v_descale", f.v_descale.data != nullptr},
      {"dropout", f.dropout != 0 || f.dropout_seed || f.dropout_offset},
      {"max_seqlen_q", f.max_seqlen_q != 0},
      {"max_seqlen_k", f.max_seqlen_k != 0},
      {"softcap", f.softcap != 0},
  };
  for (const auto& [name, asked] : features)
    if (asked) return fail(Error::not_supported, "%s: no kernel has %s yet", op, name);
  for (const uint8_t byte : f.reserved)
    if (byte) return fail(Error::not_supported, "%s: a reserved field of features is not zero", op);
  if (!f.windowed && (f.window_left || f.window_right))
    return fail(Error::invalid_argument, "%s: window_left or window_right is given, and windowed is zero", op);
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash
