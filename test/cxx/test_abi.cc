// The C interface between versions: parameter structs and explanations that are smaller or larger than the library's
// own.
#include <aotriton/c.h>
#include <aotriton/runtime.h>

#include <cmath>
#include <cstddef>
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
  } cases[] = {{"backend=portable", offsetof(aotriton_hints, backend)},
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
