#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "call/gpu.h"
#include "explain/format.h"
#include "explain/print.h"
#include "program/registry.h"

namespace aotriton::v2::explain_main {

namespace {

// The functionals of one kernel on one arch that this build has.
struct Coverage {
  const KernelInfo& kernel;
  std::vector<const Lut*> luts;
  std::vector<int> godel_numbers;
  size_t images = 0;
  // Of each choice, the indices of the values that occur.
  std::vector<std::set<size_t>> values;

  Coverage(const KernelInfo& of, size_t arch) : kernel(of), values(of.choices.size()) {
    const KernelTable* table = arch < of.tables.size() ? of.tables[arch] : nullptr;
    if (!table) return;
    images = table->images.size();
    for (size_t number = 0; number < table->luts.size(); ++number) {
      if (!table->luts[number]) continue;
      luts.push_back(table->luts[number]);
      godel_numbers.push_back(static_cast<int>(number));
      size_t rest = number;
      for (size_t i = of.choices.size(); i--; rest /= of.choices[i].values.size())
        values[i].insert(rest % of.choices[i].values.size());
    }
  }
};

// An arch, and the products of it that are asked about by their numbers.
struct Listed {
  size_t arch;
  std::vector<size_t> products;

  const char* name() const { return kArchs[arch].arch; }
  const char* product(size_t number) const { return abi1::products(static_cast<int>(arch))[number].name; }
};

// Cells by provenance, on one product.
std::map<std::string, int> provenances_of(const std::vector<const Lut*>& luts, size_t product) {
  std::map<std::string, int> counts;
  for (const Lut* lut : luts) {
    const ProductTable& table = lut->products[product];
    for (size_t cell = 0; cell < table.index.size(); ++cell) ++counts[provenance_name(table.origin(cell).provenance)];
  }
  return counts;
}

std::string cells_of(const std::vector<const Lut*>& luts, size_t product) {
  size_t cells = 0;
  for (const Lut* lut : luts) cells += lut->products[product].index.size();
  std::string line = std::to_string(cells) + (cells == 1 ? " cell:" : " cells:");
  for (const auto& [name, count] : provenances_of(luts, product)) line += text(" %d %s", count, name.c_str());
  return line;
}

// One list for all functionals of a kernel, which have the same bins.
std::string bins_of(const Coverage& coverage) {
  std::string line;
  for (size_t i = 0; i < coverage.kernel.keys.size(); ++i) {
    line += text("%s%s=", i ? " " : "", coverage.kernel.keys[i].name);
    for (const int32_t bin : coverage.luts[0]->bins[i]) line += text("%s%d", line.back() == '=' ? "" : ",", bin);
  }
  return line;
}

std::string values_of(const Coverage& coverage) {
  std::string line;
  for (size_t i = 0; i < coverage.values.size(); ++i) {
    line += text("%s%s=", i ? " " : "", coverage.kernel.choices[i].name);
    for (const size_t value : coverage.values[i])
      line += text("%s%s", line.back() == '=' ? "" : ",", coverage.kernel.choices[i].texts[value]);
  }
  return line;
}

void list_kernel(const Coverage& coverage, const Listed& listed, bool each) {
  printf("    %s %s: ", coverage.kernel.name, listed.name());
  if (coverage.luts.empty()) {
    puts("not in this build");
    return;
  }
  const size_t count = coverage.luts.size();
  printf("%zu functional%s, %zu image%s\n", count, count == 1 ? "" : "s", coverage.images,
         coverage.images == 1 ? "" : "s");
  printf("      choices %s\n      bins    %s\n", values_of(coverage).c_str(), bins_of(coverage).c_str());
  for (const size_t product : listed.products)
    printf("      %s: %s\n", listed.product(product), cells_of(coverage.luts, product).c_str());
  for (size_t i = 0; each && i < count; ++i) {
    printf("      F%d %s\n", coverage.godel_numbers[i], coverage.luts[i]->functional);
    for (const size_t product : listed.products)
      printf("        %s: %s\n", listed.product(product), cells_of({coverage.luts[i]}, product).c_str());
  }
}

void list_kernel_json(const Coverage& coverage, const Listed& listed) {
  printf("{\"kernel\": %s, \"arch\": %s, \"images\": %zu, \"bins\": {", quoted(coverage.kernel.name).c_str(),
         quoted(listed.name()).c_str(), coverage.images);
  for (size_t i = 0; !coverage.luts.empty() && i < coverage.kernel.keys.size(); ++i) {
    printf("%s%s: [", i ? ", " : "", quoted(coverage.kernel.keys[i].name).c_str());
    const std::span<const int32_t> bins = coverage.luts[0]->bins[i];
    for (size_t bin = 0; bin < bins.size(); ++bin) printf("%s%d", bin ? ", " : "", bins[bin]);
    printf("]");
  }
  printf("}, \"functionals\": [");
  for (size_t i = 0; i < coverage.luts.size(); ++i) {
    printf("%s{\"functional\": %s, \"godel_number\": %d, \"cells\": {", i ? ", " : "",
           quoted(coverage.luts[i]->functional).c_str(), coverage.godel_numbers[i]);
    for (const size_t product : listed.products) {
      printf("%s%s: {", product == listed.products[0] ? "" : ", ", quoted(listed.product(product)).c_str());
      const char* comma = "";
      for (const auto& [name, count] : provenances_of({coverage.luts[i]}, product))
        printf("%s%s: %d", comma, quoted(name.c_str()).c_str(), count), comma = ", ";
      printf("}");
    }
    printf("}}");
  }
  printf("]}");
}

void list_operator(const OperatorInfo& info, const std::vector<Listed>& archs, const Options& options) {
  if (!options.json) printf("\n%s\n", info.name);
  if (options.json) printf("{\"op\": %s, \"backends\": [", quoted(info.name).c_str());
  std::set<const KernelInfo*> seen;
  for (const BackendInfo& backend : info.backends) {
    const bool first = &backend == info.backends.data();
    const char* const needs = backend.workspace.empty() ? "" : ", needs a workspace";
    if (options.json)
      printf("%s{\"name\": %s, \"needs_workspace\": %s, \"kernels\": [", first ? "" : ", ",
             quoted(backend.name).c_str(), *needs ? "true" : "false");
    else
      printf("  backend %s%s\n", backend.name, needs);
    const char* comma = "";
    for (const KernelInfo* kernel : backend.kernels) {
      if (!seen.insert(kernel).second && !options.json) {
        printf("    %s as above\n", kernel->name);
        continue;
      }
      for (const Listed& listed : archs) {
        const Coverage coverage(*kernel, listed.arch);
        if (options.json)
          printf("%s", comma), list_kernel_json(coverage, listed), comma = ",\n  ";
        else
          list_kernel(coverage, listed, options.info != nullptr);
      }
    }
    if (options.json) printf("]}");
  }
  if (options.json) printf("]}");
}

// The product of an arch by its name, or all of them where that is empty.
void add_listed(size_t arch, const std::string& product, std::vector<Listed>* archs) {
  auto listed = std::find_if(archs->begin(), archs->end(), [&](const Listed& one) { return one.arch == arch; });
  if (listed == archs->end()) listed = archs->insert(listed, Listed{arch, {}});
  for (size_t number = 0; number < products(static_cast<int>(arch)).size(); ++number) {
    std::vector<size_t>& known = listed->products;
    const bool asked = product.empty() || product == listed->product(number);
    if (asked && std::find(known.begin(), known.end(), number) == known.end()) known.push_back(number);
  }
}

std::string names_of(const std::vector<Listed>& archs, bool json) {
  std::string names;
  for (const Listed& listed : archs)
    names += (names.empty() ? "" : ", ") + (json ? quoted(listed.name()) : std::string(listed.name()));
  return names;
}

}  // namespace

int unknown_arch(const std::string& arch, std::span<const char* const> all) {
  std::string names;
  for (const char* one : all) names += (names.empty() ? "" : ", ") + std::string(one);
  fprintf(stderr, "aotriton-explain: %s: list: unknown arch %s: choose from %s\n", error_name(Error::unknown_arch),
          arch.c_str(), names.c_str());
  return 2;
}

int list(const Options& options) {
  const std::span<const char* const> all = arch_names();
  std::vector<Options::Target> asked = options.targets;
  for (size_t i = 0; options.targets.empty() && i < all.size(); ++i) asked.push_back({all[i], ""});
  std::vector<Listed> archs;
  for (const Options::Target& target : asked) {
    const auto found = std::find(all.begin(), all.end(), target.arch);
    if (found == all.end()) return unknown_arch(target.arch, all);
    add_listed(static_cast<size_t>(found - all.begin()), target.product, &archs);
  }
  if (options.json)
    printf("{\"version\": %s, \"archs\": [%s], \"products\": {", quoted(aotriton_version()).c_str(),
           names_of(archs, true).c_str());
  else
    printf("aotriton %s for %s\n", aotriton_version(), names_of(archs, false).c_str());
  for (const Listed& listed : archs) {
    std::string products;
    for (const size_t number : listed.products) {
      const char* const name = listed.product(number);
      products += (products.empty() ? "" : ", ") + (options.json ? quoted(name) : std::string(name));
    }
    if (options.json)
      printf("%s%s: [%s]", &listed == archs.data() ? "" : ", ", quoted(listed.name()).c_str(), products.c_str());
    else
      printf("  %s: %s\n", listed.name(), products.c_str());
  }
  if (options.json) printf("}, \"operators\": [");
  const char* comma = "";
  any_operator([&](const OperatorInfo& info) {
    if (options.info && options.info != &info) return false;
    if (options.json) printf("%s", comma);
    list_operator(info, archs, options);
    comma = ",\n ";
    return false;
  });
  if (options.json) printf("]}\n");
  return 0;
}

}  // namespace aotriton::v2::explain_main
