// A test program in a few lines: TEST("claim") { CHECK(...); }. Exits with 1 where a check failed.
#pragma once

#include <sstream>
#include <string>

namespace check {

struct Test {
  Test(const char* claim, void (*body)());
};

void failed(const char* file, int line, const std::string& what);

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
  if (!(actual == wanted)) failed(file, line, std::string(expression) + " is " + show(actual) + ", not " + show(wanted));
}

}  // namespace check

#define CHECK_JOIN2(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN2(a, b)
#define TEST(claim)                                                                   \
  static void CHECK_JOIN(test_, __LINE__)();                                          \
  static const check::Test CHECK_JOIN(entry_, __LINE__)(claim, CHECK_JOIN(test_, __LINE__)); \
  static void CHECK_JOIN(test_, __LINE__)()

#define CHECK(condition) \
  (static_cast<bool>(condition) ? void() : check::failed(__FILE__, __LINE__, "not true: " #condition))
#define CHECK_EQ(actual, wanted) check::equal(__FILE__, __LINE__, #actual, (actual), (wanted))
#define CHECK_CONTAINS(text, part)                                                                       \
  (std::string(text).find(part) != std::string::npos                                                     \
       ? void()                                                                                          \
       : check::failed(__FILE__, __LINE__, "'" + std::string(text) + "' does not contain '" + part + "'"))
