/* The C interface: everything that the library does. The C++ headers beside this one sit on it.
 *
 * Every parameter struct begins with its size, which the caller sets to sizeof of the struct, and whose other fields
 * begin as zeros: zero stands for "not given" or for the default that the field names. A library that is older than its
 * caller refuses a field that it does not know with AOTRITON_NOT_SUPPORTED, unless that is zero; fields that an older
 * caller does not have count as zeros. A size that ends inside of a field is refused. Only structs that begin with a
 * size can grow, at their end: tensors, aotriton_attn_features, aotriton_hint_outcome and the structs that
 * aotriton_kernel_choice consists of never change.
 *
 *   aotriton_attn_fwd_params params = {.size = sizeof params};
 *
 * Calls launch on a stream (a CUstream, cudaStream_t or hipStream_t; null: the default stream of the current device)
 * and return without waiting. After an error nothing was launched, unless it is AOTRITON_DRIVER_FAILED from a later
 * kernel of several. All functions may be called from any thread, and take part in stream capture once their images are
 * loaded.
 *
 * How long things live: what a call is given (parameters, hints, arrays) is read during the call and not kept. Device
 * memory, the workspace too, is the caller's until the kernels that use it are done. Constant text lives as long as the
 * library is loaded.
 */
#ifndef AOTRITON_C_H
#define AOTRITON_C_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>

/* Of this header; aotriton_version() is that of the library. */
#define AOTRITON_VERSION_MAJOR 0
#define AOTRITON_VERSION_MINOR 2
#define AOTRITON_VERSION_PATCH 0

/* The archive's functions stay inside of what links it, so that two copies can live in a process. */
#ifndef AOTRITON_API
#define AOTRITON_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ------------------------------------------------------------------------------------------------------ */

typedef int32_t aotriton_error;
enum {
  AOTRITON_SUCCESS = 0,
  AOTRITON_NULL_POINTER,        /* a required tensor has no data */
  AOTRITON_INVALID_SHAPE,       /* sizes that do not fit together, or are negative */
  AOTRITON_INVALID_STRIDE,      /* a layout that no kernel can address, or results that overlap */
  AOTRITON_INVALID_DTYPE,       /* an element type that the operator does not take */
  AOTRITON_MISALIGNED_POINTER,  /* data that is not aligned to its element, or not as much as is asked for below */
  AOTRITON_INVALID_ARGUMENT,    /* a number or a name that means nothing here */
  AOTRITON_NOT_SUPPORTED,       /* valid, but no kernel does it */
  AOTRITON_NO_DRIVER,           /* neither libcuda.so.1 nor libamdhip64.so with a device was found */
  AOTRITON_NO_CONTEXT,          /* the stream names no device, or no device is current */
  AOTRITON_UNKNOWN_ARCH,        /* the device's architecture is not in this build */
  AOTRITON_NO_WINNER,           /* the functional is not in this build's coverage */
  AOTRITON_NOT_LOADED,          /* the stream is capturing and an image is not loaded yet: preload before */
  AOTRITON_WORKSPACE_TOO_SMALL, /* the workspace is missing or smaller than the query said */
  AOTRITON_DAMAGED_IMAGE,       /* an embedded image could not be unpacked */
  AOTRITON_DRIVER_FAILED,       /* the driver returned an error; the message quotes it */
  AOTRITON_OUT_OF_MEMORY        /* no host memory for what the library keeps */
};

/* Name of the error, such as "invalid_shape"; never null. Constant text. */
AOTRITON_API const char* aotriton_error_name(aotriton_error error);

/* What went wrong in this thread's last call that did not succeed, naming the argument; never null. The text
 * lives until this thread's next call of the library: copy what is to be kept. */
AOTRITON_API const char* aotriton_last_error_message(void);

/* "major.minor.patch" of this library; never null. Constant text. */
AOTRITON_API const char* aotriton_version(void);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef int32_t aotriton_dtype;
enum {
  AOTRITON_NO_DTYPE = 0,
  AOTRITON_FLOAT16,
  AOTRITON_BFLOAT16,
  AOTRITON_FLOAT32,
  AOTRITON_INT32,
  AOTRITON_INT64,
  /* Of kernels of other families alone. A bool is a byte, 0 or 1. */
  AOTRITON_BOOL,
  AOTRITON_INT8,
  AOTRITON_UINT8,
  AOTRITON_FLOAT8_E4M3FN, /* sm_90's float of 8 bits, also of attention's keys and values */
  AOTRITON_FLOAT8_E5M2,
  AOTRITON_FLOAT8_E4M3FNUZ /* gfx942's */
};

