// From the command line to what it asks for.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "request.h"

namespace aotriton::v2::explain_main {

// The options of one run. Nothing may be copied: the request points into it.
struct Options {
  ExplainRequest request;              // without an arch
  const OperatorInfo* info = nullptr;  // null where --list is given without --op
  std::vector<std::string> archs;
  bool json = false, list = false;

  // Prints help or the version and exits where they are asked for; exits with status 2 where an option is wrong.
  Options(int count, char** arguments);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

 private:
  void take(char** arguments, int count, int* place);
  void once(const std::string& option);
  void add(const std::string& option, const std::string& name, double value);
  void add_archs(const std::string& list_of_them);

  std::set<std::string> given_;
  std::vector<std::string> names_;
  std::vector<double> numbers_;
  std::vector<Named> values_;
};

}  // namespace aotriton::v2::explain_main
