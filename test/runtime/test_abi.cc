// The C interface between versions: parameter structs and explanations that are smaller or larger than the library's
// own.
#include <aotriton/c.h>
#include <aotriton/gemm.h>
#include <aotriton/runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>

#include "calls.h"

using namespace aotriton::v2;

namespace {

// The first `size` bytes of the parameters, and zeros behind where it is more, in memory of that size.
template <class Params>
class Sized {
 public:
  Sized(const Params& params, size_t size) : bytes_(new unsigned char[size]()) {
    memcpy(bytes_.get(), &params, std::min(size, sizeof params));
    memcpy(bytes_.get(), &size, sizeof size);
  }
  const Params* params() const { return reinterpret_cast<const Params*>(bytes_.get()); }
  unsigned char& operator[](size_t i) { return bytes_[i]; }

 private:
  std::unique_ptr<unsigned char[]> bytes_;
};

using Fwd = aotriton_attn_fwd_params;
using Bwd = aotriton_attn_bwd_params;

struct Part {
  size_t begin, bytes;
};

#define FIELD(STRUCT, NAME) {offsetof(STRUCT, NAME), sizeof(STRUCT::NAME)}

// Whether a struct of this size has each of its fields as a whole or not at all.
bool is_whole(const std::vector<Part>& fields, size_t size) {
  return std::none_of(fields.begin(), fields.end(),
                      [&](const Part& one) { return one.begin < size && size < one.begin + one.bytes; });
}

// Asks about every size from that of `size` on, up to one more than the struct's own: `taken` says what the library
// answers, and `refusal` is a part of its message.
void check_sizes(const std::vector<Part>& fields, size_t least, size_t own, const char* refusal,
                 const std::function<aotriton_error(size_t)>& taken) {
  size_t whole = 0;
  for (size_t size = least; size <= own + 1; ++size) {
    const aotriton_error error = taken(size);
    const bool is = is_whole(fields, size);
    whole += is;
    if ((error != AOTRITON_INVALID_ARGUMENT) != is)
      check::failed(__FILE__, __LINE__,
                    std::string(refusal) + " " + std::to_string(size) + " is " + aotriton_error_name(error) +
                        (is ? "" : ", and cuts a field"));
    if (!is) CHECK_CONTAINS(aotriton_last_error_message(), refusal + (" is " + std::to_string(size)));
  }
  CHECK(whole > 0 && whole < own / 2);
}

size_t explained(const Sized<Fwd>& sized, aotriton_kernel_choice* choice) {
  size_t count = 1;
  choice->size = sizeof *choice;
  CHECK_EQ(aotriton_explain_attn_fwd(sized.params(), "sm_90", 0, choice, &count), AOTRITON_SUCCESS);
  return count;
}

}  // namespace

TEST("parameters of an older library, which end earlier, count as if zeros followed") {
  Recording& recording = start("cuda");
  for (const size_t size : {offsetof(Fwd, features), offsetof(Fwd, workspace), offsetof(Fwd, workspace) - 3}) {
    Fwd p = fwd_call();
    p.features.softcap = 1;  // beyond what the caller has
    p.hints = reinterpret_cast<const aotriton_hints*>(uintptr_t{8});
    const Sized<Fwd> older(p, size);
    CHECK_EQ(aotriton_attn_fwd(older.params(), nullptr), AOTRITON_SUCCESS);
    aotriton_kernel_choice choice;
    CHECK_EQ(explained(older, &choice), 1u);
  }
  CHECK_EQ(recording.launches.size(), 3u);
  Fwd unhinted = fwd_call();
  unhinted.hints = reinterpret_cast<const aotriton_hints*>(uintptr_t{8});
  CHECK_EQ(aotriton_attn_fwd(Sized<Fwd>(unhinted, offsetof(Fwd, hints)).params(), nullptr), AOTRITON_SUCCESS);
  const Sized<Bwd> older(bwd_call(), offsetof(Bwd, features));
  CHECK_EQ(aotriton_attn_bwd(older.params(), nullptr), AOTRITON_SUCCESS);
}

TEST("parameters that end before what is required are refused for what they lack") {
  start("cuda");
  const Sized<Fwd> older(fwd_call(), offsetof(Fwd, out));
  CHECK_EQ(aotriton_attn_fwd(older.params(), nullptr), AOTRITON_INVALID_SHAPE);
  CHECK_CONTAINS(aotriton_last_error_message(), "attn_fwd: out has batch 0, q has 2");
}