/* Strided views of device memory, outermost dimension first. Strides are in elements. Null data: not given. */
typedef struct aotriton_tensor1 {
  void* data;
  aotriton_dtype dtype;
  int64_t sizes[1], strides[1];
} aotriton_tensor1;
typedef struct aotriton_tensor2 {
  void* data;
  aotriton_dtype dtype;
  int64_t sizes[2], strides[2];
} aotriton_tensor2;
typedef struct aotriton_tensor3 {
  void* data;
  aotriton_dtype dtype;
  int64_t sizes[3], strides[3];
} aotriton_tensor3;
typedef struct aotriton_tensor4 {
  void* data;
  aotriton_dtype dtype;
  int64_t sizes[4], strides[4];
} aotriton_tensor4;

/* ---- hints ------------------------------------------------------------------------------------------------------- */

enum { AOTRITON_AUTO = 0, AOTRITON_BFS, AOTRITON_DFS };                    /* of schedule */
enum { AOTRITON_NO_OBJECTIVE = 0, AOTRITON_LATENCY, AOTRITON_THROUGHPUT }; /* of objective */

/* What the caller wishes of a call, all of it optional: every parameter struct ends with a pointer to one, which is
 * read while the call is made, and may be null. docs/hints.md says what each restricts, and what it costs. Lists
 * have commas between names, and text ends with a zero. `backend`, `image` and `exclude`, and attn_fwd's
 * `batch_invariant`, are followed or the call is refused with AOTRITON_NOT_SUPPORTED and the reason; the others are
 * followed where that is possible.
 * aotriton_<operator>_hint_outcomes and aotriton_explain_<operator> say what became of each. Fields that only a newer
 * caller's struct has are ignored. */
typedef struct aotriton_hints {
  size_t size;
  int32_t schedule;         /* the order in which a kernel goes through independent slices, such as heads: AOTRITON_BFS:
                               many side by side; AOTRITON_DFS: one after the other, so that its operands stay in cache */
  int32_t objective;        /* AOTRITON_LATENCY: the least time of this call alone, as without hints */
  uint64_t workspace_limit; /* bytes, where workspace_limited */
  uint8_t workspace_limited;
  uint8_t deterministic;   /* the same bits every time */
  uint8_t batch_invariant; /* a sequence's bits do not depend on what else is in the call */
  uint8_t reserved[5];
  char backend[32];  /* the only one that may serve the call */
  char image[128];   /* the only one of its kernel that may be launched, as explanations name it */
  char exclude[256]; /* backends, kernels and images that may not */
  char unknown[128]; /* names that aotriton_parse_hints does not know, with spaces between them */
} aotriton_hints;

/* Adds what the text says to *hints, whose size is set; what it says twice counts as it was said last. Words with
 * spaces between them: schedule=auto|bfs|dfs workspace_limit=BYTES backend=NAME image=NAME exclude=NAME,NAME, and
 * deterministic, batch_invariant, latency and throughput, each alone or with =0 or =1. Unknown names are ignored, and
 * kept in hints->unknown; a value that a known one cannot have is AOTRITON_INVALID_ARGUMENT, and *hints is as it was.
 */
AOTRITON_API aotriton_error aotriton_parse_hints(const char* text, aotriton_hints* hints);

/* What became of a hint. */
typedef struct aotriton_hint_outcome {
  char name[32]; /* as in aotriton_parse_hints, cut where it is longer */
  int32_t honoured;
  const char* why; /* why not, or how; may be empty. Constant text */
} aotriton_hint_outcome;

enum { AOTRITON_MOST_OUTCOMES = 12 }; /* of a call; unknown names beyond it are left out */

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { AOTRITON_CAUSAL_TOP_LEFT = 0, AOTRITON_CAUSAL_BOTTOM_RIGHT };       /* of causal_variant */
enum { AOTRITON_SKIP_DQ = 1, AOTRITON_SKIP_DK = 2, AOTRITON_SKIP_DV = 4 }; /* bits of skip_gradients */

