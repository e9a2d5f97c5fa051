// From the command line to what it asks for.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "launch/request.h"

namespace aotriton::v2::explain_main {

// The options of one run. Nothing may be copied: the request points into it.
struct Options {
  // A GPU that is asked about. Without a product: the usual one, or with --list all of them.
  struct Target {
    std::string arch, product;
    bool operator==(const Target&) const = default;
  };

  ExplainRequest request;              // without a target
  const OperatorInfo* info = nullptr;  // null where what the build has is asked about without --op
  std::vector<Target> targets;
  bool json = false, list = false;  // `list`: no call, but what the build has is asked about
  bool certificates = false;        // of that, the images' certificates

  // Prints help or the version and exits where they are asked for; exits with status 2 where an option is wrong.
  Options(int count, char** arguments);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

 private:
  void take(char** arguments, int count, int* index);
  void once(const std::string& option);
  void add(const std::string& option, const std::string& name, double value);
  void add_hint(const char* text);
  void add_archs(const std::string& list_of_them);
  void add_device(const std::string& part_of_name);
  void add_target(const Target& target);

  std::set<std::string> given_;
  std::vector<std::string> names_;
  std::vector<double> numbers_;
  std::vector<Named> values_;
  hints hints_;
};

}  // namespace aotriton::v2::explain_main
