// Runs a package of AOTInductor without Python: the operators' library, the package, and the inputs' sizes.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 7) return std::fprintf(stderr, "torch_program LIBRARY PACKAGE BATCH HEADS SEQLEN HEAD_DIM\n"), 2;
  if (!dlopen(argv[1], RTLD_NOW)) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  std::vector<int64_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const at::Tensor q = at::arange(count).sin().reshape(sizes).to(at::kBFloat16);
  torch::inductor::AOTIModelPackageLoader package(argv[2]);
  for (const at::Tensor& result : package.run({q})) std::printf("%.9g\n", result.to(at::kDouble).sum().item<double>());
}