/* What attention computes beyond softmax(sm_scale q k^T) v, forward and backward. Everything is optional: a tensor
 * without data, a null pointer and a number that is zero are not given, also where a call is only asked about
 * (workspace, supported, explanations). Lengths, seeds and offsets are read on the device when the kernels run: the
 * library cannot check their values.
 *
 * A sequence is one of the batch, or, with cu_seqlens, one of those that follow each other. Its used lengths are its
 * seqused_q and seqused_k where they are given, else its lengths. The score x of query i and key j, both counted from
 * the beginning of the sequence:
 *
 *   x = sm_scale q_i k_j
 *   x = softcap tanh(x / softcap)             with softcap
 *   x = x - slope |i + used_k - used_q - j|   with alibi_slopes, whatever causal_variant is
 *   x = x + bias_ij                           with bias
 *   x = -inf                                  where the query does not see the key
 *   logsumexp_i = log(sum_j exp(x_ij) + exp(sink)), the sink only where it is given
 *   out_i = sum_j keep_ij exp(x_ij - logsumexp_i) v_j / (1 - p)
 *
 * A bias of minus infinity hides a key, and so does one that float32 cannot hold when it is divided by sm_scale. A
 * query that sees no key has an out of 0, gradients of 0, and as its logsumexp the sink, or minus infinity.
 *
 * Packed sequences (cu_seqlens): q and dq are [1, heads_q, total_q, head_dim], k and dk [1, heads_k, total_k,
 * head_dim], out and dout [1, heads_q, total_q, head_dim_v], v and dv [1, heads_k, total_k, head_dim_v], logsumexp [1,
 * heads_q, total_q], alibi_slopes [1, heads_q]: the batch is 1. Sequence z has the rows from cu_seqlens[z] to before
 * cu_seqlens[z + 1]; it may have none. Numbers must not fall, nor exceed the total. max_seqlen_q and max_seqlen_k are
 * at least the longest sequence's lengths: what is longer is not computed. Rows of no sequence are not computed either:
 * results keep what they had there. Of self-attention, cu_seqlens_q and cu_seqlens_k are best one tensor: a backward is
 * faster then, and each launch of one that was prepared so, too, has them at one place.
 *
 * Used lengths: rows of a sequence from seqused_q on get an out and dq of 0 and a logsumexp of minus infinity, keys
 * from seqused_k on a dk and dv of 0. More than the sequence has counts as what it has.
 *
 * Pages (block_table, of the forward): k is [pages, heads_k, page_size, head_dim], v [pages, heads_k, page_size,
 * head_dim_v], with any strides, so that a cache may have its tokens or its heads first. Key j of sequence z is row j %
 * page_size of page block_table[z][j / page_size]. page_size is a positive multiple of 16. seqused_k is given, and says
 * how many keys a sequence has; q is of the batch's sequences, or packed, with cu_seqlens_q and max_seqlen_q and
 * without cu_seqlens_k. max_seqlen_k, where it is given, is at least the longest of seqused_k, and by default all that
 * a row of the table has room for. Nothing is read of pages and rows that no query sees, nor are their numbers: a
 * window's older pages may be gone. Tensors are of 16 bits and aligned to 16 bytes, head dims are multiples of 8 up to
 * 256, or those of a latent cache, and there is a workspace.
 *
 * dropout: p is t / 32768, where t is 32768 dropout, rounded to the nearest whole number; dropout is 255 / 256 at most.
 * A score is kept where its number, of 15 random bits, is at least t. Philox 4x32 with 7 rounds, whose key is the seed
 * and whose counter is (the offset's low 32 bits, its high 32 bits, 0, 0), makes three words of them: a, b and c. Score
 * j of row i of head h of sequence z has word i / 8 % 2 of Philox 2x32 with 7 rounds, whose key is a + (z heads_q + h)
 * 0xBB67AE85 and whose counter is (b + 4 (j / 16) + j % 8 / 2, c + 8 (i / 16) + i % 8), all modulo 2^32. That word is
 * turned right by 8 (j / 8 % 2) + 16 (j % 2) bits, and its number is what its low 15 bits are. So a mask depends on
 * nothing else, and every kernel finds the same one. A backward takes the seed, the offset and the dropout of its
 * forward. Calls that share a seed need offsets that differ.
 *
 * Keys and values of 8 bits (of the forward): k and v are AOTRITON_FLOAT8_E4M3FN on sm_90, AOTRITON_FLOAT8_E4M3FNUZ on
 * gfx942, both, beside q and out of 16 bits. k_descale and v_descale multiply them, for each sequence and head; without
 * them these are 1. Products are of fp16 numbers, which hold all of 8 bits, and sums of fp32. Tensors are aligned to 16
 * bytes, and head dims are multiples of 16 up to 256.
 *
 * Queries of 8 bits (of the forward, on sm_90): q, k and v are AOTRITON_FLOAT8_E4M3FN, beside out of 16 bits, and
 * q_descale multiplies q, for each sequence and head of k. Products are of numbers of 8 bits, to which weights are
 * rounded, too, and sums as exact as the GPU's are of these. All keys are seen, or, causal, with as many queries as
 * keys, those up to the query's own position; there is no other feature, and there is a workspace.
 *
 * AOTRITON_NOT_SUPPORTED: softcap together with bias, alibi_slopes or dropout; bias together with cu_seqlens;
 * block_table together with bias, alibi_slopes or dropout; k of 8 bits together with bias, alibi_slopes or dropout, or
 * in a backward, as block_table is; q of 8 bits with a window or other features. AOTRITON_NULL_POINTER: cu_seqlens of
 * one side only; dropout without dropout_seed or dropout_offset; block_table without seqused_k. AOTRITON_INVALID_SHAPE:
 * cu_seqlens with a batch that is not 1, or lengths or scales of another number of sequences.
 * AOTRITON_INVALID_ARGUMENT: cu_seqlens without max_seqlen_q and max_seqlen_k, or these without cu_seqlens; a softcap
 * or dropout out of its range; scales of keys that are not of 8 bits. The message names the field. */
