// From an image's bytes, its metadata and its kernel's program to a candidate that owns them.
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <string>
#include <vector>

#include "launch/candidate.h"
#include "python/owned_program.h"

namespace aotriton::v2::python {

class OwnedCandidate {
 public:
  // `metadata` as the image store's json; ValueError or KeyError where it, the program or a tunable is not as it should
  // be.
  OwnedCandidate(const pybind11::dict& program, const pybind11::bytes& binary, const pybind11::dict& metadata,
                 const std::map<std::string, int32_t>& tunables);
  ~OwnedCandidate();
  OwnedCandidate(const OwnedCandidate&) = delete;
  OwnedCandidate& operator=(const OwnedCandidate&) = delete;

  Candidate& get() { return candidate_; }
  const OperatorInfo& info() const { return program_.info(); }
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] void wrong(const std::string& what) const;
  void read_functional(const std::string& text);
  void read_descriptors(const pybind11::list& rows);

  OwnedProgram program_;
  std::string binary_, name_, entry_;
  std::vector<DescriptorLayout> descriptors_;
  Candidate candidate_;
};

}  // namespace aotriton::v2::python
