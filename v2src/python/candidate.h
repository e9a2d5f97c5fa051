// From an image's bytes and its metadata to a Candidate that owns them.
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <string>

#include "flash/candidate.h"

namespace aotriton::v2::python {

class Candidate {
 public:
  // `metadata` as the image store's json; ValueError or KeyError where it, the kernel or a psel is not as it should be.
  Candidate(const std::string& kernel, const pybind11::bytes& binary, const pybind11::dict& metadata,
            const std::map<std::string, int32_t>& psels);
  ~Candidate();
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  flash::Candidate& get() { return candidate_; }
  const std::string& name() const { return name_; }

 private:
  std::string kernel_, binary_, name_, entry_, arch_;
  flash::Candidate candidate_;
};

}  // namespace aotriton::v2::python