typedef struct aotriton_attn_features {
  aotriton_tensor4 bias;         /* [batch, heads_q, seqlen_q, seqlen_k], of q's type; the last dimension is contiguous,
                                    and a stride of 0 repeats the others */
  aotriton_tensor2 alibi_slopes; /* [batch, heads_q] float32; heads are contiguous, the batch's stride may be 0 */
  aotriton_tensor1 sinks; /* [heads_q] float32, contiguous: a score that takes part in the sum and has no value */
  /* [sequences + 1] int32, contiguous: where each of the packed sequences begins, and the last one ends */
  aotriton_tensor1 cu_seqlens_q, cu_seqlens_k;
  aotriton_tensor1 seqused_q, seqused_k; /* [sequences] int32, contiguous; each may be given alone */
  aotriton_tensor2 block_table; /* [sequences, pages_of_sequence] int32: the pages of each one's keys, in their order;
                                   of the last dimension contiguous */
  aotriton_tensor2 q_descale, k_descale, v_descale; /* [sequences, heads_k] float32, any strides */
  const void *dropout_seed, *dropout_offset;        /* one int64 of device memory each, 8-byte aligned; see
                                                       aotriton_write_int64 */
  int64_t max_seqlen_q, max_seqlen_k; /* with cu_seqlens: positive, below 2^31; max_seqlen_k also with block_table */
  int64_t window_left, window_right;  /* where windowed: keys that a query sees before and behind its own position; a
                                         negative number means all */
  float softcap;                      /* in the unit of scores; finite, not negative */
  float dropout;                      /* the probability that a score is dropped; at least 0, less than 1 */
  uint8_t windowed;
  uint8_t causal_variant; /* the own position of query i: key i, or the key that is as far from the last key as the
                             query is from the last query; of used lengths, where they are given */
  uint8_t reserved[6];
} aotriton_attn_features;

/* An sm_scale that is not given: 1 / sqrt(head_dim), of q and k. */
#define AOTRITON_DEFAULT_SCALE (-FLT_MAX)

/* out = softmax(sm_scale q k^T) v, and logsumexp = log(sum(exp(sm_scale q k^T))) where it is given; with features as
 * aotriton_attn_features says. logsumexp is in natural units.
 *
 * q: [batch, heads_q, seqlen_q, head_dim]; k: [batch, heads_k, seqlen_k, head_dim]; v: [batch, heads_k, seqlen_k,
 * head_dim_v], or both in pages, with features.block_table; out: [batch, heads_q, seqlen_q, head_dim_v]; heads_q a
 * multiple of heads_k. float16, bfloat16 or float32, one type for all, or k and v of 8 bits; head_dim and head_dim_v 1
 * to 512, fastest where they are equal, multiples of 8 and at most 256, or 576 and 512, see below; any strides with a
 * contiguous last dimension. logsumexp: [batch, heads_q, seqlen_q] float32, contiguous, 16-byte aligned. causal: a
 * query sees no key behind its own position, which is key i for query i unless features.causal_variant says otherwise.
 * A query that sees no key has an out of 0, a logsumexp of minus infinity (or its sink), and gradients of 0. sm_scale:
 * finite, not negative; not given, and 1 / sqrt(head_dim), where it is AOTRITON_DEFAULT_SCALE, or 0 and scale_given is
 * zero. Where that is not zero, 0 is 0, and all visible keys have the same weight. A result must share no memory with
 * another operand, nor the workspace with any. A size of 0 is no error: with no keys, out is 0 and logsumexp minus
 * infinity, or the sink.
 *
 * Latent caches (DeepSeek's decoding): head_dim is 576, head_dim_v 512, and v is the first 512 columns of k, with k's
 * data and strides, in rows or in pages; each launch of a prepared call, too, has them at one place. float16 or
 * bfloat16, aligned to 16 bytes, without bias, alibi_slopes, dropout and the hint batch_invariant; with a workspace.
 * The scale is the caller's: 1 / sqrt(576) is not what such models mean. AOTRITON_NOT_SUPPORTED: v elsewhere. */
typedef struct aotriton_attn_fwd_params {
  size_t size;
  aotriton_tensor4 q, k, v, out;
  aotriton_tensor3 logsumexp;
  float sm_scale;
  uint8_t causal;
  uint8_t scale_given; /* not zero: sm_scale is the scale, also where it is 0 */
  uint8_t reserved[2];
  void* workspace; /* device memory, 256-byte aligned, as large as aotriton_attn_fwd_workspace_size says; null: the
                      fastest way that needs none, which few queries on many keys take much longer with, and pages do
                      not have */
  size_t workspace_size;
  aotriton_attn_features features;
  const aotriton_hints* hints; /* null: none */
} aotriton_attn_fwd_params;