TEST("parameters of a newer library are taken where what it added is zero, and else refused") {
  Recording& recording = start("cuda");
  Sized<Fwd> newer(fwd_call(), sizeof(Fwd) + 40);
  CHECK_EQ(aotriton_attn_fwd(newer.params(), nullptr), AOTRITON_SUCCESS);
  newer[sizeof(Fwd) + 39] = 1;
  CHECK_EQ(aotriton_attn_fwd(newer.params(), nullptr), AOTRITON_NOT_SUPPORTED);
  const std::string where = std::to_string(sizeof(Fwd) + 39);
  CHECK_EQ(aotriton_last_error_message(),
           "attn_fwd: params has a field, at byte " + where + ", that this library does not know");
  CHECK_EQ(recording.launches.size(), 1u);
}

TEST("a size that no struct has, and no parameters at all, are refused by every function") {
  start("cuda");
  size_t bytes = 0, count = 1;
  aotriton_prepared* prepared = nullptr;
  aotriton_kernel_choice choice = {};
  choice.size = sizeof choice;
  for (const size_t size : {size_t{0}, size_t{7}, size_t{65537}, SIZE_MAX}) {
    attn_bwd_params p = bwd_call();
    p.size = size;
    CHECK_EQ(aotriton_attn_bwd(&p, nullptr), AOTRITON_INVALID_ARGUMENT);
    CHECK_CONTAINS(aotriton_last_error_message(), "attn_bwd: params.size is " + std::to_string(size));
    CHECK_EQ(aotriton_attn_bwd_workspace_size(&p, nullptr, &bytes), AOTRITON_INVALID_ARGUMENT);
    CHECK_EQ(aotriton_attn_bwd_supported(&p, nullptr), 0);
    CHECK_EQ(aotriton_attn_bwd_preload(&p, nullptr), AOTRITON_INVALID_ARGUMENT);
    CHECK_EQ(aotriton_attn_bwd_prepare(&p, nullptr, &prepared), AOTRITON_INVALID_ARGUMENT);
    CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, &choice, &count), AOTRITON_INVALID_ARGUMENT);
  }
  CHECK_EQ(aotriton_attn_fwd(nullptr, nullptr), AOTRITON_NULL_POINTER);
  CHECK_EQ(aotriton_last_error_message(), std::string("attn_fwd: params is null"));
  CHECK_EQ(aotriton_attn_fwd_workspace_size(nullptr, nullptr, &bytes), AOTRITON_NULL_POINTER);
  CHECK_EQ(aotriton_attn_fwd_supported(nullptr, nullptr), 0);
  CHECK_EQ(aotriton_attn_fwd_preload(nullptr, nullptr), AOTRITON_NULL_POINTER);
  CHECK_EQ(aotriton_attn_fwd_prepare(nullptr, nullptr, &prepared), AOTRITON_NULL_POINTER);
  CHECK_EQ(aotriton_explain_attn_fwd(nullptr, "sm_90", 0, &choice, &count), AOTRITON_NULL_POINTER);
  CHECK(!prepared);
}

TEST("a size that cuts a field of the parameters is refused, and one that ends at any field is not") {
  start("cuda");
  const std::vector<Part> forward = {
      FIELD(Fwd, size),        FIELD(Fwd, q),         FIELD(Fwd, k),         FIELD(Fwd, v),
      FIELD(Fwd, out),         FIELD(Fwd, logsumexp), FIELD(Fwd, sm_scale),  FIELD(Fwd, causal),
      FIELD(Fwd, scale_given), FIELD(Fwd, reserved),  FIELD(Fwd, workspace), FIELD(Fwd, workspace_size),
      FIELD(Fwd, features),    FIELD(Fwd, hints),
  };
  check_sizes(forward, sizeof(size_t), sizeof(Fwd), "params.size",
              [](size_t size) { return aotriton_attn_fwd(Sized<Fwd>(fwd_call(), size).params(), nullptr); });
  const std::vector<Part> backward = {
      FIELD(Bwd, size),
      FIELD(Bwd, q),
      FIELD(Bwd, k),
      FIELD(Bwd, v),
      FIELD(Bwd, out),
      FIELD(Bwd, dout),
      FIELD(Bwd, logsumexp),
      FIELD(Bwd, dq),
      FIELD(Bwd, dk),
      FIELD(Bwd, dv),
      FIELD(Bwd, sm_scale),
      FIELD(Bwd, causal),
      FIELD(Bwd, deterministic),
      FIELD(Bwd, skip_gradients),
      FIELD(Bwd, scale_given),
      FIELD(Bwd, workspace),
      FIELD(Bwd, workspace_size),
      FIELD(Bwd, features),
      FIELD(Bwd, dbias),
      FIELD(Bwd, dsinks),
      FIELD(Bwd, hints),
  };
  check_sizes(backward, sizeof(size_t), sizeof(Bwd), "params.size",
              [](size_t size) { return aotriton_attn_bwd(Sized<Bwd>(bwd_call(), size).params(), nullptr); });
  using Gemm = aotriton_gemm_params;
  const std::vector<Part> product = {
      FIELD(Gemm, size),           FIELD(Gemm, a),     FIELD(Gemm, b),          FIELD(Gemm, d),
      FIELD(Gemm, bias),           FIELD(Gemm, alpha), FIELD(Gemm, activation), FIELD(Gemm, workspace),
      FIELD(Gemm, workspace_size), FIELD(Gemm, hints),
  };
  check_sizes(product, offsetof(Gemm, alpha) + sizeof(float), sizeof(Gemm), "params.size", [](size_t size) {
    gemm_params p;
    for (aotriton_tensor3* one : {&p.a, &p.b, &p.d})
      *one = Tensor<3>(nullptr, DType::bfloat16, {1, 64, 64}, {4096, 64, 1});
    return aotriton_gemm(Sized<Gemm>(p, size).params(), nullptr);
  });
}

