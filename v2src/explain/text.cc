#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

#include "dispatch/explain.h"
#include "explain/certificate.h"
#include "explain/format.h"
#include "explain/print.h"

namespace aotriton::v2::explain_main {

namespace {

std::string duration(float us) {
  char time[32];
  format_time(static_cast<double>(us), time, sizeof time);
  return time;
}

// What is said of a median on a short line, so that it is not taken for the call's.
const char* where(Measured measured) {
  constexpr const char* texts[] = {"at its bin's size", "at a larger size", "at a smaller size", "at another size"};
  return texts[static_cast<int>(measured)];
}

// Of several kernels: the same if all agree.
Measured all_measured_at(const Explanation& explanation) {
  Measured common = measured_at(explanation.kernels[0]);
  for (size_t i = 1; i < explanation.kernel_count; ++i) {
    const Measured other = measured_at(explanation.kernels[i]);
    if (other == common || other == Measured::alike) continue;
    common = common == Measured::alike ? other : Measured::otherwise;
  }
  return common;
}

// One long fact below a short line; its name is not said again on the lines that go on with it.
void print_fact(const char* name, const std::string& fact) { printf("    %-12s %s\n", name, fact.c_str()); }

// A predicted time, and how fast that is.
std::string prediction(float time, double flops) {
  std::string line = duration(time);
  if (flops > 0) line += text(", %.0f TFLOP/s", flops / static_cast<double>(time) * 1e-6);
  return line;
}

std::string backend_line(const KernelChoice& choice, int i) {
  const BackendTime& backend = choice.backends[i];
  const BackendState& state = choice.backend_states[i];
  std::string line = backend.name, of_bin;
  if (backend.median_us > 0) of_bin = "; its bin's own problem was measured: " + duration(backend.median_us);
  if (!strcmp(backend.name, choice.backend)) line += " (this one)";
  if (*state.refusal) {
    line += text(", cannot serve this call: %s", state.refusal);
    if (*state.choice) line += text(*state.choice_value ? ", %s=%s" : ", %s", state.choice, state.choice_value);
    line += text(" (%s)", state.kernel);
    line += of_bin;
  } else if (choice.backends_predicted_us[i] > 0) {
    line += ", predicted " + duration(choice.backends_predicted_us[i]) + of_bin;
  } else if (backend.median_us > 0) {
    // Where the first backend was not measured, all were compared in the cell that its winners come from.
    line += ", measured " + duration(backend.median_us) + " ";
    line += choice.backend_states[0].total_us > 0 ? where(measured_at(choice)) : "in the cell that it borrows from";
  } else if (state.total_us > 0) {
    line += ", measured " + duration(state.total_us) + ", each kernel in its own bin";
  } else {
    line += ", not measured";
  }
  if (!*state.refusal && state.needs_workspace) line += ", needs a workspace";
  return line;
}

// In how many chunks the call is made, and what became of each of its hints.
void print_hints(const KernelChoice& choice) {
  if (choice.pieces > 1)
    print_fact("pieces", text("%" PRId64 ", one after the other; all else is of the first one", choice.pieces));
  for (int i = 0; i < choice.hint_count; ++i) {
    const aotriton_hint_outcome& hint = choice.hints[i];
    print_fact(i ? "" : "hints",
               text("%s: %shonoured%s%s", hint.name, hint.honoured ? "" : "not ", *hint.why ? ", " : "", hint.why));
  }
}

void print_backends(const KernelChoice& choice) {
  for (int i = 0; choice.backend_count > 1 && i < choice.backend_count; ++i)
    print_fact(i ? "" : "backends", backend_line(choice, i));
}

// What the medians are of, and how the call differs from that.
std::string problem_of(const KernelChoice& choice) {
  std::string measured, own;
  for (int i = 0; i < choice.key_count; ++i) {
    const TuningKeyValue& key = choice.keys[i];
    measured += text("%s%s=%d", i ? " " : "", key.name, key.representative);
    own += text("%s%s=%" PRId64, i ? " " : "", key.name, key.value);
  }
  for (int i = 0; i < choice.padding_count; ++i) {
    const Padding& padding = choice.paddings[i];
    measured += text(" %s=%" PRId64, padding.choice, padding.padded);
    own += text(" %s=%" PRId64, padding.choice, padding.value);
  }
  return measured_at(choice) == Measured::alike ? measured + ", which this call has, too"
                                                : measured + "; this call has " + own;
}

// How sure it is, of which shape, and when that was measured.
std::string median_of(const KernelChoice& choice) {
  std::string line = duration(choice.bin_median_us);
  if (choice.high_us > 0) line += " (" + duration(choice.low_us) + " to " + duration(choice.high_us) + ")";
  line += std::string(", of ") + (*choice.shape ? choice.shape : "the bin's representative problem");
  return *choice.measured ? line + ", measured on " + choice.measured : line;
}

// Whose predicted time it is, and how far from measured ones that model is.
std::string model_of(const KernelChoice& choice) {
  const std::string line = duration(choice.predicted_us), model = choice.model;
  if (!(choice.predicted_error > 0))
    return line + ", compared with no measurement" + (*choice.model ? ": " : "") + model;
  return line + text(" by its cost model, which is off by %.1f %% in the median", 100.0 * choice.predicted_error) +
         (*choice.model ? "; it is that of " : "") + model;
}

void print_kernel(const KernelChoice& choice, bool alone) {
  std::string line = text("%s (backend %s, %s): ", choice.kernel, choice.backend, choice.arch);
  const bool has_time = choice.predicted_us > 0;
  if (has_time)
    line += "predicted " + prediction(choice.predicted_us, alone ? choice.flops : 0);
  else
    line += std::string(provenance_of(choice)) + ", " +
            (choice.median_us > 0 ? duration(choice.median_us) + " " + where(measured_at(choice)) : "no time");
  puts(line.c_str());
  print_fact("product", (choice.exact_product ? "" : "a GPU like ") + std::string(choice.product));
  if (has_time) print_fact("predicted", model_of(choice));
  print_fact("functional", text("%s (godel number %d)", choice.functional, choice.godel_number));
  for (int i = 0; i < choice.padding_count; ++i) {
    const Padding& padding = choice.paddings[i];
    print_fact(i ? "" : "padding",
               text("%s is %" PRId64 ": padded to %" PRId64, padding.choice, padding.value, padding.padded));
  }
  for (int i = 0; i < choice.key_count; ++i) {
    const TuningKeyValue& key = choice.keys[i];
    print_fact(i ? "" : "bin",
               text("%s is %" PRId64 ": %s %d", key.name, key.value,
                    key.value <= key.representative ? "bin up to" : "last bin, beyond", key.representative));
  }
  print_fact("image", choice.image);
  print_fact("tunables", choice.tunables);
  print_fact("compile_options", choice.compile_options);
  print_fact("certificate",
             choice.certificate_problems
                 ? certificate_text(choice.certificate_product, choice.certificate_day, choice.certificate_problems,
                                    choice.certificate_error, choice.certificate_allowed)
                 : "compiled only");
  print_fact("provenance", std::string(provenance_of(choice)) + (*choice.source ? ", " : "") + choice.source);
  if (strcmp(choice.image, choice.bin_image)) {
    print_fact("bin's image", choice.bin_image);
    print_fact("", std::string(choice.bin_tunables) + " " + choice.bin_compile_options);
  }
  if (choice.bin_median_us > 0) {
    print_fact("median", median_of(choice));
    print_fact("measured at", problem_of(choice));
  } else {
    print_fact("median", "not measured");
  }
  for (int i = 0; i < choice.runner_up_count; ++i)
    print_fact(i ? "" : "runners-up",
               "measured there " + duration(choice.runners_up[i].median_us) + "  " + choice.runners_up[i].config);
  if (!alone) return;
  print_hints(choice);
  print_backends(choice);
}

// Of several kernels: first what they take together.
void print_total(const char* op, const Explanation& explanation) {
  const KernelChoice& first = explanation.kernels[0];
  std::string provenances;
  for (size_t i = 0; i < explanation.kernel_count; ++i) {
    const char* const own = provenance_of(explanation.kernels[i]);
    if (provenances.find(own) == std::string::npos) provenances += (i ? " and " : "") + std::string(own);
  }
  const float total = chosen_state(first).total_us;
  std::string time = "no time";
  if (first.predicted_total_us > 0)
    time = "predicted " + prediction(first.predicted_total_us, first.flops) + " together";
  else if (total > 0)
    time = duration(total) + " together, " + where(all_measured_at(explanation));
  if (first.predicted_total_us > 0)
    provenances = time;
  else
    provenances += ", " + time;
  printf("%s (backend %s, %s): %zu kernels, %s\n", op, first.backend, first.arch, explanation.kernel_count,
         provenances.c_str());
  if (total > 0) {
    print_fact(first.predicted_total_us > 0 ? "measured" : "total",
               duration(total) +
                   ", the kernels' medians added up, each of its own bin's representative problem, which need "
                   "not be one size");
  } else {
    std::string lacking;
    for (size_t i = 0; i < explanation.kernel_count; ++i)
      if (!(explanation.kernels[i].median_us > 0))
        lacking += (lacking.empty() ? "" : ", ") + std::string(explanation.kernels[i].kernel);
    print_fact("total", "not known: without a median are " + lacking);
  }
  print_hints(first);
  print_backends(first);
  puts("");
}

}  // namespace

void print_text(const char* op, const std::vector<Explanation>& explanations) {
  bool first = true;
  for (const Explanation& explanation : explanations) {
    if (!first && explanation.kernel_count) puts("");
    if (explanation.kernel_count > 1) print_total(op, explanation);
    for (size_t i = 0; i < explanation.kernel_count; ++i) {
      if (i) puts("");
      print_kernel(explanation.kernels[i], explanation.kernel_count == 1);
      first = false;
    }
  }
  if (first) puts("no kernel: the call has nothing to compute");
}

}  // namespace aotriton::v2::explain_main
