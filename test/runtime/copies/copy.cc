// A shared object with a copy of the library inside, as an application's plugin has one.
#include <aotriton/flash.h>
#include <aotriton/runtime.h>

using namespace aotriton::v2;

#pragma GCC visibility push(default)
extern "C" {

const char* copy_version() { return version(); }

// A refusal by this copy, and what this copy says of it.
const char* copy_refusal(int batch) {
  attn_fwd_params params;
  params.q.sizes[0] = batch;
  params.q.sizes[1] = -batch;
  return attn_fwd(params, {}) == Error::invalid_shape ? last_error_message() : "";
}

const char* copy_message() { return last_error_message(); }

}  // extern "C"
#pragma GCC visibility pop