/* Gradients of attn_fwd. dq as q, dk as k, dv as v, dout as out; out and logsumexp as attn_fwd wrote them, and the same
 * features. deterministic: the same bits every time; without it, a backend may add to dq in an order that varies. With
 * a scale of 0, dq and dk are 0.
 *
 * dbias: the gradient of each score, before its scale: [batch, heads_q, seqlen_q, seqlen_k], of q's type. It has an
 * element for each score, also of a bias that strides of 0 repeat: the caller sums what repeats. All of it is written,
 * with 0 where a query does not see a key. dsinks: [heads_q] float32, contiguous, summed over the batch in an order
 * that does not vary. Both are optional; AOTRITON_NULL_POINTER: without bias, and without sinks.
 *
 * skip_gradients: what the caller does without. Kernels that compute nothing else are not launched, which the choice of
 * a backend counts on; dk and dv have one kernel. The tensor of a skipped gradient may be left zero: then its place is
 * in the workspace, whose size counts it (and the hint workspace_limit does not). Where it has data, that may be
 * overwritten, and a prepared call needs it. */
typedef struct aotriton_attn_bwd_params {
  size_t size;
  aotriton_tensor4 q, k, v, out, dout;
  aotriton_tensor3 logsumexp;
  aotriton_tensor4 dq, dk, dv;
  float sm_scale;
  uint8_t causal;
  uint8_t deterministic;
  uint8_t skip_gradients; /* AOTRITON_SKIP_ bits */
  uint8_t scale_given;    /* as of attn_fwd */
  void* workspace;        /* device memory, 256-byte aligned, as large as aotriton_attn_bwd_workspace_size says */
  size_t workspace_size;
  aotriton_attn_features features;
  aotriton_tensor4 dbias;
  aotriton_tensor1 dsinks;
  const aotriton_hints* hints; /* null: none */
} aotriton_attn_bwd_params;

AOTRITON_API aotriton_error aotriton_attn_fwd(const aotriton_attn_fwd_params* params, void* stream);
AOTRITON_API aotriton_error aotriton_attn_bwd(const aotriton_attn_bwd_params* params, void* stream);

/* Appends the keys and values of new tokens to the cache that attn_fwd then reads, and rotates keys and queries by
 * their positions (a rotary embedding), in one launch.
 *
 * Sequence z has seqused_k[z] keys afterwards, the same number that attn_fwd is given: token i of its n new ones is at
 * position p = seqused_k[z] - n + i. Row p of the sequence in k_cache and v_cache becomes the token's k and v; with
 * block_table it is row p % page_size of page block_table[z][p / page_size]. Nothing else of the cache is written.
 *
 * With rotary_cos and rotary_sin, pair j of a row of k, and of q, is rotated in float32:
 *
 *   a_j = a cos[p][j] - b sin[p][j]      b_j = b cos[p][j] + a sin[p][j]
 *
 * where a and b are the elements j and j + rotary_pairs of the row, or 2 j and 2 j + 1 with rotary_interleaved. The
 * elements from 2 rotary_pairs on, v, and without a rotation k are copied. q is rotated in place.
 *
 * A token is left out, and its q stays as it is, where p is negative, behind the cache's last row of the sequence, or
 * behind the last row of rotary_cos; where its entry of block_table is none of the pages; and where it is of no
 * sequence. So a sequence of a captured graph that has ended may have a seqused_k of 0. Lengths and tables are read on
 * the device when the kernel runs: the library cannot check their values. Two tokens of a call must not have one place.
 *
 * k: [batch, heads_k, seqlen_new, head_dim]; v: [batch, heads_k, seqlen_new, head_dim_v]; k_cache: [sequences, heads_k,
 * seqlen_k, head_dim], with block_table [pages, heads_k, page_size, head_dim]; v_cache as k_cache, with head_dim_v; q:
 * [batch, heads_q, seqlen_new, head_dim], of any number of heads. float16, bfloat16 or float32, one type for all; any
 * head dims; any strides with a contiguous last dimension. rotary_cos and rotary_sin: [positions, rotary_pairs]
 * float32, rows contiguous; 2 rotary_pairs at most head_dim. seqused_k: [sequences] int32, contiguous. block_table:
 * [sequences, pages_of_sequence] int32, rows contiguous; page_size may be any, of which attn_fwd takes multiples of 16.
 *
 * Each of the batch is a sequence. With cu_seqlens_k, [sequences + 1] int32, contiguous, the batch is 1, and sequence z
 * has the rows of k, v and q from cu_seqlens_k[z] to before cu_seqlens_k[z + 1], as many as its new tokens; it may have
 * none.
 *
 * Both caches may be of 8 bits instead: AOTRITON_FLOAT8_E4M3FN on sm_90, AOTRITON_FLOAT8_E4M3FNUZ on gfx942. What they
 * get is, after the rotation, divided by k_descale and v_descale of the sequence and head, 1 without these, and rounded
 * to the nearest number; what is beyond the largest one becomes that.
 *
 * AOTRITON_NULL_POINTER: one of rotary_cos and rotary_sin only, or q without them. AOTRITON_INVALID_ARGUMENT: scales of
 * caches that are not of 8 bits. AOTRITON_INVALID_SHAPE: lengths or scales of another number of sequences; more pairs
 * than head_dim has. A cache must share no memory with another operand, and q none with k and v; all may lie side by
 * side in one tensor. */
