// From the program of a kernel, as codegen/program.py makes it, to descriptions like the generated ones.
#pragma once

#include <pybind11/pybind11.h>

#include <deque>
#include <string>
#include <vector>

#include "program/program.h"

namespace aotriton::v2::python {

// One kernel and as much of its operator as a launch needs. Nothing may be moved: descriptions point into it.
class OwnedProgram {
 public:
  // `program`: what launch_program() returns. KeyError or ValueError where it is not as it should be.
  explicit OwnedProgram(const pybind11::dict& program);
  OwnedProgram(const OwnedProgram&) = delete;
  OwnedProgram& operator=(const OwnedProgram&) = delete;

  const OperatorInfo& info() const { return operator_; }
  const KernelInfo& kernel() const { return kernel_; }

  // Of each choice, the index of the value that names leave out; -1 where there is none.
  const std::vector<int>& defaults() const { return defaults_; }

 private:
  const char* keep(const pybind11::handle& text);
  Expression code(const pybind11::handle& steps);
  std::span<const OperandInfo> operands(const pybind11::handle& rows, std::vector<OperandInfo>& into);
  template <class T>
  std::span<const T> numbers(const pybind11::handle& values, std::deque<std::vector<T>>& into);

  std::deque<std::string> texts_;
  std::deque<std::vector<Instruction>> codes_;
  std::deque<std::vector<uint8_t>> dims_;
  std::deque<std::vector<int64_t>> values_;
  std::deque<std::vector<const char*>> names_;
  std::vector<OperandInfo> operands_, workspace_;
  std::vector<ScalarInfo> scalars_;
  std::vector<Argument> arguments_;
  std::vector<GuardInfo> guards_;
  std::vector<ChoiceInfo> choices_;
  std::vector<int> defaults_;
  KernelInfo kernel_ = {};
  OperatorInfo operator_ = {};
};

}  // namespace aotriton::v2::python
