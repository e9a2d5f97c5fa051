// aotriton-explain: from the sizes of a call to the kernels that it would run and why, without a GPU.
#include <aotriton/explain.h>

#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "flash/request.h"
#include "lookup.h"

using namespace aotriton::v2;

namespace {

constexpr char kHelp[] =
    "usage: aotriton-explain --op OP --arch ARCH --dtype DTYPE --head-dim D --seqlen-q N --seqlen-k N --batch N "
    "--heads N\n"
    "                        [--heads-k N] [--causal] [--multiprocessors N] [--json]\n"
    "\n"
    "Shows which kernels a call on contiguous tensors runs, and why. Needs no GPU.\n"
    "\n"
    "  --op attn_fwd|attn_bwd  the operator\n"
    "  --arch ARCH             GPU architecture, such as sm_90 or gfx942\n"
    "  --dtype fp16|bf16       element type of the tensors\n"
    "  --head-dim D            size of one head: a multiple of 8 up to 256\n"
    "  --seqlen-q N            rows of q\n"
    "  --seqlen-k N            rows of k and v\n"
    "  --batch N               batch size\n"
    "  --heads N               heads of q\n"
    "  --heads-k N             heads of k and v, which must divide those of q (default: as many)\n"
    "  --causal                query i sees keys 0 to i only\n"
    "  --multiprocessors N     of the GPU (default: those of the arch's usual product)\n"
    "  --json                  print JSON\n"
    "  --help                  print this\n";

[[noreturn]] void misuse(const std::string& what) {
  fprintf(stderr, "aotriton-explain: %s (see --help)\n", what.c_str());
  exit(2);
}

// The options of one run, taken from the command line.
struct Options {
  flash::ExplainRequest request;
  bool json = false;

  Options(int count, char** arguments) {
    const struct {
      const char* name;
      const char** text;
    } texts[] = {{"--op", &request.op}, {"--arch", &request.arch}, {"--dtype", &request.dtype}};
    int64_t multiprocessors = 0;
    const struct {
      const char* name;
      int64_t* number;
      bool required;
    } numbers[] = {{"--head-dim", &request.head_dim, true},
                   {"--seqlen-q", &request.seqlen_q, true},
                   {"--seqlen-k", &request.seqlen_k, true},
                   {"--batch", &request.batch, true},
                   {"--heads", &request.heads, true},
                   {"--heads-k", &request.heads_k, false},
                   {"--multiprocessors", &multiprocessors, false}};

    for (int i = 1; i < count; ++i) {
      const std::string option = arguments[i];
      if (option == "--help" || option == "-h") {
        fputs(kHelp, stdout);
        exit(0);
      }
      if (option == "--causal" || option == "--json") {
        (option == "--causal" ? request.causal : json) = true;
        continue;
      }
      const char** text = nullptr;
      int64_t* number = nullptr;
      for (const auto& known : texts)
        if (option == known.name) text = known.text;
      for (const auto& known : numbers)
        if (option == known.name) number = known.number;
      if (!text && !number) misuse("unknown option " + option);
      if (i + 1 == count || !strncmp(arguments[i + 1], "--", 2)) misuse(option + " needs a value");
      const char* const value = arguments[++i];
      if (text)
        *text = value;
      else
        *number = positive(option, value);
    }
    for (const auto& known : texts)
      if (!*known.text) misuse(std::string(known.name) + " is missing");
    for (const auto& known : numbers)
      if (known.required && !*known.number) misuse(std::string(known.name) + " is missing");
    if (!request.heads_k) request.heads_k = request.heads;
    if (multiprocessors > INT_MAX) misuse("--multiprocessors is too large");
    request.multiprocessors = static_cast<int>(multiprocessors);
  }

  static int64_t positive(const std::string& option, const char* text) {
    char* end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value <= 0)
      misuse(option + " takes a positive whole number, not '" + text + "'");
    return value;
  }
};

std::string quoted(const char* text) {
  std::string result = "\"";
  for (; *text; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    char escaped[8];
    if (byte == '"' || byte == '\\')
      snprintf(escaped, sizeof escaped, "\\%c", byte);
    else
      snprintf(escaped, sizeof escaped, byte < 32 ? "\\u%04x" : "%c", byte);
    result += escaped;
  }
  return result + '"';
}