typedef struct aotriton_kv_append_params {
  size_t size;
  aotriton_tensor4 k, v, k_cache, v_cache;
  aotriton_tensor1 seqused_k;
  aotriton_tensor4 q; /* may be left out, as all that follow */
  aotriton_tensor2 rotary_cos, rotary_sin;
  aotriton_tensor1 cu_seqlens_k;
  aotriton_tensor2 block_table;
  uint8_t rotary_interleaved;
  uint8_t reserved[7];
  const aotriton_hints* hints;           /* null: none */
  aotriton_tensor2 k_descale, v_descale; /* [sequences, heads_k] float32, any strides */
} aotriton_kv_append_params;

AOTRITON_API aotriton_error aotriton_kv_append(const aotriton_kv_append_params* params, void* stream);

/* ---- matrix products --------------------------------------------------------------------------------------------- */

enum { AOTRITON_NO_ACTIVATION = 0, AOTRITON_RELU, AOTRITON_GELU, AOTRITON_SILU };

/* d = activation(alpha a b + bias).
 *
 * a: [batch, m, k]; b: [batch, k, n]; d: [batch, m, n]; each with rows or columns that are contiguous (any strides at
 * all are right, too, and slow). float16 or bfloat16, one type for all, products summed in float32. bias: [n], added to
 * every row of d. gelu is x/2 (1 + erf(x / sqrt 2)). alpha must not be 0. A size k of 0 gives activation(bias). */
typedef struct aotriton_gemm_params {
  size_t size;
  aotriton_tensor3 a, b, d;
  aotriton_tensor1 bias;
  float alpha;
  int32_t activation;
  void* workspace; /* device memory, 256-byte aligned, as large as aotriton_gemm_workspace_size says; null: the fastest
                      way that needs none */
  size_t workspace_size;
  const aotriton_hints* hints; /* null: none */
} aotriton_gemm_params;

AOTRITON_API aotriton_error aotriton_gemm(const aotriton_gemm_params* params, void* stream);

/* ---- before a call ----------------------------------------------------------------------------------------------- */

/* Bytes of workspace that the call needs on the stream's device; 0 for kv_append. Data pointers are looked at only
 * where they are given; where some are not, the size is enough wherever they will be. */
AOTRITON_API aotriton_error aotriton_attn_fwd_workspace_size(const aotriton_attn_fwd_params* params, void* stream,
                                                             size_t* bytes);
AOTRITON_API aotriton_error aotriton_attn_bwd_workspace_size(const aotriton_attn_bwd_params* params, void* stream,
                                                             size_t* bytes);
AOTRITON_API aotriton_error aotriton_kv_append_workspace_size(const aotriton_kv_append_params* params, void* stream,
                                                              size_t* bytes);
AOTRITON_API aotriton_error aotriton_gemm_workspace_size(const aotriton_gemm_params* params, void* stream,
                                                         size_t* bytes);

/* 1 where the call would run on the stream's device, else 0, and aotriton_last_error_message says why not. Data
 * pointers are looked at only where they are given; a workspace is not asked for. */
AOTRITON_API int aotriton_attn_fwd_supported(const aotriton_attn_fwd_params* params, void* stream);
AOTRITON_API int aotriton_attn_bwd_supported(const aotriton_attn_bwd_params* params, void* stream);
AOTRITON_API int aotriton_kv_append_supported(const aotriton_kv_append_params* params, void* stream);
AOTRITON_API int aotriton_gemm_supported(const aotriton_gemm_params* params, void* stream);

/* Loads what the call needs on the stream's device, ahead of stream capture and of latency-critical work. */
AOTRITON_API aotriton_error aotriton_attn_fwd_preload(const aotriton_attn_fwd_params* params, void* stream);
AOTRITON_API aotriton_error aotriton_attn_bwd_preload(const aotriton_attn_bwd_params* params, void* stream);
AOTRITON_API aotriton_error aotriton_kv_append_preload(const aotriton_kv_append_params* params, void* stream);
AOTRITON_API aotriton_error aotriton_gemm_preload(const aotriton_gemm_params* params, void* stream);

/* What becomes of each of the call's hints on the stream's device, as the call is. `outcomes` is an array of *count
 * elements, AOTRITON_MOST_OUTCOMES of which are enough; *count becomes their number. */
