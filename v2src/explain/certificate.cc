#include "explain/certificate.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <set>
#include <span>

#include "call/gpu.h"
#include "dispatch/explain.h"
#include "explain/format.h"
#include "explain/print.h"
#include "program/registry.h"

namespace aotriton::v2::explain_main {

namespace {

std::string day_of(int64_t day) {
  char own[32];
  format_day(day, own, sizeof own);
  return own;
}

// What is said of one image. Where a product is asked about, what was found on others does not count.
class Lister {
 public:
  explicit Lister(const Options& options) : options_(options) {}

  void list(const KernelInfo& kernel, size_t arch) {
    const KernelTable* const table = arch < kernel.tables.size() ? kernel.tables[arch] : nullptr;
    if (!table || !asks(arch)) return;
    if (!options_.json) printf("%s %s\n", kernel.name, kArchs[arch].arch);
    for (const Image* image : table->images) {
      bool checked = false;
      if (options_.json)
        printf("%s{\"image\": %s, \"kernel\": %s, \"arch\": %s, \"certificates\": [", images_ ? ",\n " : "",
               quoted(image->name).c_str(), quoted(kernel.name).c_str(), quoted(kArchs[arch].arch).c_str());
      for (const Certificate& one : image->certificates) {
        const char* const product = products(static_cast<int>(arch))[one.product].name;
        if (!asks(arch, product)) continue;
        if (options_.json)
          printf("%s%s", checked ? ", " : "",
                 certificate_json(product, one.day, one.problems, one.checks, one.error, one.allowed).c_str());
        else
          printf("  %s %s\n", image->name,
                 certificate_text(product, one.day, one.problems, one.error, one.allowed).c_str());
        checked = true;
      }
      if (options_.json)
        printf("]}");
      else if (!checked)
        printf("  %s %s\n", image->name, image->certificates.empty() ? "compiled only" : "not checked there");
      ++images_;
      checked_ += checked;
    }
  }

  void finish() const {
    if (!options_.json) printf("%zu images, of which %zu were checked\n", images_, checked_);
  }

 private:
  bool asks(size_t arch, const char* product = nullptr) const {
    return options_.targets.empty() ||
           std::any_of(options_.targets.begin(), options_.targets.end(), [&](const Options::Target& target) {
             return target.arch == kArchs[arch].arch &&
                    (!product || target.product.empty() || target.product == product);
           });
  }

  const Options& options_;
  size_t images_ = 0, checked_ = 0;
};

}  // namespace

std::string certificate_text(const char* product, int64_t day, int64_t problems, float error, float allowed) {
  return text("checked on %s, %s, by %" PRId64 " problem%s: error %.2g, allowed %.2g", product, day_of(day).c_str(),
              problems, problems == 1 ? "" : "s", static_cast<double>(error), static_cast<double>(allowed));
}

std::string certificate_json(const char* product, int64_t day, int64_t problems, int64_t checks, float error,
                             float allowed) {
  return text("{\"product\": %s, \"day\": %s, \"problems\": %" PRId64 ", \"checks\": %" PRId64
              ", \"error\": %.6g, \"allowed\": %.6g}",
              quoted(product).c_str(), quoted(day_of(day).c_str()).c_str(), problems, checks,
              static_cast<double>(error), static_cast<double>(allowed));
}

int certificates(const Options& options) {
  const std::span<const char* const> all = arch_names();
  for (const Options::Target& target : options.targets)
    if (std::find(all.begin(), all.end(), target.arch) == all.end()) return unknown_arch(target.arch, all);
  Lister lister(options);
  std::set<const KernelInfo*> listed;
  if (options.json) printf("[");
  any_operator([&](const OperatorInfo& info) {
    if (options.info && options.info != &info) return false;
    for (const BackendInfo& backend : info.backends)
      for (const KernelInfo* kernel : backend.kernels)
        if (listed.insert(kernel).second)
          for (size_t arch = 0; arch < static_cast<size_t>(kArchCount); ++arch) lister.list(*kernel, arch);
    return false;
  });
  if (options.json) printf("]\n");
  lister.finish();
  return 0;
}

}  // namespace aotriton::v2::explain_main
