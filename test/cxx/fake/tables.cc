// Stands in for the generated shims, tables and images, small and the same for every kernel: two entries, of which the
// second wins where both seqlens are above 64 and the GPU is filled more than once. The hopper backend of attn_fwd
// serves bf16 of head dim 256, that of attn_bwd bf16 of head dim 128, hopper_split bf16 of head dim 256; they are
// faster where seqlen_q is above 64.
#include <array>

#include "attn_bwd_dk_dv.shim.h"
#include "attn_bwd_dq.shim.h"
#include "attn_bwd_hopper.shim.h"
#include "attn_bwd_hopper_dk_dv.shim.h"
#include "attn_bwd_hopper_dq.shim.h"
#include "attn_bwd_hopper_finish.shim.h"
#include "attn_bwd_hopper_prepare.shim.h"
#include "attn_bwd_preprocess.shim.h"
#include "attn_fwd.shim.h"
#include "attn_fwd_hopper.shim.h"
#include "flash/kernels.h"

namespace aotriton::v2::inline abi1::flash {

namespace {

int head_dim_index(int32_t head_dim) { return head_dim == 32 ? 0 : head_dim == 64 ? 1 : head_dim == 128 ? 2 : 3; }

int godel(DType dtype, int32_t head_dim, bool causal, Addressing addressing) {
  if (dtype != DType::float16 && dtype != DType::bfloat16) return -1;
  const int type = dtype == DType::bfloat16;
  return ((type * 4 + head_dim_index(head_dim)) * 2 + causal) * 3 + static_cast<int>(addressing);
}

constexpr const char* kSeqlenKeys[] = {"max_seqlen_q", "max_seqlen_k", "waves"};
constexpr const char* kRowKeys[] = {"max_seqlen_q"};
constexpr const char* kTilePsels[] = {"BLOCK_M", "BLOCK_N"};
constexpr const char* kRowPsels[] = {"BLOCK_M"};

constexpr int32_t kSeqlens[] = {64, 512};
constexpr int32_t kWaves[] = {1, 8};
constexpr std::span<const int32_t> kBins[] = {kSeqlens, kSeqlens, kWaves};
constexpr std::span<const int32_t> kRowBins[] = {kSeqlens};
constexpr uint8_t kIndex[] = {0, 0, 0, 0, 0, 0, 0, 1};
constexpr uint8_t kRowIndex[] = {0, 1};

constexpr RunnerUp kRunnersUp[] = {{"BLOCK_M=128 BLOCK_N=64 num_warps=8 num_stages=3", 13.25f},
                                   {"BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=2", 14.5f}};
constexpr Evidence kMeasured = {Provenance::measured, "", 12.5f, kRunnersUp};
constexpr Evidence kBorrowed = {Provenance::borrowed, "T=bf16", 0.0f, {}};
constexpr Evidence kPredicted = {Provenance::predicted, "static model", 0.0f, {}};
#define EIGHT(x) {x, x, x, x, x, x, x, x}
constexpr Evidence kEvidence_sm_90[] = {kBorrowed, kBorrowed, kBorrowed, kBorrowed,
                                        kBorrowed, kBorrowed, kBorrowed, kMeasured};
constexpr Evidence kEvidence_gfx942[] = EIGHT(kPredicted);
constexpr std::span<const Evidence> kRowEvidence_sm_90 = std::span(kEvidence_sm_90).last(2);
constexpr std::span<const Evidence> kRowEvidence_gfx942 = std::span(kEvidence_gfx942).last(2);

#define BYTES(text) reinterpret_cast<const unsigned char*>(text), sizeof text, sizeof text

// Images of kernel K on arch A: without descriptors (plain) and, where D lists them, with.
#define IMAGES(K, A, THREADS, COUNT, D0, D1)                                                                           \
  Image K##_##A##_plain0 = {#K "_" #A "_plain0", #K, BYTES(#A " plain0 " #K), 40000, 0, THREADS, 0, {}};               \
  Image K##_##A##_plain1 = {#K "_" #A "_plain1", #K, BYTES(#A " plain1 " #K), 60000, 0, THREADS * 2, 0, {}};           \
  Image K##_##A##_aligned0 = {#K "_" #A "_aligned0", #K, BYTES(#A " aligned0 " #K), 40000, 0, THREADS, COUNT, D0};     \
  Image K##_##A##_aligned1 = {#K "_" #A "_aligned1", #K, BYTES(#A " aligned1 " #K), 60000, 0, THREADS * 2, COUNT, D1}; \
  Image* const K##_##A##_images[] = {&K##_##A##_plain0, &K##_##A##_plain1, &K##_##A##_aligned0, &K##_##A##_aligned1}

#define TILE(ROWS) {4, 3, {1, 1, ROWS, 64}}
#define QKVO(M, N) TILE(M), TILE(N), TILE(N), TILE(M)
#define LIST(...) {__VA_ARGS__}
#define NONE \
  {          \
  }

IMAGES(attn_fwd, sm_90, 128, 4, LIST(QKVO(64, 32)), LIST(QKVO(128, 64)));
IMAGES(attn_fwd, gfx942, 256, 0, NONE, NONE);
IMAGES(attn_bwd_preprocess, sm_90, 128, 0, NONE, NONE);
IMAGES(attn_bwd_preprocess, gfx942, 256, 0, NONE, NONE);
IMAGES(attn_bwd_dk_dv, sm_90, 128, 6, LIST(QKVO(64, 32), TILE(32), TILE(32)), LIST(QKVO(128, 64), TILE(64), TILE(64)));
IMAGES(attn_bwd_dk_dv, gfx942, 256, 0, NONE, NONE);
IMAGES(attn_bwd_dq, sm_90, 128, 5, LIST(QKVO(64, 32), TILE(64)), LIST(QKVO(128, 64), TILE(128)));
IMAGES(attn_bwd_dq, gfx942, 256, 0, NONE, NONE);

#define ENTRIES(K, A, WAY)                                                                  \
  constexpr Entry K##_##A##_##WAY[] = {                                                     \
      {&K##_##A##_##WAY##0, {64, 32}, "BLOCK_M=64 BLOCK_N=32", "num_warps=4 num_stages=2"}, \
      {&K##_##A##_##WAY##1, {128, 64}, "BLOCK_M=128 BLOCK_N=64", "num_warps=8 num_stages=3"}}

struct Row {
  int godel;
  Lut lut;
};

// Two rows: the functional with general addressing, and with that of aligned tensors.
#define ROW(K, A, NUMBER, ALIGNED_NUMBER, ALIGNED, TEXT)                                                      \
  {NUMBER, {TEXT " ADDRESSING=general", kBins, kIndex, K##_##A##_plain, kEvidence_##A}}, {                    \
    NUMBER + ALIGNED_NUMBER, { TEXT " ADDRESSING=" ALIGNED, kBins, kIndex, K##_##A##_aligned, kEvidence_##A } \
  }
#define ROW_OF_ROWS(K, A, NUMBER, ALIGNED_NUMBER, ALIGNED, TEXT)                                                       \
  {NUMBER, {TEXT " ADDRESSING=general", kRowBins, kRowIndex, K##_##A##_plain, kRowEvidence_##A}}, {                    \
    NUMBER + ALIGNED_NUMBER, { TEXT " ADDRESSING=" ALIGNED, kRowBins, kRowIndex, K##_##A##_aligned, kRowEvidence_##A } \
  }

template <size_t Count, size_t Rows>
constexpr std::array<const Lut*, Count> by_number(const Row (&rows)[Rows]) {
  std::array<const Lut*, Count> luts = {};
  for (const Row& row : rows) luts[static_cast<size_t>(row.godel)] = row.lut.valid() ? &row.lut : throw "invalid";
  return luts;
}

#define TABLE(K, A, ALIGNED_NUMBER, ALIGNED)                                                                        \
  ENTRIES(K, A, plain);                                                                                             \
  ENTRIES(K, A, aligned);                                                                                           \
  constexpr Row K##_##A##_rows[] = {ROW(K, A, 6, ALIGNED_NUMBER, ALIGNED, "T=fp16 BLOCK_DMODEL=64 CAUSAL=False"),   \
                                    ROW(K, A, 30, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=64 CAUSAL=False"),  \
                                    ROW(K, A, 33, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=64 CAUSAL=True"),   \
                                    ROW(K, A, 36, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=128 CAUSAL=False"), \
                                    ROW(K, A, 42, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=256 CAUSAL=False"), \
                                    ROW(K, A, 45, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=256 CAUSAL=True")}; \
  constexpr std::array<const Lut*, 48> K##_##A##_luts = by_number<48>(K##_##A##_rows)
#define TABLE_OF_ROWS(K, A, ALIGNED_NUMBER, ALIGNED)                                                            \
  ENTRIES(K, A, plain);                                                                                         \
  ENTRIES(K, A, aligned);                                                                                       \
  constexpr Row K##_##A##_rows[] = {ROW_OF_ROWS(K, A, 3, ALIGNED_NUMBER, ALIGNED, "T=fp16 BLOCK_DMODEL=64"),    \
                                    ROW_OF_ROWS(K, A, 15, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=64"),   \
                                    ROW_OF_ROWS(K, A, 18, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=128"),  \
                                    ROW_OF_ROWS(K, A, 21, ALIGNED_NUMBER, ALIGNED, "T=bf16 BLOCK_DMODEL=256")}; \
  constexpr std::array<const Lut*, 24> K##_##A##_luts = by_number<24>(K##_##A##_rows)

TABLE(attn_fwd, sm_90, 2, "descriptor");
TABLE(attn_fwd, gfx942, 1, "offset32");
TABLE_OF_ROWS(attn_bwd_preprocess, sm_90, 2, "descriptor");
TABLE_OF_ROWS(attn_bwd_preprocess, gfx942, 1, "offset32");
TABLE(attn_bwd_dk_dv, sm_90, 2, "descriptor");
TABLE(attn_bwd_dk_dv, gfx942, 1, "offset32");
TABLE(attn_bwd_dq, sm_90, 2, "descriptor");
TABLE(attn_bwd_dq, gfx942, 1, "offset32");

constexpr const char* kHopperPsels[] = {"BLOCK_N", "CONSUMERS"};
IMAGES(attn_fwd_hopper, sm_90, 384, 4, LIST(QKVO(64, 32)), LIST(QKVO(64, 128)));
constexpr Entry attn_fwd_hopper_entries[] = {
    {&attn_fwd_hopper_sm_90_aligned0, {32, 2}, "BLOCK_N=32 CONSUMERS=2", "num_warps=4 maxnreg=168"},
    {&attn_fwd_hopper_sm_90_aligned1, {128, 3}, "BLOCK_N=128 CONSUMERS=3", "num_warps=4 maxnreg=128"}};
constexpr Lut kHopperLut = {"T=bf16 BLOCK_DMODEL=256 CAUSAL=False ADDRESSING=descriptor", kBins, kIndex,
                            attn_fwd_hopper_entries, kEvidence_sm_90};
constexpr const Lut* attn_fwd_hopper_sm_90_luts[] = {&kHopperLut};
constexpr KernelTable attn_fwd_hopper_tables[] = {{"gfx942", {}, {}},
                                                  {"sm_90", attn_fwd_hopper_sm_90_luts, attn_fwd_hopper_sm_90_images}};

// The backward's, each with one entry.
#define SUM(ROWS) {4, 3, {1, 1, ROWS, 32}}
#define HOPPER_BACKWARD LIST(TILE(64), TILE(128), TILE(128), TILE(64), TILE(128), TILE(128), SUM(64))
IMAGES(attn_bwd_hopper_prepare, sm_90, 384, 0, NONE, NONE);
IMAGES(attn_bwd_hopper, sm_90, 384, 7, HOPPER_BACKWARD, HOPPER_BACKWARD);
IMAGES(attn_bwd_hopper_finish, sm_90, 384, 0, NONE, NONE);
IMAGES(attn_bwd_hopper_dk_dv, sm_90, 384, 6, LIST(QKVO(64, 64), TILE(64), TILE(64)),
       LIST(QKVO(64, 64), TILE(64), TILE(64)));
IMAGES(attn_bwd_hopper_dq, sm_90, 384, 5, LIST(QKVO(64, 64), TILE(64)), LIST(QKVO(64, 64), TILE(64)));
constexpr uint8_t kOneEntry[] = {0, 0, 0, 0, 0, 0, 0, 0};
constexpr auto kOneEntryOfRows = std::span(kOneEntry).first(2);
#define ONE_ENTRY(K, TEXT, BINS, INDEX)                                                       \
  constexpr Entry K##_entries[] = {{&K##_sm_90_aligned0, {64}, "BLOCK_M=64", "num_warps=8"}}; \
  constexpr Lut K##_lut = {TEXT " ADDRESSING=descriptor", BINS, INDEX, K##_entries,           \
                           std::span(kEvidence_sm_90).last(std::size(INDEX))};                \
  constexpr const Lut* K##_luts[] = {&K##_lut};                                               \
  constexpr KernelTable K##_tables[] = {{"gfx942", {}, {}}, {"sm_90", K##_luts, K##_sm_90_images}}
ONE_ENTRY(attn_bwd_hopper_prepare, "T=bf16 BLOCK_DMODEL=128", kRowBins, kOneEntryOfRows);
ONE_ENTRY(attn_bwd_hopper, "T=bf16 BLOCK_DMODEL=128 CAUSAL=False", kBins, kOneEntry);
ONE_ENTRY(attn_bwd_hopper_finish, "T=bf16 BLOCK_DMODEL=128", kRowBins, kOneEntryOfRows);

ONE_ENTRY(attn_bwd_hopper_dk_dv, "T=bf16 BLOCK_DMODEL=256 CAUSAL=False", kBins, kOneEntry);
ONE_ENTRY(attn_bwd_hopper_dq, "T=bf16 BLOCK_DMODEL=256 CAUSAL=False", kBins, kOneEntry);

constexpr const char* kBackends[] = {"portable", "hopper"};
constexpr const char* kBackwardBackends[] = {"portable", "hopper", "hopper_split"};
constexpr BackendCell kSplitShort = {0, {10.0f, 0.0f, 11.0f}}, kSplitLong = {2, {20.0f, 0.0f, 15.0f}};
constexpr BackendCell kSplitCells[] = {kSplitShort, kSplitShort, kSplitShort, kSplitShort,
                                       kSplitLong,  kSplitLong,  kSplitLong,  kSplitLong};
constexpr BackendCell kShort = {0, {10.0f, 11.0f}}, kLong = {1, {20.0f, 15.0f}};
constexpr BackendCell kBackendCells[] = {kShort, kShort, kShort, kShort, kLong, kLong, kLong, kLong};
constexpr int kBackendsOf = 44;  // attn_fwd's godel number of the functional that the hopper backend has
constexpr auto kBackendFunctionals = [] {
  std::array<std::span<const BackendCell>, 48> functionals = {};
  functionals[kBackendsOf] = kBackendCells;
  functionals[kBackendsOf + 3] = kBackendCells;  // causal, of which the hopper kernel has no table
  return functionals;
}();
constexpr auto kBackwardFunctionals = [] {
  std::array<std::span<const BackendCell>, 48> functionals = {};
  functionals[38] = kBackendCells;  // attn_bwd_dq's godel number of the functional that the hopper backend has
  functionals[44] = kSplitCells;    // and of that of hopper_split
  return functionals;
}();
constexpr OperatorTable kOperatorTables[] = {{"sm_90", kBackendFunctionals}};
constexpr OperatorTable kBackwardTables[] = {{"sm_90", kBackwardFunctionals}};

#define KERNEL_TABLES(K)                                                                \
  constexpr KernelTable K##_tables[] = {{"gfx942", K##_gfx942_luts, K##_gfx942_images}, \
                                        {"sm_90", K##_sm_90_luts, K##_sm_90_images}}

KERNEL_TABLES(attn_fwd);
KERNEL_TABLES(attn_bwd_preprocess);
KERNEL_TABLES(attn_bwd_dk_dv);
KERNEL_TABLES(attn_bwd_dq);

}  // namespace

const KernelInfo attn_fwd_info = {"attn_fwd", kSeqlenKeys, kTilePsels, attn_fwd_tables};
const KernelInfo attn_fwd_hopper_info = {"attn_fwd_hopper", kSeqlenKeys, kHopperPsels, attn_fwd_hopper_tables};
const KernelInfo attn_bwd_preprocess_info = {"attn_bwd_preprocess", kRowKeys, kRowPsels, attn_bwd_preprocess_tables};
const KernelInfo attn_bwd_dk_dv_info = {"attn_bwd_dk_dv", kSeqlenKeys, kTilePsels, attn_bwd_dk_dv_tables};
const KernelInfo attn_bwd_hopper_prepare_info = {"attn_bwd_hopper_prepare", kRowKeys, kRowPsels,
                                                 attn_bwd_hopper_prepare_tables};
constexpr const char* kColumnPsels[] = {"BLOCK_N"};
const KernelInfo attn_bwd_hopper_dk_dv_info = {"attn_bwd_hopper_dk_dv", kSeqlenKeys, kRowPsels,
                                               attn_bwd_hopper_dk_dv_tables};
const KernelInfo attn_bwd_hopper_dq_info = {"attn_bwd_hopper_dq", kSeqlenKeys, kColumnPsels, attn_bwd_hopper_dq_tables};
const KernelInfo attn_bwd_hopper_info = {"attn_bwd_hopper", kSeqlenKeys, kRowPsels, attn_bwd_hopper_tables};
const KernelInfo attn_bwd_hopper_finish_info = {"attn_bwd_hopper_finish", kRowKeys, kRowPsels,
                                                attn_bwd_hopper_finish_tables};
const KernelInfo attn_bwd_dq_info = {"attn_bwd_dq", kSeqlenKeys, kTilePsels, attn_bwd_dq_tables};

const OperatorInfo attn_fwd_operator = {"attn_fwd", kBackends, kOperatorTables};
const OperatorInfo attn_bwd_operator = {"attn_bwd", kBackwardBackends, kBackwardTables};

int AttnFwdHopperFunctional::godel_number() const noexcept {
  return T == DType::bfloat16 && BLOCK_DMODEL == 256 && !CAUSAL && ADDRESSING == Addressing::descriptor ? 0 : -1;
}
namespace {

int backward_number(DType dtype, int32_t head_dim, bool causal, Addressing addressing) {
  return dtype == DType::bfloat16 && head_dim == 128 && !causal && addressing == Addressing::descriptor ? 0 : -1;
}

}  // namespace

int AttnBwdHopperPrepareFunctional::godel_number() const noexcept {
  return backward_number(T, BLOCK_DMODEL, false, ADDRESSING);
}
int AttnBwdHopperFunctional::godel_number() const noexcept {
  return backward_number(T, BLOCK_DMODEL, CAUSAL, ADDRESSING);
}
int AttnBwdHopperFinishFunctional::godel_number() const noexcept {
  return backward_number(T, BLOCK_DMODEL, false, ADDRESSING);
}
int AttnBwdHopperDkDvFunctional::godel_number() const noexcept {
  return T == DType::bfloat16 && BLOCK_DMODEL == 256 && !CAUSAL && ADDRESSING == Addressing::descriptor ? 0 : -1;
}
int AttnBwdHopperDqFunctional::godel_number() const noexcept {
  return T == DType::bfloat16 && BLOCK_DMODEL == 256 && !CAUSAL && ADDRESSING == Addressing::descriptor ? 0 : -1;
}
int AttnFwdFunctional::godel_number() const noexcept { return godel(T, BLOCK_DMODEL, CAUSAL, ADDRESSING); }
int AttnBwdDkDvFunctional::godel_number() const noexcept { return godel(T, BLOCK_DMODEL, CAUSAL, ADDRESSING); }
int AttnBwdDqFunctional::godel_number() const noexcept { return godel(T, BLOCK_DMODEL, CAUSAL, ADDRESSING); }
int AttnBwdPreprocessFunctional::godel_number() const noexcept {
  const int number = godel(T, BLOCK_DMODEL, false, ADDRESSING);
  return number < 0 ? -1 : number / 6 * 3 + number % 6;
}

namespace {

void strides(ArgumentList& list, std::initializer_list<const Tensor<4>*> tensors) {
  for (const Tensor<4>* tensor : tensors)
    for (int i = 0; i < 3; ++i) list.value(tensor->strides[i]);
}

// The sizes that come last in all kernels but preprocess.
template <class Arguments>
void sizes(ArgumentList& list, const Arguments& a) {
  for (const int32_t size : {a.num_heads_q, a.num_heads_k, a.max_seqlen_q, a.max_seqlen_k, a.head_dim})
    list.value(size);
}

}  // namespace

void AttnFwdArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &Out}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.value(store_lse);
  list.value(sm_scale);
  strides(list, {&Q, &K, &V, &Out});
  sizes(list, *this);
}

void AttnFwdHopperArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &Out}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.value(store_lse);
  list.value(sm_scale);
  sizes(list, *this);
  list.value(batch);
}

void AttnBwdPreprocessArguments::collect(ArgumentList& list) const noexcept {
  list.tensor(Out, false);
  list.tensor(DO, false);
  list.tensor(Delta, false);
  strides(list, {&Out, &DO});
  for (const int32_t size : {num_heads_q, max_seqlen_q, head_dim}) list.value(size);
}

void AttnBwdHopperPrepareArguments::collect(ArgumentList& list) const noexcept {
  list.tensor(Out, false);
  list.tensor(DO, false);
  list.tensor(Delta, false);
  list.tensor(DQSum, false);
  strides(list, {&Out, &DO});
  for (const int32_t size : {num_heads_q, max_seqlen_q, head_dim}) list.value(size);
}

void AttnBwdHopperArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &DO, &DK, &DV, &DQSum}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.tensor(Delta, false);
  list.value(sm_scale);
  sizes(list, *this);
}

void AttnBwdHopperDkDvArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &DO, &DK, &DV}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.tensor(Delta, false);
  list.value(sm_scale);
  sizes(list, *this);
}

void AttnBwdHopperDqArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &DO, &DQ}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.tensor(Delta, false);
  list.value(sm_scale);
  sizes(list, *this);
}

void AttnBwdHopperFinishArguments::collect(ArgumentList& list) const noexcept {
  list.tensor(DQSum, false);
  list.tensor(DQ, false);
  list.value(sm_scale);
  strides(list, {&DQSum, &DQ});
  for (const int32_t size : {max_seqlen_q, head_dim}) list.value(size);
}

void AttnBwdDkDvArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &DO, &DK, &DV}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.tensor(Delta, false);
  list.value(sm_scale);
  strides(list, {&Q, &K, &V, &DO, &DK, &DV});
  sizes(list, *this);
}

void AttnBwdDqArguments::collect(ArgumentList& list) const noexcept {
  for (const Tensor<4>* tensor : {&Q, &K, &V, &DO, &DQ}) list.tensor(*tensor, true);
  list.tensor(L, false);
  list.tensor(Delta, false);
  list.value(sm_scale);
  strides(list, {&Q, &K, &V, &DO, &DQ});
  sizes(list, *this);
}

}  // namespace aotriton::v2::inline abi1::flash
