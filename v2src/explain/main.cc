// aotriton-explain: from the sizes of a call to the kernels that it would run and why, without a GPU.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "explain/options.h"
#include "explain/print.h"

using namespace aotriton::v2;

int main(int count, char** arguments) {
  const explain_main::Options options(count, arguments);
  if (options.certificates) return explain_main::certificates(options);
  if (options.list) return explain_main::list(options);
  std::vector<Explanation> explanations;
  int status = 0;
  ExplainRequest request = options.request;
  for (const explain_main::Options::Target& target : options.targets) {
    request.arch = target.arch.c_str();
    request.product = target.product.empty() ? nullptr : target.product.c_str();
    Explanation explanation;
    const Error error = explain(request, &explanation);
    if (error == Error::success) {
      explanations.push_back(explanation);
      continue;
    }
    // Another target may have an answer.
    fprintf(stderr, "aotriton-explain: %s: %s\n", error_name(error), last_error_message());
    status = std::max(status, error == Error::unknown_arch || error == Error::invalid_argument ? 2 : 1);
  }
  if (explanations.empty()) return status;
  if (options.json)
    explain_main::print_json(explanations);
  else
    explain_main::print_text(request.op, explanations);
  return status;
}