AOTRITON_API aotriton_error aotriton_attn_fwd_hint_outcomes(const aotriton_attn_fwd_params* params, void* stream,
                                                            aotriton_hint_outcome* outcomes, size_t* count);
AOTRITON_API aotriton_error aotriton_attn_bwd_hint_outcomes(const aotriton_attn_bwd_params* params, void* stream,
                                                            aotriton_hint_outcome* outcomes, size_t* count);
AOTRITON_API aotriton_error aotriton_kv_append_hint_outcomes(const aotriton_kv_append_params* params, void* stream,
                                                             aotriton_hint_outcome* outcomes, size_t* count);
AOTRITON_API aotriton_error aotriton_gemm_hint_outcomes(const aotriton_gemm_params* params, void* stream,
                                                        aotriton_hint_outcome* outcomes, size_t* count);

/* Loads every image of this build that fits the stream's device. Images stay loaded as long as their context lives. */
AOTRITON_API aotriton_error aotriton_preload(void* stream);

/* Writes so many numbers of the host to device memory, 8-byte aligned, in the order of the stream: such as the seed and
 * the offset of dropout, which calls read there. The values are taken at once, and a captured graph writes the same
 * ones each time. Returns without waiting. */
AOTRITON_API aotriton_error aotriton_write_int64(int64_t* memory, const int64_t* values, size_t count, void* stream);

/* ---- prepared calls ---------------------------------------------------------------------------------------------- */

/* A call that was checked, dispatched and loaded for the device of a stream, to be launched again and again with other
 * pointers. One thread at a time may use it. It keeps nothing of the parameters that it was prepared from, and lives
 * until aotriton_destroy, which does not wait for the GPU: what was launched runs to its end. */
typedef struct aotriton_prepared aotriton_prepared;

AOTRITON_API aotriton_error aotriton_attn_fwd_prepare(const aotriton_attn_fwd_params* params, void* stream,
                                                      aotriton_prepared** prepared);
AOTRITON_API aotriton_error aotriton_attn_bwd_prepare(const aotriton_attn_bwd_params* params, void* stream,
                                                      aotriton_prepared** prepared);
AOTRITON_API aotriton_error aotriton_kv_append_prepare(const aotriton_kv_append_params* params, void* stream,
                                                       aotriton_prepared** prepared);
AOTRITON_API aotriton_error aotriton_gemm_prepare(const aotriton_gemm_params* params, void* stream,
                                                  aotriton_prepared** prepared);

/* Launches on a stream of the device that the call was prepared for. `pointers` replaces the tensors' data, in the
 * order of the parameter struct, and of the workspace, which comes last:
 *
 *   attn_fwd: q, k, v, out, logsumexp, workspace
 *
 *   attn_bwd: q, k, v, out, dout, logsumexp, dq, dk, dv, workspace
 *
 *   kv_append: k, v, k_cache, v_cache, seqused_k, q, and null in place of a workspace
 *
 *   gemm: a, b, d, bias, workspace
 *
 * A call with features takes those of aotriton_attn_features that kernels have, before the workspace: bias,
 * alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, dropout_seed, dropout_offset; attn_bwd takes
 * dbias and dsinks behind them. kv_append with any of them takes rotary_cos, rotary_sin, cu_seqlens_k and block_table.
 *
 * Each must be as aligned as the one that the call was prepared with, up to 16 bytes; what was null stays null. */
AOTRITON_API aotriton_error aotriton_launch(aotriton_prepared* prepared, void* const* pointers, size_t count,
                                            void* stream);

/* Null is nothing to destroy. */
AOTRITON_API void aotriton_destroy(aotriton_prepared* prepared);

/* ---- which kernel a call gets, and why --------------------------------------------------------------------------- */

enum { AOTRITON_MEASURED = 0, AOTRITON_BORROWED, AOTRITON_PREDICTED, AOTRITON_IMPORTED };

typedef struct aotriton_tuning_key {
  const char* name;
  int64_t value;          /* of this call */
  int32_t representative; /* of the bin that it falls in */
} aotriton_tuning_key;

typedef struct aotriton_runner_up {
  const char* config; /* tunables and compile options */
  float median_us;
} aotriton_runner_up;

typedef struct aotriton_backend_time {
  const char* name;
  float median_us; /* measured time of all its kernels in the bin's representative problem; 0 where there is none */
} aotriton_backend_time;

/* A choice that the call's value is rounded up for: images of `padded` serve it, and compute as much. */
typedef struct aotriton_padding {
  const char* choice;
  int64_t value; /* of this call */
  int64_t padded;
} aotriton_padding;

/* What a backend is to this very call. Where it cannot serve it, because of a choice that it has no image for, `choice`
 * and `choice_value` name that; else they are empty. */