TEST("a size that cuts a field of hints or of an explanation is refused, and one that ends at any field is not") {
  start("cuda");
  using Hints = aotriton_hints;
  const std::vector<Part> of_hints = {
      FIELD(Hints, size),
      FIELD(Hints, schedule),
      FIELD(Hints, objective),
      FIELD(Hints, workspace_limit),
      FIELD(Hints, workspace_limited),
      FIELD(Hints, deterministic),
      FIELD(Hints, batch_invariant),
      FIELD(Hints, reserved),
      FIELD(Hints, backend),
      FIELD(Hints, image),
      FIELD(Hints, exclude),
      FIELD(Hints, unknown),
  };
  const auto hints_of = [](size_t size) { return Sized<Hints>(hints(), size); };
  check_sizes(of_hints, sizeof(size_t), sizeof(Hints), "hints.size", [&](size_t size) {
    const Sized<Hints> own = hints_of(size);
    attn_fwd_params p = fwd_call();
    p.hints = own.params();
    return static_cast<aotriton_error>(attn_fwd(p, {}));
  });
  check_sizes(of_hints, sizeof(size_t), sizeof(Hints), "hints.size", [&](size_t size) {
    const Sized<Hints> own = hints_of(size);
    return aotriton_parse_hints("", const_cast<Hints*>(own.params()));
  });
  using Choice = aotriton_kernel_choice;
  const std::vector<Part> of_choice = {
      FIELD(Choice, kernel),
      FIELD(Choice, arch),
      FIELD(Choice, functional),
      FIELD(Choice, godel_number),
      FIELD(Choice, key_count),
      FIELD(Choice, keys),
      FIELD(Choice, image),
      FIELD(Choice, tunables),
      FIELD(Choice, compile_options),
      FIELD(Choice, provenance),
      FIELD(Choice, median_us),
      FIELD(Choice, source),
      FIELD(Choice, runners_up),
      FIELD(Choice, runner_up_count),
      FIELD(Choice, backend_count),
      FIELD(Choice, backend),
      FIELD(Choice, backends),
      FIELD(Choice, backend_states),
      FIELD(Choice, paddings),
      FIELD(Choice, padding_count),
      FIELD(Choice, exact_product),
      FIELD(Choice, product),
      FIELD(Choice, shape),
      FIELD(Choice, measured),
      FIELD(Choice, low_us),
      FIELD(Choice, high_us),
      FIELD(Choice, predicted_us),
      FIELD(Choice, predicted_error),
      FIELD(Choice, model),
      FIELD(Choice, bin_image),
      FIELD(Choice, bin_tunables),
      FIELD(Choice, bin_compile_options),
      FIELD(Choice, bin_median_us),
      FIELD(Choice, predicted_total_us),
      FIELD(Choice, backends_predicted_us),
      FIELD(Choice, flops),
      FIELD(Choice, hints),
      FIELD(Choice, hint_count),
      FIELD(Choice, pieces),
      FIELD(Choice, certificate_product),
      FIELD(Choice, certificate_checks),
      FIELD(Choice, certificate_problems),
      FIELD(Choice, certificate_day),
      FIELD(Choice, certificate_error),
      FIELD(Choice, certificate_allowed),
  };
  const Fwd p = fwd_call();
  check_sizes(of_choice, offsetof(Choice, arch), sizeof(Choice), "first element's size", [&](size_t size) {
    const std::unique_ptr<unsigned char[]> bytes(new unsigned char[size]);
    memcpy(bytes.get(), &size, sizeof size);
    size_t count = 1;
    return aotriton_explain_attn_fwd(&p, "sm_90", 0, reinterpret_cast<Choice*>(bytes.get()), &count);
  });
}

