// The kernels of torch's scaled_dot_product_attention that may be ours.
#pragma once

#include <string>

namespace aotriton_torch {

// Takes aten::_scaled_dot_product_flash_attention and its backward for tensors of the dispatch key, "CUDA" or "CPU".
// What the library does not support goes on to torch's own kernel, of which there is none for a CPU.
void activate(const std::string& dispatch_key);

// Gives them back.
void restore();

}  // namespace aotriton_torch