typedef struct aotriton_backend_state {
  const char* refusal; /* why it cannot serve the call; empty where it can */
  const char* kernel;  /* which one of it cannot; empty where it can */
  const char* choice;
  const char* choice_value;
  float total_us; /* the medians of all its kernels added up, each of its own bin's representative problem; 0 where one
                     has none, or where it cannot serve the call */
  int32_t needs_workspace;
} aotriton_backend_state;

/* The dispatch of one kernel. Pointers are to constant data that lives as long as the library is loaded. */
typedef struct aotriton_kernel_choice {
  size_t size;
  const char* kernel;
  const char* arch;
  const char* functional;
  int32_t godel_number;
  int32_t key_count;
  aotriton_tuning_key keys[4];
  const char* image;
  const char* tunables;
  const char* compile_options;
  int32_t provenance; /* AOTRITON_MEASURED and so on: only that was timed for this functional and bin, as it is */
  float median_us;    /* measured median of the bin's representative problem; 0 where there is none */
  const char* source; /* what was borrowed from, predicted by or imported from; empty when measured here */
  const aotriton_runner_up* runners_up;
  int32_t runner_up_count;
  int32_t backend_count;
  const char* backend;                /* of the operator, that the kernel belongs to */
  aotriton_backend_time backends[12]; /* that the operator has; the times are those that were compared: in this cell, or
                                        where the first one has no total_us, in the one that its winners come from */
  aotriton_backend_state backend_states[12]; /* of the same backends */
  aotriton_padding paddings[4];
  int32_t padding_count;
  int32_t exact_product; /* 1 where the GPU is `product`, 0 where it is one that is like it */
  const char* product;   /* whose tables these are, such as "NVIDIA H200" */
  const char* shape;     /* that was measured, "batch 4 heads 16 ..."; empty where nothing was */
  const char* measured;  /* on which day, "2026-11-21"; empty where that is not known */
  float low_us, high_us; /* the median lies between them; 0 where that is not known */
  float predicted_us;    /* of this very call on this image; 0 where there is no cost model */
  float
      predicted_error; /* of that: the median relative one, where the model was fitted; 0 where nothing was measured */
  const char* model;   /* whose model it is, if not this functional's on this product: "product=NVIDIA_H200 T=bf16" */
  const char* bin_image; /* what won the bin: provenance and all that was measured are of it, where it is `image` */
  const char* bin_tunables;
  const char* bin_compile_options;
  float bin_median_us;             /* its median there; 0 where there is none */
  float predicted_total_us;        /* of all kernels of the backend */
  float backends_predicted_us[12]; /* of all kernels of each backend; 0 where it is not known, or the backend refuses */
  double flops;                    /* of the call; 0 where the operator does not count them */
  aotriton_hint_outcome hints[AOTRITON_MOST_OUTCOMES]; /* what became of each of the call's hints */
  int32_t hint_count;
  int64_t pieces; /* chunks of its batch in which the call is run, one after the other, so that its workspace keeps a
                     limit; usually 1. All other fields are of the first chunk */
  /* The image's certificate: what checks of its results against a high-precision reference found. On which product,
   * this one where it was checked on it; empty where the image was compiled only, and all of these are 0. */
  const char* certificate_product;
  int64_t certificate_checks;
  int32_t certificate_problems; /* that were checked, some more than once */
  int32_t certificate_day;      /* of the last check: 20261124 */
  float certificate_error;      /* the largest one, relative to the result, in the Frobenius norm */
  float certificate_allowed; /* there: twice that of an ordinary implementation of the same dtype on the same data, and
                                a little for results that are kept in fp32 */
} aotriton_kernel_choice;

/* What the call would run on `device`, a product such as "NVIDIA H200", or an arch such as "sm_90", in launch order;
 * needs no GPU. With `multiprocessors` that is 0 an arch stands for its usual product, else for the one that is most
 * like a GPU with so many. Null data pointers count as aligned. `kernels` is an array of *count elements whose first
 * one's size is set; *count becomes their number. */
AOTRITON_API aotriton_error aotriton_explain_attn_fwd(const aotriton_attn_fwd_params* params, const char* device,
                                                      int32_t multiprocessors, aotriton_kernel_choice* kernels,
                                                      size_t* count);
AOTRITON_API aotriton_error aotriton_explain_attn_bwd(const aotriton_attn_bwd_params* params, const char* device,
                                                      int32_t multiprocessors, aotriton_kernel_choice* kernels,
                                                      size_t* count);
AOTRITON_API aotriton_error aotriton_explain_kv_append(const aotriton_kv_append_params* params, const char* device,
                                                       int32_t multiprocessors, aotriton_kernel_choice* kernels,
                                                       size_t* count);
AOTRITON_API aotriton_error aotriton_explain_gemm(const aotriton_gemm_params* params, const char* device,
                                                  int32_t multiprocessors, aotriton_kernel_choice* kernels,
                                                  size_t* count);

#ifdef __cplusplus
}
#endif

#endif /* AOTRITON_C_H */