void print_json(const KernelChoice& choice) {
  printf("{\"kernel\": %s, \"arch\": %s, \"functional\": %s, \"godel_number\": %d, \"keys\": [",
         quoted(choice.kernel).c_str(), quoted(choice.arch).c_str(), quoted(choice.functional).c_str(),
         choice.godel_number);
  for (int i = 0; i < choice.key_count; ++i)
    printf("%s{\"name\": %s, \"value\": %" PRId64 ", \"representative\": %d}", i ? ", " : "",
           quoted(choice.keys[i].name).c_str(), choice.keys[i].value, choice.keys[i].representative);
  printf(
      "], \"image\": %s, \"psels\": %s, \"copts\": %s, \"provenance\": %s, \"source\": %s, \"median_us\": %.6g, "
      "\"runners_up\": [",
      quoted(choice.image).c_str(), quoted(choice.psels).c_str(), quoted(choice.copts).c_str(),
      quoted(provenance_name(choice.provenance)).c_str(), quoted(choice.source).c_str(),
      static_cast<double>(choice.median_us));
  for (int i = 0; i < choice.runner_up_count; ++i)
    printf("%s{\"config\": %s, \"median_us\": %.6g}", i ? ", " : "", quoted(choice.runners_up[i].config).c_str(),
           static_cast<double>(choice.runners_up[i].median_us));
  printf("], \"backend\": %s, \"backends\": [", quoted(choice.backend).c_str());
  for (int i = 0; i < choice.backend_count; ++i)
    printf("%s{\"name\": %s, \"median_us\": %.6g}", i ? ", " : "", quoted(choice.backends[i].name).c_str(),
           static_cast<double>(choice.backends[i].median_us));
  printf("]}");
}

void print_text(const KernelChoice& choice) {
  char line[1024];
  format_line(choice, line, sizeof line);
  printf("%s\n", line);
  printf("    functional   %s (godel number %d)\n", choice.functional, choice.godel_number);
  for (int i = 0; i < choice.key_count; ++i) {
    const TuningKeyValue& key = choice.keys[i];
    printf("    %s   %s is %" PRId64 ": %s %d\n", i ? "          " : "bin       ", key.name, key.value,
           key.value <= key.representative ? "bin up to" : "last bin, beyond", key.representative);
  }
  printf("    image        %s\n", choice.image);
  printf("    psels        %s\n", choice.psels);
  printf("    copts        %s\n", choice.copts);
  printf("    provenance   %s%s%s\n", provenance_name(choice.provenance), *choice.source ? ", " : "", choice.source);
  if (choice.median_us > 0)
    printf("    median       %.4g us, of the bin's representative problem\n", static_cast<double>(choice.median_us));
  else
    printf("    median       not measured\n");
  for (int i = 0; i < choice.runner_up_count; ++i)
    printf("    %s   %.4g us  %s\n", i ? "          " : "runners-up",
           static_cast<double>(choice.runners_up[i].median_us), choice.runners_up[i].config);
  for (int i = 0; choice.backend_count > 1 && i < choice.backend_count; ++i) {
    const BackendTime& backend = choice.backends[i];
    printf("    %s   %s%s", i ? "          " : "backends  ", backend.name,
           strcmp(backend.name, choice.backend) ? "" : " (this one)");
    if (backend.median_us > 0)
      printf(", %.4g us\n", static_cast<double>(backend.median_us));
    else
      printf(", not compared\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  const Options options(count, arguments);
  Explanation explanation;
  if (const Error error = flash::explain(options.request, &explanation); error != Error::success) {
    fprintf(stderr, "aotriton-explain: %s: %s\n", error_name(error), last_error_message());
    return 1;
  }
  if (options.json) printf("[");
  for (int i = 0; i < explanation.kernel_count; ++i) {
    if (options.json) {
      if (i) printf(",\n ");
      print_json(explanation.kernels[i]);
    } else {
      if (i) printf("\n");
      print_text(explanation.kernels[i]);
    }
  }
  if (options.json) printf("]\n");
  return 0;
}
