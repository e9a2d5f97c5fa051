#include "flash/checks.h"

#include <aotriton/c.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "base/error.h"
#include "flash/band.h"
#include "flash/scales.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

// What a call asks for and how it fits together.
class Features {
 public:
  Features(Call& call, const Indices& x, int64_t of_backward) : call_(call), x_(x), bits_(of_backward) {}

  Error check() {
    if (!call_.plain) {
      if (given(x_.alibi_slopes)) bits_ |= kAlibi;
      if (given(x_.sinks)) bits_ |= kSinks;
      if (given(x_.bias)) bits_ |= kBias;
      if (given(x_.cu_seqlens_q) || given(x_.cu_seqlens_k)) bits_ |= kPacked;
      if (given(x_.seqused_q)) bits_ |= kUsedQ;
      if (given(x_.seqused_k)) bits_ |= kUsedK;
      if (x_.block_table != Indices::kAbsent && given(x_.block_table)) bits_ |= kPages;
    }
    if (x_.block_table != Indices::kAbsent) {
      if (call_[x_.k].dtype != call_.dtype || call_[x_.v].dtype != call_.dtype || given(x_.k_descale) ||
          given(x_.v_descale) || of_fp8_queries())
        bits_ |= kFp8Keys;
    }
    if (real(x_.softcap) != 0) bits_ |= kSoftcap;
    if (real(x_.dropout) != 0) bits_ |= kDropout;
    // Images address by pointers what is of fp32, and rows that do not end with a vector.
    const bool whole = call_.sizes[x_.head_dim] % x_.multiple_of_head_dim == 0 &&
                       call_.sizes[x_.head_dim_v] % x_.multiple_of_head_dim == 0;
    if (call_.dtype == DType::float32 || !whole) call_.misaligned = ~0u;
    call_.set_whole(x_.packed_sequences, 1);
    call_.set_whole(x_.longest_q, call_.sizes[x_.seqlen_q]);
    call_.set_whole(x_.longest_k, call_.sizes[x_.seqlen_k]);
    if (bits_ || call_.scalars[x_.max_seqlen_q].whole || call_.scalars[x_.max_seqlen_k].whole) [[unlikely]]
      AOTRITON_TRY(check_all());
    if (x_.block_table == Indices::kAbsent) call_.set_whole(x_.self_attention, is_self_attention());
    return set_level(call_, x_, bits_);
  }

 private:
  bool given(size_t slot) const { return call_[slot].data != nullptr; }
  bool of_fp8_queries() const { return call_[x_.q].dtype != call_.dtype || given(x_.q_descale); }
  float real(size_t scalar) const { return call_.scalars[scalar].real; }
  const char* op() const { return call_.info->name; }
  const char* name(size_t slot) const { return call_.info->operands[slot].name; }

  // Of a backward, whether each sequence has its keys in the rows of its queries. Packed ones do if the same numbers
  // say where they begin, as they then must in every call with these arguments.
  bool is_self_attention() {
    if (call_.sizes[x_.seqlen_q] != call_.sizes[x_.seqlen_k] ||
        call_.scalars[x_.longest_q].whole != call_.scalars[x_.longest_k].whole || bits_ & (kUsedQ | kUsedK))
      return false;
    if (!(bits_ & kPacked)) return true;
    if (call_[x_.cu_seqlens_q].data != call_[x_.cu_seqlens_k].data) return false;
    call_.one_place[0] = call_.from[x_.cu_seqlens_q];
    call_.one_place[1] = call_.from[x_.cu_seqlens_k];
    return true;
  }

