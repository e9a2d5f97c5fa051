// The C++ interface from C++17: what needs no GPU, and what is said where there is none. Exits with 0 where all is as
// it should be.
#include <aotriton/flash.h>
#include <aotriton/gemm.h>
#include <aotriton/runtime.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

using namespace aotriton::v2;

namespace {

int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("not true: %s; last error: %s\n", what, last_error_message());
}
#define CHECK(condition) check(condition, #condition)

Tensor<4> tensor(void* data) { return {data, DType::bfloat16, {2, 16, 1024, 64}, {16 * 65536, 65536, 64, 1}}; }

// Neither has a device, or none is current: this program selects none.
bool without_device(Error error) { return error == Error::no_driver || error == Error::no_context; }

}  // namespace

int main() {
  // No call gets as far as to touch these.
  void* const memory = reinterpret_cast<void*>(uintptr_t{1} << 40);
  void* const results = reinterpret_cast<void*>(uintptr_t{2} << 40);
  attn_fwd_params params;
  params.q = params.k = params.v = tensor(memory);
  params.out = tensor(results);
  params.sm_scale = 0.125f;

  CHECK(std::string(version()).find('.') != std::string::npos);
  CHECK(error_name(Error::no_winner) == std::string("no_winner"));

  Explanation explanation;
  CHECK(explain(params, "sm_90", 0, &explanation) == Error::success);
  CHECK(explanation.kernel_count == 1);
  const KernelChoice& choice = explanation.kernels[0];
  CHECK(choice.arch == std::string("sm_90"));
  CHECK(std::string(choice.functional).find("T=bf16") == 0);
  CHECK(provenance_name(static_cast<Provenance>(choice.provenance)) != std::string("unknown"));
  CHECK(explain(params, "sm_42", 0, &explanation) == Error::unknown_arch);

  size_t bytes = 1;
  CHECK(without_device(attn_fwd_workspace_size(params, Stream{}, &bytes)));
  CHECK(bytes == 0);
  CHECK(without_device(attn_fwd(params, Stream{})));
  CHECK(without_device(preload(params, Stream{})));
  CHECK(without_device(preload(Stream{})));
  CHECK(!supported(params, Stream{}));

  PreparedCall prepared;
  CHECK(without_device(prepare(params, Stream{}, &prepared)));
  PreparedCall moved = std::move(prepared);
  CHECK(moved.launch({memory, memory, memory, results, nullptr, nullptr}, Stream{}) == Error::null_pointer);
  CHECK(last_error_message() == std::string("launch: the call is not prepared"));

  params.q.dtype = AOTRITON_FLOAT32;
  CHECK(attn_fwd(params, Stream{}) == Error::invalid_dtype);
  CHECK(gemm_params().alpha == 1);
  return failures != 0;
}
