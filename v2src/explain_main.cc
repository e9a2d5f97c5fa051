// aotriton-explain: from the sizes of a call to the kernels that it would run and why, without a GPU.
#include <aotriton/explain.h>

#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "explain.h"
#include "registry.h"
#include "request.h"

using namespace aotriton::v2;

namespace {

constexpr char kHelp[] =
    "usage: aotriton-explain --op OP --arch ARCH --dtype DTYPE [--SIZE N ...] [--SCALAR VALUE ...]\n"
    "                        [--multiprocessors N] [--json]\n"
    "\n"
    "Shows which kernels a call on contiguous tensors runs, and why. Needs no GPU.\n"
    "\n"
    "  --op OP               the operator\n"
    "  --arch ARCH           GPU architecture, such as sm_90 or gfx942\n"
    "  --dtype fp16|bf16     element type of the tensors\n"
    "  --multiprocessors N   of the GPU (default: those of the arch's usual product)\n"
    "  --json                print JSON\n"
    "  --help                print this\n"
    "\n"
    "Operators, with their sizes and scalars. What sizes have in common before an underscore stands for all of them:\n"
    "--rows 16 is --rows-a 16 --rows-b 16 where an operator has the sizes rows_a and rows_b. --transposed-x has the\n"
    "operand x lie by columns.\n";

[[noreturn]] void misuse(const std::string& what) {
  fprintf(stderr, "aotriton-explain: %s (see --help)\n", what.c_str());
  exit(2);
}

// rows_a as an option: --rows-a.
std::string option_of(const char* name) {
  std::string option = "--";
  for (; *name; ++name) option += *name == '_' ? '-' : *name;
  return option;
}

void print_help() {
  fputs(kHelp, stdout);
  any_operator([](const OperatorInfo& info) {
    std::string line = "\n  " + std::string(info.name);
    for (size_t i = 0; i < info.given_sizes; ++i) line.append(" ").append(option_of(info.sizes[i])).append(" N");
    for (const ScalarInfo& scalar : info.scalars)
      if (!scalar.internal)
        line.append(" [").append(option_of(scalar.name)).append(scalar.type == ScalarType::boolean ? "]" : " X]");
    for (const OperandInfo& operand : info.operands)
      if (operand.layout == Layout::strided) line.append(" [--transposed-").append(operand.name).append("]");
    puts(line.c_str());
    return false;
  });
}

// The options of one run, taken from the command line.
struct Options {
  ExplainRequest request;
  bool json = false;

  Options(int count, char** arguments) {
    for (int i = 1; i < count; ++i)
      if (!strcmp(arguments[i], "--help") || !strcmp(arguments[i], "-h")) {
        print_help();
        exit(0);
      }
    for (int i = 1; i + 1 < count; ++i)
      if (!strcmp(arguments[i], "--op")) request.op = arguments[i + 1];
    if (!request.op) misuse("--op is missing");
    const OperatorInfo* info = find_operator(request.op);
    if (!info) misuse("unknown op " + std::string(request.op) + ": choose from " + operator_names());

    for (int i = 1; i < count; ++i) {
      const std::string option = arguments[i];
      if (option.rfind("--", 0)) misuse("unexpected " + option);
      if (option == "--json") {
        json = true;
        continue;
      }
      const std::string name = name_of(option.substr(2));
      const ScalarInfo* scalar = nullptr;
      for (const ScalarInfo& one : info->scalars)
        if (name == one.name && !one.internal) scalar = &one;
      if (transposed_operand(*info, name.c_str()) || (scalar && scalar->type == ScalarType::boolean)) {
        add(name, 1);
        continue;
      }
      const bool known = option == "--op" || option == "--arch" || option == "--dtype" ||
                         option == "--multiprocessors" || scalar || is_size(*info, name);
      if (!known) misuse("unknown option " + option + " of " + info->name);
      if (i + 1 == count || !strncmp(arguments[i + 1], "--", 2)) misuse(option + " needs a value");
      const char* const value = arguments[++i];
      if (option == "--op") continue;
      if (option == "--arch")
        request.arch = value;
      else if (option == "--dtype")
        request.dtype = value;
      else if (option == "--multiprocessors")
        request.multiprocessors = static_cast<int>(number(option, value, 1, INT_MAX, true));
      else if (scalar)
        add(name, number(option, value, -HUGE_VAL, HUGE_VAL, scalar->type == ScalarType::i32));
      else
        add(name, number(option, value, 0, 0x1p53, true));
    }
    if (!request.arch) misuse("--arch is missing");
    if (!request.dtype) misuse("--dtype is missing");
    for (const std::string& name : names_) values_.push_back({name.c_str(), numbers_[values_.size()]});
    request.values = values_;
  }

 private:
  static std::string name_of(std::string option) {
    for (char& c : option)
      if (c == '-') c = '_';
    return option;
  }

  static bool is_size(const OperatorInfo& info, const std::string& name) {
    for (size_t i = 0; i < info.given_sizes; ++i)
      if (name == info.sizes[i] || std::string(info.sizes[i]).rfind(name + "_", 0) == 0) return true;
    return false;
  }

  static double number(const std::string& option, const char* text, double least, double most, bool whole) {
    char* end;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end || errno || !(value >= least && value <= most) || (whole && value != std::floor(value)))
      misuse(option + " takes a " + (whole ? "whole " : "") + "number" + (least >= 0 ? " that is not negative" : "") +
             ", not '" + text + "'");
    return value;
  }

  void add(const std::string& name, double value) {
    names_.push_back(name);
    numbers_.push_back(value);
  }

  std::vector<std::string> names_;
  std::vector<double> numbers_;
  std::vector<Named> values_;
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
      quoted(provenance_name(static_cast<Provenance>(choice.provenance))).c_str(), quoted(choice.source).c_str(),
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
  printf("    provenance   %s%s%s\n", provenance_name(static_cast<Provenance>(choice.provenance)),
         *choice.source ? ", " : "", choice.source);
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
  if (const Error error = explain(options.request, &explanation); error != Error::success) {
    fprintf(stderr, "aotriton-explain: %s: %s\n", error_name(error), last_error_message());
    return 1;
  }
  if (options.json) printf("[");
  for (size_t i = 0; i < explanation.kernel_count; ++i) {
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