  Error check_all() {
    const int64_t paired = bits_ & kPaired;
    if (paired & (paired - 1))  // more than one
      for (const auto& [features, text] : kRefusals)
        if (paired == features) return fail(Error::not_supported, "%s: %s", op(), text);
    if (bits_ & (kPages | kFp8Keys)) AOTRITON_TRY(check_width());
    if (bits_ & kPages) AOTRITON_TRY(check_pages());
    if (bits_ & kPacked)
      AOTRITON_TRY(check_packed());
    else if (call_.scalars[x_.max_seqlen_q].whole || (call_.scalars[x_.max_seqlen_k].whole && !(bits_ & kPages)))
      return fail(Error::invalid_argument, "%s: max_seqlen_q and max_seqlen_k are of calls with cu_seqlens", op());
    const int64_t sequences = bits_ & kPacked ? call_.sizes[x_.starts] - 1 : call_.sizes[x_.batch];
    if (bits_ & kFp8Keys) AOTRITON_TRY(check_fp8_keys(sequences));
    if ((bits_ & (kUsedQ | kUsedK)) && call_.sizes[x_.sequences] != sequences)
      return fail(Error::invalid_shape, "%s: %s has %" PRId64 " lengths, there are %" PRId64 " sequences", op(),
                  name(bits_ & kUsedQ ? x_.seqused_q : x_.seqused_k), call_.sizes[x_.sequences], sequences);
    const float softcap = real(x_.softcap), dropout = real(x_.dropout);
    if (!(softcap >= 0) || !std::isfinite(softcap))
      return fail(Error::invalid_argument, "%s: softcap is %g, which must be finite, and not negative", op(),
                  static_cast<double>(softcap));
    // More would drop all of 65,536 random numbers but one, and scale a weight beyond the largest number of float16.
    constexpr float kMostDropout = 255.0f / 256;
    if (!(dropout >= 0 && dropout <= kMostDropout))
      return fail(Error::invalid_argument, "%s: dropout is %g, which must be at least 0 and at most 255 / 256", op(),
                  static_cast<double>(dropout));
    if (bits_ & kDropout) {
      for (const size_t slot : {x_.dropout_seed, x_.dropout_offset})
        if (!given(slot)) return fail(Error::null_pointer, "%s: dropout is given, %s is not", op(), name(slot));
      if (call_.sizes[x_.one] != 1)
        return fail(Error::invalid_shape, "%s: dropout_seed has %" PRId64 " elements, which must be 1", op(),
                    call_.sizes[x_.one]);
    }
    // Without keys, the sinks are still what logsumexp is of.
    const bool rows = call_.sizes[x_.batch] && call_.sizes[x_.heads_k] && call_.sizes[x_.seqlen_q];
    if ((bits_ & kSinks) && rows && !call_.sizes[x_.seqlen_k]) call_.empty = false;
    call_.whole = true;
    return Error::success;
  }

  // Kernels that have such keys, but for those of latent caches, have images up to as wide as plain calls.
  Error check_width() {
    if (call_.sizes[x_.head_dim] == kLatentDim) return Error::success;
    const struct {
      const char *operand, *name;
      int64_t size;
    } dims[] = {{"q", "head_dim", call_.sizes[x_.head_dim]}, {"v", "head_dim_v", call_.sizes[x_.head_dim_v]}};
    for (const auto& [operand, dim, size] : dims) {
      if (size <= kMostPlain) continue;
      if (bits_ & kPages)
        return fail(Error::not_supported,
                    "%s: with block_table, %s has %s %" PRId64 ", which must be from 1 to %" PRId64, op(), operand, dim,
                    size, kMostPlain);
      return fail(Error::not_supported,
                  "%s: with k of dtype %s, %s has %s %" PRId64 ", which must be from 1 to %" PRId64, op(),
                  dtype_name(call_[x_.k].dtype), operand, dim, size, kMostPlain);
    }
    return Error::success;
  }

  // Sets the number of keys, which no operand has.
  Error check_pages() {
    const int64_t pages = call_.sizes[x_.pages], rows = call_.sizes[x_.page_size];
    const int64_t most = call_.sizes[x_.pages_of_sequence], asked = call_.scalars[x_.max_seqlen_k].whole;
    if (!given(x_.seqused_k)) return fail(Error::null_pointer, "%s: block_table is given, seqused_k is not", op());
    if (given(x_.cu_seqlens_k))
      return fail(Error::invalid_argument,
                  "%s: block_table and cu_seqlens_k are given, of which one says where keys lie", op());
    if (call_.misaligned)
      return fail(Error::not_supported,
                  "%s: with block_table, q must be float16 or bfloat16, head_dim and head_dim_v multiples of %" PRId64,
                  op(), x_.multiple_of_head_dim);
    constexpr int64_t kFar = int64_t{1} << 39;  // see tritonsrc/flash/lib/pages.py
    if (rows % kPageStep || !rows)
      return fail(Error::invalid_shape,
                  "%s: k has page_size %" PRId64 ", which must be a positive multiple of %" PRId64, op(), rows,
                  kPageStep);
    if (!pages && most) return fail(Error::invalid_shape, "%s: block_table is given, and k has no pages", op());
    int64_t keys, far;
    if (__builtin_mul_overflow(most, rows, &keys) || __builtin_mul_overflow(keys, rows, &far) || far > kFar)
      return fail(Error::not_supported,
                  "%s: block_table has %" PRId64 " pages of %" PRId64 " rows for a sequence, too many", op(), most,
                  rows);
    call_.sizes[x_.seqlen_k] = keys;
    if (asked < 0)
      return fail(Error::invalid_argument, "%s: max_seqlen_k is %" PRId64 ", which must not be negative", op(), asked);
    call_.set_whole(x_.longest_k, asked ? std::min(asked, keys) : keys);
    return Error::success;
  }

