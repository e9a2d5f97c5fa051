// A test program in a few lines: TEST("claim") { CHECK(...); }. Brings main(), which exits with 1 where a check failed.
#pragma once

#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace check {

inline std::vector<std::pair<const char*, void (*)()>> tests;
inline int failures = 0;

struct Test {
  Test(const char* claim, void (*body)()) { tests.emplace_back(claim, body); }
};

inline void failed(const char* file, int line, const std::string& what) {
  ++failures;
  const char* name = strrchr(file, '/');
  printf("  %s:%d: %s\n", name ? name + 1 : file, line, what.c_str());
}

template <class T>
std::string show(const T& value) {
  std::ostringstream text;
  if constexpr (requires { text << value; })
    text << value;
  else
    text << static_cast<long long>(value);
  return text.str();
}

template <class A, class B>
void equal(const char* file, int line, const char* expression, const A& actual, const B& wanted) {
  if (!(actual == wanted))
    failed(file, line, std::string(expression) + " is " + show(actual) + ", not " + show(wanted));
}

inline void contains(const char* file, int line, const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) failed(file, line, "'" + text + "' does not contain '" + part + "'");
}

}  // namespace check

#define CHECK_JOIN2(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN2(a, b)
#define TEST(claim)                                                                          \
  static void CHECK_JOIN(test_, __LINE__)();                                                 \
  static const check::Test CHECK_JOIN(entry_, __LINE__)(claim, CHECK_JOIN(test_, __LINE__)); \
  static void CHECK_JOIN(test_, __LINE__)()

#define CHECK(condition) \
  (static_cast<bool>(condition) ? void() : check::failed(__FILE__, __LINE__, "not true: " #condition))
#define CHECK_EQ(actual, wanted) check::equal(__FILE__, __LINE__, #actual, (actual), (wanted))
#define CHECK_CONTAINS(text, part) check::contains(__FILE__, __LINE__, (text), (part))

int main() {
  int wrong = 0;
  for (const auto& [claim, body] : check::tests) {
    const int before = check::failures;
    body();
    wrong += check::failures != before;
    printf("%s %s\n", check::failures == before ? "ok  " : "FAIL", claim);
  }
  printf("%zu tests, %d failed\n", check::tests.size(), wrong);
  return wrong || check::tests.empty();
}