TEST("a reserved byte that an older library does not know is refused where it is not zero") {
  start("cuda");
  attn_fwd_params forward = fwd_call();
  forward.reserved[1] = 1;
  CHECK_EQ(attn_fwd(forward, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: a reserved field is not zero");
  attn_bwd_params backward = bwd_call();
  backward.features.reserved[5] = 1;
  CHECK_EQ(attn_bwd(backward, {}), Error::not_supported);
  CHECK_CONTAINS(last_error_message(), "attn_bwd: a reserved field of features is not zero");
}

TEST("explanations are laid out in the caller's size of element, smaller or larger, and no byte outside is touched") {
  const attn_bwd_params p = bwd_call();
  aotriton_kernel_choice own[3];
  own[0].size = sizeof own[0];
  size_t count = 3;
  CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, own, &count), AOTRITON_SUCCESS);
  for (const size_t size : {offsetof(aotriton_kernel_choice, backend), offsetof(aotriton_kernel_choice, backend_states),
                            sizeof own[0], sizeof own[0] + 24}) {
    const std::unique_ptr<unsigned char[]> bytes(new unsigned char[3 * size]);
    memset(bytes.get(), 0xaa, 3 * size);
    memcpy(bytes.get(), &size, sizeof size);
    count = 3;
    CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, reinterpret_cast<aotriton_kernel_choice*>(bytes.get()), &count),
             AOTRITON_SUCCESS);
    CHECK_EQ(count, 3u);
    for (size_t i = 0; i < 3; ++i) {
      const unsigned char* const element = bytes.get() + i * size;
      aotriton_kernel_choice wanted = own[i];
      wanted.size = size;
      CHECK(!memcmp(element, &wanted, std::min(size, sizeof wanted)));
      for (size_t byte = sizeof wanted; byte < size; ++byte) CHECK_EQ(element[byte], 0);
    }
  }
}

TEST("an array of too few elements, or of elements that are none, is refused") {
  const attn_bwd_params p = bwd_call();
  aotriton_kernel_choice choices[2];
  for (const size_t room : {0, 1, 2}) {
    choices[0].size = sizeof choices[0];
    size_t count = room;
    CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, choices, &count), AOTRITON_INVALID_ARGUMENT);
    CHECK_EQ(aotriton_last_error_message(), "explain: room for " + std::to_string(room) + " kernels, 3 are needed");
    CHECK_EQ(count, 0u);
  }
  for (const size_t size : {size_t{0}, size_t{8}, size_t{65537}}) {
    choices[0].size = size;
    size_t count = 2;
    CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, choices, &count), AOTRITON_INVALID_ARGUMENT);
    CHECK_CONTAINS(aotriton_last_error_message(), "explain: the first element's size is " + std::to_string(size));
  }
  size_t count = 2;
  CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, nullptr, &count), AOTRITON_NULL_POINTER);
  CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, choices, nullptr), AOTRITON_NULL_POINTER);
}

TEST("the C++ names are the C ones: errors, versions and default parameters") {
  CHECK_EQ(error_name(Error::out_of_memory), std::string(aotriton_error_name(AOTRITON_OUT_OF_MEMORY)));
  CHECK_EQ(version(), std::string(aotriton_version()));
  CHECK_EQ(attn_fwd_params().size, sizeof(Fwd));
  CHECK_EQ(attn_bwd_params().size, sizeof(Bwd));
  const Tensor<3> none;
  CHECK(!none.data && none.dtype == AOTRITON_NO_DTYPE && none.sizes[2] == 0);
}

