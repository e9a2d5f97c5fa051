// Scratch memory of images: it lies in the call's workspace, so many bytes for each program, and no launch is without.
#include <string>

#include "calls.h"
#include "program/registry.h"

using namespace aotriton::v2;

namespace {

constexpr uint32_t kOfProgram = 384;  // bytes; three descriptors

size_t asked(const attn_bwd_params& p) {
  size_t bytes = 0;
  CHECK_EQ(attn_bwd_workspace_size(p, {}, &bytes), Error::success);
  return bytes;
}

size_t asked(const attn_fwd_params& p) {
  size_t bytes = 0;
  CHECK_EQ(attn_fwd_workspace_size(p, {}, &bytes), Error::success);
  return bytes;
}

// Gives the images of this kernel scratch memory, before their first launch: a thread remembers how an image's
// arguments lie.
void need_scratch(const std::string& kernel) {
  any_operator([&](const OperatorInfo& info) {
    for (const BackendInfo& backend : info.backends)
      for (const KernelInfo* one : backend.kernels)
        for (const KernelTable* table : one->tables)
          if (table && one->name == kernel)
            for (Image* image : table->images) image->global_scratch = kOfProgram;
    return false;
  });
}

size_t programs_of(const RecordedLaunch& launch) { return size_t{launch.grid[0]} * launch.grid[1] * launch.grid[2]; }

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

// The pointers to scratch memory, global and of a profile, are the last two arguments.
void* scratch_of(const RecordedLaunch& launch) { return launch.argument<void*>(launch.arguments.size() - 2); }
void* profile_of(const RecordedLaunch& launch) { return launch.argument<void*>(launch.arguments.size() - 1); }

void* behind(void* workspace, size_t bytes) { return static_cast<char*>(workspace) + bytes; }

}  // namespace

TEST("scratch memory lies behind the tensors of the workspace, and follows it from call to call") {
  Recording& recording = start("cuda");
  attn_bwd_params p = bwd_call();
  const size_t tensors = asked(p);
  Explanation explanation;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK(explanation.kernel_count > 1);
  const std::string kernel = explanation.kernels[explanation.kernel_count - 1].kernel;
  need_scratch(kernel);
  const size_t needed = asked(p);
  p.workspace_size = needed;
  const auto check = [&](const RecordedLaunch& launch, size_t begin) {
    CHECK_EQ(scratch_of(launch), launch.entry == kernel ? behind(p.workspace, begin) : nullptr);
    CHECK_EQ(profile_of(launch), nullptr);
    if (launch.entry == kernel) CHECK_EQ(needed, rounded(tensors) + programs_of(launch) * kOfProgram);
  };
  attn_bwd_params larger = bwd_call({.batch = 3});
  larger.workspace_size += size_t{1} << 30;
  // The second call with other sizes has the same arguments elsewhere; the third one is warm, in another workspace.
  for (int i = 0; i < 3; ++i) {
    recording.launches.clear();
    p.workspace = pointer(address_of(10 + i));
    CHECK_EQ(attn_bwd(p, {}), Error::success);
    for (const RecordedLaunch& one : recording.launches) check(one, rounded(tensors));
    CHECK_EQ(attn_bwd(larger, {}), Error::success);
    CHECK_EQ(scratch_of(recording.launches.back()), behind(larger.workspace, rounded(tensors / 2 * 3)));
  }

  PreparedCall prepared;
  CHECK_EQ(prepare(p, {}, &prepared), Error::success);
  recording.launches.clear();
  p.workspace = pointer(address_of(20));
  void* const pointers[] = {p.q.data,         p.k.data,  p.v.data,  p.out.data, p.dout.data,
                            p.logsumexp.data, p.dq.data, p.dk.data, p.dv.data,  p.workspace};
  CHECK_EQ(prepared.launch(pointers, std::size(pointers), {}), Error::success);
  for (const RecordedLaunch& one : recording.launches) check(one, rounded(tensors));

  recording.launches.clear();
  --p.workspace_size;
  CHECK_EQ(attn_bwd(p, {}), Error::workspace_too_small);
  CHECK(recording.launches.empty());
}

TEST("a call without tensors in its workspace brings one for scratch memory, or is refused") {
  Recording& recording = start("cuda");
  attn_fwd_params p = fwd_call();
  p.q.strides[0] = 0;  // which pointers alone reach
  CHECK_EQ(asked(p), 0u);
  Explanation explanation;
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernels[0].backend_states[0].needs_workspace, 0);

  need_scratch(explanation.kernels[0].kernel);
  const size_t bytes = asked(p);
  CHECK_EQ(explain(p, "sm_90", 0, &explanation), Error::success);
  CHECK_EQ(explanation.kernels[0].backend_states[0].needs_workspace, 1);
  CHECK_EQ(attn_fwd(p, {}), Error::workspace_too_small);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: workspace is null, " + std::to_string(bytes) + " bytes are needed");
  p.workspace = p.out.data;
  p.workspace_size = bytes;
  CHECK_EQ(attn_fwd(p, {}), Error::invalid_argument);
  CHECK_CONTAINS(last_error_message(), "attn_fwd: workspace and out overlap");
  CHECK(recording.launches.empty());
  p.workspace = pointer(address_of(10));
  CHECK_EQ(attn_fwd(p, {}), Error::success);
  CHECK_EQ(scratch_of(recording.launches.at(0)), p.workspace);
  CHECK_EQ(bytes, programs_of(recording.launches.at(0)) * kOfProgram);
}
