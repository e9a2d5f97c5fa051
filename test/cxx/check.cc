#include "check.h"

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace check {

namespace {

std::vector<std::pair<const char*, void (*)()>>& tests() {
  static std::vector<std::pair<const char*, void (*)()>> all;
  return all;
}

int failures = 0;

}  // namespace

Test::Test(const char* claim, void (*body)()) { tests().emplace_back(claim, body); }

void failed(const char* file, int line, const std::string& what) {
  ++failures;
  const char* name = strrchr(file, '/');
  printf("  %s:%d: %s\n", name ? name + 1 : file, line, what.c_str());
}

}  // namespace check

int main() {
  int wrong = 0;
  for (const auto& [claim, body] : check::tests()) {
    const int before = check::failures;
    body();
    wrong += check::failures != before;
    printf("%s %s\n", check::failures == before ? "ok  " : "FAIL", claim);
  }
  printf("%zu tests, %d failed\n", check::tests().size(), wrong);
  return wrong || check::tests().empty();
}