  Error check_fp8_keys(int64_t sequences) {
    AOTRITON_TRY(check_scales(call_, x_.k, x_.v, x_.k_descale, x_.v_descale));
    const View &queries = call_[x_.q], &keys = call_[x_.k], &values = call_[x_.v];
    if (of_fp8_queries()) AOTRITON_TRY(check_fp8_queries());
    for (const size_t slot : {x_.q_descale, x_.k_descale, x_.v_descale})
      if (given(slot) && call_.sizes[x_.sequences] != sequences)
        return fail(Error::invalid_shape, "%s: %s is of %" PRId64 " sequences, there are %" PRId64, op(), name(slot),
                    call_.sizes[x_.sequences], sequences);
    constexpr int64_t kVector = 16;  // numbers of 8 bits
    int64_t all = call_.sizes[x_.head_dim] | call_.sizes[x_.head_dim_v];
    for (const View* one : {&keys, &values, &queries})
      for (size_t dim = 0; dim < 3 && one->dtype != call_.dtype; ++dim)
        if (one->sizes[dim] > 1) all |= one->strides[dim];
    if (call_.misaligned || all % kVector)
      return fail(
          Error::not_supported,
          "%s: with k of dtype %s, out must be float16 or bfloat16, and head_dim, head_dim_v and the strides of all "
          "of 8 bits multiples of %" PRId64,
          op(), dtype_name(keys.dtype), kVector);
    return Error::success;
  }

  // Queries of 8 bits have keys of their type, and a mask that a plain call has.
  Error check_fp8_queries() {
    const DType of_q = call_[x_.q].dtype, of_k = call_[x_.k].dtype;
    if (of_q == call_.dtype)
      return fail(Error::invalid_argument, "%s: q_descale is given, and q has dtype %s, which has no scale", op(),
                  dtype_name(of_q));
    if (of_q != of_k)
      return fail(Error::invalid_dtype, "%s: q has dtype %s, k has %s", op(), dtype_name(of_q), dtype_name(of_k));
    if (bits_ != kFp8Keys)
      return fail(Error::not_supported,
                  "%s: no kernel has q of dtype %s together with other features yet; served without them, or with q of "
                  "dtype %s",
                  op(), dtype_name(of_q), dtype_name(call_.dtype));
    const auto whole = [&](size_t scalar) { return call_.scalars[scalar].whole; };
    const bool causal = whole(x_.causal) != 0, equal = call_.sizes[x_.seqlen_q] == call_.sizes[x_.seqlen_k];
    if (whole(x_.window_left) >= 0 || whole(x_.window_right) >= 0 || (causal && !equal))
      return fail(Error::not_supported,
                  "%s: no kernel has q of dtype %s with a window, or causal with unequal lengths, yet; served with q "
                  "of dtype %s",
                  op(), dtype_name(of_q), dtype_name(call_.dtype));
    return Error::success;
  }