TEST("a size that ends inside of a field is refused, and one that ends behind a field is an older version's") {
  start("cuda");
  attn_bwd_params p = bwd_call();
  for (const size_t size : {offsetof(aotriton_attn_bwd_params, q) + 8, offsetof(aotriton_attn_bwd_params, sm_scale) + 2,
                            offsetof(aotriton_attn_bwd_params, features) + 8, sizeof(aotriton_attn_bwd_params) - 1}) {
    p.size = size;
    CHECK_EQ(attn_bwd(p, {}), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), "attn_bwd: params.size is " + std::to_string(size));
    CHECK(!supported(p, {}));
  }
  p.size = offsetof(aotriton_attn_bwd_params, features);
  CHECK_EQ(attn_bwd(p, {}), Error::success);
  p.size = sizeof p;
  aotriton_hints wishes = {};
  p.hints = &wishes;
  for (const size_t size : {offsetof(aotriton_hints, workspace_limit) + 4, offsetof(aotriton_hints, image) + 5}) {
    wishes.size = size;
    CHECK_EQ(attn_bwd(p, {}), Error::invalid_argument);
    CHECK_CONTAINS(last_error_message(), "hints.size is " + std::to_string(size));
  }
  p.hints = nullptr;
  aotriton_kernel_choice choices[3] = {};
  choices[0].size = offsetof(aotriton_kernel_choice, backends) + 20;
  size_t count = 3;
  CHECK_EQ(aotriton_explain_attn_bwd(&p, "sm_90", 0, choices, &count), AOTRITON_INVALID_ARGUMENT);
}

TEST("what a newer caller's explanation has more is zeroed") {
  const attn_fwd_params p = fwd_call();
  struct {
    aotriton_kernel_choice known;
    uint64_t newer[2];
  } choice;
  choice.known.size = sizeof choice;
  choice.newer[0] = choice.newer[1] = 77;
  size_t count = 1;
  CHECK_EQ(aotriton_explain_attn_fwd(&p, "sm_90", 0, &choice.known, &count), AOTRITON_SUCCESS);
  CHECK_EQ(choice.newer[0], 0u);
  CHECK_EQ(choice.newer[1], 0u);
}

TEST("hints: reserved bytes are refused, and a hint that must be followed is not dropped for want of a field") {
  start("cuda");
  attn_fwd_params p = fwd_call();
  hints wishes;
  wishes.reserved[2] = 1;
  p.hints = &wishes;
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_EQ(last_error_message(), std::string("attn_fwd: a reserved field of hints is not zero"));
  CHECK_EQ(aotriton_parse_hints("latency", &wishes), AOTRITON_NOT_SUPPORTED);
  const struct {
    const char* text;
    size_t size;
  } cases[] = {{"batch_invariant", offsetof(aotriton_hints, batch_invariant)},
               {"backend=portable", offsetof(aotriton_hints, backend)},
               {"image=some", offsetof(aotriton_hints, image)},
               {"exclude=some", offsetof(aotriton_hints, exclude)}};
  for (const auto& [text, size] : cases) {
    aotriton_hints older = {};
    older.size = size;
    CHECK_EQ(aotriton_parse_hints("deterministic", &older), AOTRITON_SUCCESS);
    CHECK_EQ(older.deterministic, 1);
    CHECK_EQ(aotriton_parse_hints(text, &older), AOTRITON_NOT_SUPPORTED);
    CHECK_CONTAINS(last_error_message(), "has no place in a struct of " + std::to_string(size) + " bytes");
  }
}

TEST("a scale of zero is a scale where it is given, and else 1 / sqrt(head_dim)") {
  const auto scale_of = [](float scale, uint8_t given) {
    Recording& recording = start("cuda");
    attn_fwd_params p = fwd_call();
    p.sm_scale = scale;
    p.scale_given = given;
    CHECK_EQ(attn_fwd(p, {}), Error::success);
    attn_bwd_params b = bwd_call();
    b.sm_scale = scale;
    b.scale_given = given;
    CHECK_EQ(attn_bwd(b, {}), Error::success);
    float found = -1;
    for (const RecordedLaunch& launch : recording.launches)
      for (size_t i = 0; i < launch.arguments.size(); ++i)
        if (launch.arguments[i].size() == sizeof(float)) {
          const float one = launch.argument<float>(i);
          if (one == 0.125f || one == 0.5f || one == 0) found = one;
        }
    return found;
  };
  CHECK_EQ(scale_of(0, 0), 0.125f);  // head dim 64
  CHECK_EQ(scale_of(0.5f, 0), 0.5f);
  CHECK_EQ(scale_of(0.5f, 1), 0.5f);
  CHECK_EQ(scale_of(0, 1), 0.0f);
  CHECK_EQ(scale_of(AOTRITON_DEFAULT_SCALE, 0), 0.125f);
  CHECK_EQ(scale_of(AOTRITON_DEFAULT_SCALE, 1), 0.125f);
  attn_fwd_params p = fwd_call();
  for (const uint8_t given : {0, 1}) {
    p.scale_given = given;
    p.sm_scale = NAN;
    CHECK_EQ(attn_fwd(p, {}), Error::invalid_argument);
    p.sm_scale = -1;
    CHECK_EQ(attn_fwd(p, {}), Error::invalid_argument);
  }
}
