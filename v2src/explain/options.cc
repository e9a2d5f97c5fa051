#include "explain/options.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "call/gpu.h"
#include "program/registry.h"

namespace aotriton::v2::explain_main {

namespace {

constexpr char kHelp[] =
    "usage: aotriton-explain --op OP --device NAME|--arch ARCH --dtype DTYPE [--SIZE N ...] [--SCALAR VALUE ...]\n"
    "                        [--multiprocessors N] [--hint NAME=VALUE ...] [--json]\n"
    "       aotriton-explain --list|--certificates [--op OP] [--device NAME] [--arch ARCH] [--json]\n"
    "\n"
    "Shows which kernels a call on contiguous tensors runs, and why; or what this build has. Needs no GPU.\n"
    "\n"
    "  --op OP               the operator\n"
    "  --device NAME         part of the name of a product that --list shows, such as h200; may be given more than\n"
    "                        once: what is asked about is shown one after the other\n"
    "  --arch ARCH           GPU architecture, such as sm_90 or gfx942: its usual product, or with --multiprocessors\n"
    "                        the one that is most like such a GPU; several have commas between them\n"
    "  --dtype fp16|bf16|... element type of the tensors; float16 and fp16 are the same, and so on\n"
    "  --multiprocessors N   of the GPU (default: those of the product)\n"
    "  --hint NAME=VALUE     what the caller wishes, such as schedule=dfs or deterministic; may be given more than "
    "once\n"
    "  --list                the operators of this build with their backends, kernels, functionals and bins; of one\n"
    "                        with --op each functional\n"
    "  --certificates        each image of this build, with what checks of its results found and on which product, or\n"
    "                        that it was compiled only\n"
    "  --json                print JSON\n"
    "  --version             print the version of the library\n"
    "  --help                print this\n"
    "\n"
    "Exit status: 0 where everything was answered; 1 where the call is refused, on standard error with the reason "
    "(what\n"
    "another GPU answers is printed all the same); 2 where the question is not understood: an option, a name or a "
    "number\n"
    "that means nothing here, or one that is missing.\n"
    "\n"
    "--option=value is --option value; --flag=0 is a flag that is not given.\n"
    "\n"
    "Operators, with their sizes and scalars. What sizes have in common before an underscore stands for all of them:\n"
    "--rows 16 is --rows-a 16 --rows-b 16 where an operator has the sizes rows_a and rows_b. --transposed-x has the\n"
    "operand x lie by columns; --bias has the operand bias given, which a call may leave out; --float8-e4m3fn-k has "
    "the\n"
    "operand k, and v with it, of this type.\n";

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

// What follows a scalar's option: " X", or the names of its values with | between them; nothing after a flag.
std::string operand_of(const ScalarInfo& scalar) {
  if (scalar.type == ScalarType::boolean) return "";
  std::string names;
  for (const char* const value : scalar.values) names.append(names.empty() ? " " : "|").append(value);
  return names.empty() ? " X" : names;
}

void print_help() {
  fputs(kHelp, stdout);
  any_operator([](const OperatorInfo& info) {
    std::string line = "\n  " + std::string(info.name);
    for (size_t i = 0; i < info.given_sizes; ++i)
      if (!is_one(info.sizes[i])) line.append(" ").append(option_of(info.sizes[i])).append(" N");
    for (const ScalarInfo& scalar : info.scalars)
      if (!scalar.internal) line.append(" [").append(option_of(scalar.name)).append(operand_of(scalar)).append("]");
    for (const OperandInfo& operand : info.operands)
      if (operand.layout == Layout::strided) line.append(" [--transposed-").append(operand.name).append("]");
    for (const OperandInfo& operand : info.operands)
      if (operand.optional) line.append(" [").append(option_of(operand.name)).append("]");
    puts(line.c_str());
    return false;
  });
}

// One option of the command line, `--name value`, `--name=value` or `--name`.
struct Word {
  std::string option;  // with its dashes
  const char* value = nullptr;
  bool joined = false;  // by =
};

// Dashes are for the eye: --rows-a is rows_a.
std::string name_of(const std::string& option) {
  std::string name = option.substr(2);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

bool is_size(const OperatorInfo& of, const std::string& name) {
  for (size_t i = 0; i < of.given_sizes; ++i)
    if (!is_one(of.sizes[i]) && (name == of.sizes[i] || std::string(of.sizes[i]).rfind(name + "_", 0) == 0))
      return true;
  return false;
}

double number(const std::string& option, const char* text, double least, double most, bool whole) {
  char* end;
  errno = 0;
  const double value = strtod(text, &end);
  const std::string but = ", not '" + std::string(text) + "'";
  const bool fits = end != text && !*end && !errno && value >= least && value <= most;
  if (fits && (!whole || value == std::floor(value))) return value;
  if (most == 1) misuse(option + " takes 0 or 1" + but);
  misuse(option + " takes a " + (whole ? "whole " : "") + "number" + (least >= 0 ? " that is not negative" : "") + but);
}

}  // namespace

Options::Options(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (!strcmp(arguments[i], "--help") || !strcmp(arguments[i], "-h")) {
      print_help();
      exit(0);
    }
    if (!strcmp(arguments[i], "--version")) {
      printf("aotriton %s\n", aotriton_version());
      exit(0);
    }
  }
  // What the other options may be is the operator's to say.
  for (int i = 1; i < count; ++i) {
    if (!strcmp(arguments[i], "--op")) request.op = i + 1 < count ? arguments[i + 1] : "--";
    if (!strncmp(arguments[i], "--op=", 5)) request.op = arguments[i] + 5;
    certificates |= !strcmp(arguments[i], "--certificates");
    list |= certificates || !strcmp(arguments[i], "--list");
  }
  if (request.op && !strncmp(request.op, "--", 2)) misuse("--op needs a value");
  if (!request.op && !list) misuse("--op is missing");
  if (request.op) info = find_operator(request.op);
  if (request.op && !info) misuse("unknown op " + std::string(request.op) + ": choose from " + operator_names());
  for (int i = 1; i < count; ++i) take(arguments, count, &i);
  if (targets.empty() && !list) misuse("--device or --arch is missing");
  if (!request.dtype && !list) misuse("--dtype is missing");
  for (const std::string& name : names_) values_.push_back({name.c_str(), numbers_[values_.size()]});
  request.values = values_;
}

void Options::take(char** arguments, int count, int* index) {
  Word word = {arguments[*index]};
  if (word.option.rfind("--", 0)) misuse("unexpected " + word.option);
  if (const size_t equals = word.option.find('='); equals != std::string::npos) {
    word.joined = true;
    word.value = arguments[*index] + equals + 1;
    word.option.resize(equals);
  }
  const std::string& option = word.option;
  const std::string name = name_of(option);
  const ScalarInfo* scalar = nullptr;
  if (info && !list)
    for (const ScalarInfo& one : info->scalars)
      if (name == one.name && !one.internal) scalar = &one;
  const bool of_call = !list && info;
  const bool flag = (of_call && (transposed_operand(*info, name.c_str()) || optional_operand(*info, name.c_str()) ||
                                 other_dtype(*info, name.c_str()) != DType::none)) ||
                    (scalar && scalar->type == ScalarType::boolean);
  if (option == "--json" || option == "--list" || option == "--certificates") {
    if (word.joined) misuse(option + " takes no value");
    json |= option == "--json";
    return;
  }
  const bool general = option == "--op" || option == "--arch" || option == "--device" ||
                       (!list && (option == "--dtype" || option == "--multiprocessors" || option == "--hint"));
  if (!general && !flag && !scalar && !(of_call && is_size(*info, name)))
    misuse("unknown option " + option + " of " + (certificates ? "--certificates" : list ? "--list" : info->name));
  if (flag) {
    add(option, name, word.joined ? number(option, word.value, 0, 1, true) : 1);
    return;
  }
  if (!word.joined && *index + 1 < count && strncmp(arguments[*index + 1], "--", 2)) word.value = arguments[++*index];
  if (!word.value || !*word.value) misuse(option + " needs a value");
  if (option == "--arch")
    add_archs(word.value);
  else if (option == "--device")
    add_device(word.value);
  else if (option == "--op")
    once(option);
  else if (option == "--hint")
    add_hint(word.value);
  else if (option == "--dtype")
    once(option), request.dtype = word.value;
  else if (option == "--multiprocessors")
    request.multiprocessors = static_cast<int>(number(option, word.value, 1, INT_MAX, true)), once(option);
  else if (scalar && value_named(*scalar, word.value) >= 0)
    add(option, name, value_named(*scalar, word.value));
  else if (scalar && !scalar->values.empty() && !isdigit(*word.value))
    misuse(option + " takes" + operand_of(*scalar) + ", not '" + word.value + "'");
  else if (scalar)
    add(option, name, number(option, word.value, -HUGE_VAL, HUGE_VAL, scalar->type == ScalarType::i32));
  else
    add(option, name, number(option, word.value, 0, 0x1p53, true));
}

void Options::once(const std::string& option) {
  if (!given_.insert(option).second) misuse(option + " is given twice");
}

void Options::add(const std::string& option, const std::string& name, double value) {
  if (!given_.insert(name).second) misuse(option + " is given twice");
  names_.push_back(name);
  numbers_.push_back(value);
}

void Options::add_hint(const char* text) {
  if (hints_.parse(text) != Error::success) misuse("--hint: " + std::string(last_error_message()));
  request.hints = &hints_;
}

void Options::add_archs(const std::string& list_of_them) {
  for (size_t from = 0; from <= list_of_them.size();) {
    const size_t end = std::min(list_of_them.find(',', from), list_of_them.size());
    const std::string arch = list_of_them.substr(from, end - from);
    if (arch.empty()) misuse("--arch has an empty name in '" + list_of_them + "'");
    add_target({arch, ""});
    from = end + 1;
  }
}

void Options::add_device(const std::string& part_of_name) {
  std::vector<Target> found;
  std::string all, matching;
  for (int arch = 0; arch < kArchCount; ++arch)
    for (const ProductInfo& product : products(arch)) {
      all += (all.empty() ? "" : ", ") + std::string(product.name);
      if (!strcasestr(product.name, part_of_name.c_str())) continue;
      const Target target = {kArchs[arch].arch, product.name};
      if (!strcasecmp(product.name, part_of_name.c_str())) return add_target(target);
      found.push_back(target);
      matching += (matching.empty() ? "" : ", ") + target.product;
    }
  if (found.empty()) misuse("no product has '" + part_of_name + "' in its name: choose from " + all);
  if (found.size() > 1) misuse("several products have '" + part_of_name + "' in their names: " + matching);
  add_target(found[0]);
}

void Options::add_target(const Target& target) {
  if (std::find(targets.begin(), targets.end(), target) == targets.end()) targets.push_back(target);
}

}  // namespace aotriton::v2::explain_main
