// AOTRITON_EXCLUDE: what a process leaves out, whoever asks, and what is told of it.
#include <cstdlib>
#include <thread>

#include "calls.h"
#include "dispatch/exclusion.h"
#include "scale.h"

using namespace aotriton::v2;

namespace {

// For as long as it lives the process is one that was started with this value. What was remembered of other calls has
// other contexts.
class Excluding {
 public:
  explicit Excluding(const char* names) {
    setenv("AOTRITON_EXCLUDE", names, 1);
    excluded_names = nullptr;
  }
  ~Excluding() {
    static auto* const read = new std::vector<const char*>;  // as the process keeps it
    read->push_back(excluded_names);
    unsetenv("AOTRITON_EXCLUDE");
    excluded_names = nullptr;
  }
};

// In the bin of the hopper backend; small ones are the portable one's.
constexpr Sizes kHopper = {.head_dim = 256};

std::string run_forward(const hints* wished = nullptr) {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call(kHopper);
  p.hints = wished;
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  return recording.launches.empty() ? "" : recording.launches[0].entry;
}

Explanation explain_forward() {
  Explanation made = {};
  CHECK_EQ(explain(fwd_call(kHopper), "sm_90", 0, &made), Error::success);
  return made;
}

}  // namespace

TEST("a process does not use the backends, kernels and images that it leaves out, and nothing is told where none are") {
  CHECK_EQ(captured([] { CHECK_EQ(run_forward(), "attn_fwd_hopper"); }), "");
  const std::string image = explain_forward().kernels[0].image;
  for (const std::string& name :
       {std::string("hopper"), std::string("attn_fwd_hopper"), " ,x, attn_fwd_hopper ," + image}) {
    const Excluding own(name.c_str());
    const std::string told = captured([] { CHECK_EQ(run_forward(), "attn_fwd"); });
    CHECK_CONTAINS(told, "aotriton: AOTRITON_EXCLUDE leaves out ");
  }
  const Excluding own(image.c_str());
  captured([&] {
    run_forward();
    CHECK(explain_forward().kernels[0].image != image);
  });
}

TEST("only whole names count, and an empty value leaves out nothing") {
  for (const char* names : {"", " ", "hoppe,opper,attn_fwd_hoppe"}) {
    const Excluding own(names);
    captured([] { CHECK_EQ(run_forward(), "attn_fwd_hopper"); });
  }
  const Excluding own(" ");
  CHECK_EQ(captured([] { run_forward(); }), "");
}

TEST("what is left out, and what no operator has, is told once, whichever thread asks first") {
  const Excluding own("hopper,hoper, split");
  const std::string told = captured([] {
    std::thread threads[4];
    for (std::thread& thread : threads)
      thread = std::thread([] {
        for (int i = 0; i < 100; ++i) CHECK_EQ(std::string(exclusion()), "hopper,hoper,split");
      });
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < 3; ++i) CHECK_EQ(run_forward(), "attn_fwd");
  });
  CHECK_EQ(told,
           "aotriton: AOTRITON_EXCLUDE leaves out hopper,hoper,split\n"
           "aotriton: AOTRITON_EXCLUDE: this build has no backend, kernel or image of the name hoper\n");
}

TEST("it is read once: a later change of the environment counts for the next process") {
  const Excluding own("hopper");
  captured([] { run_forward(); });
  setenv("AOTRITON_EXCLUDE", "attn_fwd", 1);
  CHECK_EQ(run_forward(), "attn_fwd");
}

TEST("it adds to what hints exclude, and an image that both hints and process name is refused") {
  const Excluding own("hopper");
  captured([] { run_forward(); });
  hints wished;
  CHECK_EQ(wished.parse("exclude=attn_fwd"), Error::success);
  start("cuda");
  attn_fwd_params p = fwd_call(kHopper);
  p.hints = &wished;
  CHECK_EQ(attn_fwd(p, {}), Error::not_supported);
  CHECK_CONTAINS(std::string(last_error_message()),
                 "attn_fwd: its hints and AOTRITON_EXCLUDE=hopper leave nothing that serves this call; portable: a "
                 "kernel of it is excluded; hopper: it is excluded");
  hints other;
  CHECK_EQ(other.parse("deterministic"), Error::success);
  CHECK_EQ(run_forward(&other), "attn_fwd");
}

TEST("a call that is left nothing is refused by every way to ask, and the message names the variable") {
  const Excluding own("attn_fwd,attn_fwd_hopper");
  Recording& recording = start("cuda");
  const attn_fwd_params p = fwd_call(kHopper);
  captured([&] { CHECK_EQ(attn_fwd(p, {}), Error::not_supported); });
  CHECK_CONTAINS(std::string(last_error_message()),
                 "attn_fwd: AOTRITON_EXCLUDE=attn_fwd,attn_fwd_hopper leaves nothing that serves this call; portable: "
                 "a kernel of it is excluded; hopper: a kernel of it is excluded");
  CHECK(recording.launches.empty());
  CHECK(!supported(p, {}));
  size_t bytes;
  CHECK_EQ(attn_fwd_workspace_size(p, {}, &bytes), Error::not_supported);
  CHECK_EQ(preload(p, {}), Error::not_supported);
  PreparedCall prepared;
  CHECK_EQ(prepare(p, {}, &prepared), Error::not_supported);
  Explanation made;
  CHECK_EQ(explain(p, "sm_90", 0, &made), Error::not_supported);
}

TEST("the workspace is that of the backend that is left") {
  start("cuda");
  attn_bwd_params p = bwd_call({.head_dim = 256});
  Explanation free = {};
  CHECK_EQ(explain(p, "sm_90", 0, &free), Error::success);
  const Excluding own(free.kernels[0].backend);
  start("cuda");
  captured([&] {
    Explanation left = {};
    CHECK_EQ(explain(p, "sm_90", 0, &left), Error::success);
    CHECK(std::string(left.kernels[0].backend) != free.kernels[0].backend);
    CHECK_EQ(attn_bwd_workspace_size(p, {}, &p.workspace_size), Error::success);
    CHECK_EQ(attn_bwd(p, {}), Error::success);
  });
}
