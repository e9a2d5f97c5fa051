#include <cinttypes>
#include <cstdio>

#include "dispatch/explain.h"
#include "explain/certificate.h"
#include "explain/format.h"
#include "explain/print.h"

namespace aotriton::v2::explain_main {

namespace {

void print_kernel(const KernelChoice& choice) {
  printf(
      "{\"kernel\": %s, \"arch\": %s, \"product\": %s, \"exact_product\": %s, \"functional\": %s, \"godel_number\": "
      "%d, "
      "\"keys\": [",
      quoted(choice.kernel).c_str(), quoted(choice.arch).c_str(), quoted(choice.product).c_str(),
      choice.exact_product ? "true" : "false", quoted(choice.functional).c_str(), choice.godel_number);
  for (int i = 0; i < choice.key_count; ++i) {
    const TuningKeyValue& key = choice.keys[i];
    printf("%s{\"name\": %s, \"value\": %" PRId64 ", \"representative\": %d, \"beyond_last_bin\": %s}", i ? ", " : "",
           quoted(key.name).c_str(), key.value, key.representative, key.value > key.representative ? "true" : "false");
  }
  printf("], \"padding\": [");
  for (int i = 0; i < choice.padding_count; ++i)
    printf("%s{\"choice\": %s, \"value\": %" PRId64 ", \"padded\": %" PRId64 "}", i ? ", " : "",
           quoted(choice.paddings[i].choice).c_str(), choice.paddings[i].value, choice.paddings[i].padded);
  printf(
      "], \"image\": %s, \"tunables\": %s, \"compile_options\": %s, \"provenance\": %s, \"source\": %s, \"median_us\": "
      "%.6g, "
      "\"low_us\": %.6g, \"high_us\": %.6g, \"shape\": %s, \"measured\": %s, \"representative_is\": %s, "
      "\"runners_up\": [",
      quoted(choice.image).c_str(), quoted(choice.tunables).c_str(), quoted(choice.compile_options).c_str(),
      quoted(provenance_of(choice)).c_str(), quoted(choice.source).c_str(), static_cast<double>(choice.median_us),
      static_cast<double>(choice.low_us), static_cast<double>(choice.high_us), quoted(choice.shape).c_str(),
      quoted(choice.measured).c_str(), quoted(measured_name(measured_at(choice))).c_str());
  for (int i = 0; i < choice.runner_up_count; ++i)
    printf("%s{\"config\": %s, \"median_us\": %.6g}", i ? ", " : "", quoted(choice.runners_up[i].config).c_str(),
           static_cast<double>(choice.runners_up[i].median_us));
  printf("], \"backend\": %s, \"total_us\": %.6g, \"backends\": [", quoted(choice.backend).c_str(),
         static_cast<double>(chosen_state(choice).total_us));
  for (int i = 0; i < choice.backend_count; ++i) {
    const BackendState& state = choice.backend_states[i];
    printf(
        "%s{\"name\": %s, \"median_us\": %.6g, \"total_us\": %.6g, \"needs_workspace\": %s, \"refusal\": %s, "
        "\"refusing_kernel\": %s, \"refused_choice\": %s, \"refused_value\": %s, \"predicted_us\": %.6g}",
        i ? ", " : "", quoted(choice.backends[i].name).c_str(), static_cast<double>(choice.backends[i].median_us),
        static_cast<double>(state.total_us), state.needs_workspace ? "true" : "false", quoted(state.refusal).c_str(),
        quoted(state.kernel).c_str(), quoted(state.choice).c_str(), quoted(state.choice_value).c_str(),
        static_cast<double>(choice.backends_predicted_us[i]));
  }
  printf("], \"predicted_us\": %.6g, \"predicted_total_us\": %.6g, \"predicted_error\": %.6g, \"model\": %s, ",
         static_cast<double>(choice.predicted_us), static_cast<double>(choice.predicted_total_us),
         static_cast<double>(choice.predicted_error), quoted(choice.model).c_str());
  printf(
      "\"flops\": %.17g, \"bin_image\": %s, \"bin_tunables\": %s, \"bin_compile_options\": %s, \"bin_median_us\": "
      "%.6g, ",
      choice.flops, quoted(choice.bin_image).c_str(), quoted(choice.bin_tunables).c_str(),
      quoted(choice.bin_compile_options).c_str(), static_cast<double>(choice.bin_median_us));
  printf("\"certificate\": %s, ",
         choice.certificate_problems
             ? certificate_json(choice.certificate_product, choice.certificate_day, choice.certificate_problems,
                                choice.certificate_checks, choice.certificate_error, choice.certificate_allowed)
                   .c_str()
             : "null");
  printf("\"pieces\": %" PRId64 ", \"hints\": {", choice.pieces);
  for (int i = 0; i < choice.hint_count; ++i)
    printf("%s%s: {\"honoured\": %s, \"why\": %s}", i ? ", " : "", quoted(choice.hints[i].name).c_str(),
           choice.hints[i].honoured ? "true" : "false", quoted(choice.hints[i].why).c_str());
  printf("}}");
}

}  // namespace

void print_json(const std::vector<Explanation>& explanations) {
  printf("[");
  const char* comma = "";
  for (const Explanation& explanation : explanations) {
    for (size_t i = 0; i < explanation.kernel_count; ++i) {
      printf("%s", comma);
      print_kernel(explanation.kernels[i]);
      comma = ",\n ";
    }
  }
  printf("]\n");
}

}  // namespace aotriton::v2::explain_main