  Error check_packed() {
    const bool paged = bits_ & kPages;
    for (const size_t slot : {x_.cu_seqlens_q, x_.cu_seqlens_k})
      if (!given(slot) && !(paged && slot == x_.cu_seqlens_k))
        return fail(Error::null_pointer, "%s: %s is not given, and the other one is", op(), name(slot));
    if (call_.sizes[x_.batch] != 1)
      return fail(Error::invalid_shape, "%s: with cu_seqlens, q has batch %" PRId64 ", which must be 1", op(),
                  call_.sizes[x_.batch]);
    if (call_.sizes[x_.starts] < 1)
      return fail(Error::invalid_shape, "%s: cu_seqlens_q has no elements, it must have one more than sequences", op());
    const struct {
      const char* name;
      size_t asked, made, rows;
    } sides[] = {{"max_seqlen_q", x_.max_seqlen_q, x_.longest_q, x_.seqlen_q},
                 {"max_seqlen_k", x_.max_seqlen_k, x_.longest_k, x_.seqlen_k}};
    for (const auto& [named, asked, made, rows] : sides) {
      if (paged && made == x_.longest_k) continue;
      const int64_t longest = call_.scalars[asked].whole;
      if (longest < 1)
        return fail(Error::invalid_argument, "%s: with cu_seqlens, %s is %" PRId64 ", which must be positive", op(),
                    named, longest);
      call_.set_whole(made, std::min(longest, call_.sizes[rows]));
    }
    call_.set_whole(x_.packed_sequences, call_.sizes[x_.starts] - 1);
    return Error::success;
  }

  Call& call_;
  const Indices& x_;
  int64_t bits_;
};

// Values of a latent cache are the first columns of its keys: kernels read keys alone. What an explanation or a query
// is about may not have memory yet.
Error check_latent(Call& call, const Indices& x) {
  if (call.sizes[x.head_dim_v] != kLatentDimV)
    return fail(Error::not_supported,
                "%s: v has head_dim_v %" PRId64 ", which must be %" PRId64 " where q has head_dim %" PRId64,
                call.info->name, call.sizes[x.head_dim_v], kLatentDimV, kLatentDim);
  const View &k = call[x.k], &v = call[x.v];
  call.one_place[0] = call.from[x.k];
  call.one_place[1] = call.from[x.v];
  if (!k.data || !v.data || !call.extents[x.k]) return Error::success;
  bool same = k.data == v.data;
  for (size_t i = 0; i < call.info->operands[x.k].dims.size(); ++i)
    same &= k.sizes[i] == 1 || k.strides[i] == v.strides[i];
  if (same) return Error::success;
  return fail(Error::not_supported,
              "%s: head_dim %" PRId64 " is served where v is the first %" PRId64
              " columns of k: at the same address, with the same strides",
              call.info->name, kLatentDim, kLatentDimV);
}

}  // namespace

[[gnu::hot]] Error check_attention(Call& call, const Indices& p, int64_t of_backward) noexcept {
  const char* const op = call.info->name;
  const int64_t* const sizes = call.sizes;
  if (sizes[p.heads_k] ? sizes[p.heads_q] % sizes[p.heads_k] : sizes[p.heads_q])
    return fail(Error::invalid_shape, "%s: q has %" PRId64 " heads, which must be a multiple of the %" PRId64 " of k",
                op, sizes[p.heads_q], sizes[p.heads_k]);
  const struct {
    const char *operand, *name;
    int64_t size;
  } dims[] = {{"q", "head_dim", sizes[p.head_dim]}, {"v", "head_dim_v", sizes[p.head_dim_v]}};
  const bool latent = p.block_table != Indices::kAbsent && sizes[p.head_dim] == kLatentDim;
  for (const auto& [operand, name, size] : dims)
    if (size < 1 || (size > p.most_head_dim && !latent))
      return fail(Error::not_supported, "%s: %s has %s %" PRId64 ", which must be from 1 to %" PRId64, op, operand,
                  name, size, p.most_head_dim);
  if (latent) AOTRITON_TRY(check_latent(call, p));
  AOTRITON_TRY(Features(call, p, of_backward).check());
  constexpr float kLog2E = 1.4426950408889634f;  // kernels multiply by it
  const float scale = call.scalars[p.sm_scale].real;
  if (!is_given(scale)) {
    call.set_real(p.sm_scale, static_cast<float>(1 / std::sqrt(static_cast<double>(sizes[p.head_dim]))));
    return Error::success;
  }
  if (!(scale >= 0) || !std::isfinite(scale * kLog2E))
    return fail(Error::invalid_argument, "%s: sm_scale is %g, which must be finite, and not negative", op,
                static_cast<double>(scale));
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1::flash
