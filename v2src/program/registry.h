// The operators that a process has: those of the library's own families, and of families that were built beside it.
#pragma once

#include "program/program.h"

namespace aotriton::v2::inline abi1 {

// A family that its own library adds when it is loaded.
struct AddedFamily {
  const FamilyInfo* family;
  AddedFamily* next;
};
void add_family(AddedFamily& family) noexcept;

// Runs step(operator) -> bool for each operator, until one returns true; whether one did.
template <class Step>
bool any_operator(Step step) noexcept;

AddedFamily* added_families() noexcept;

template <class Step>
bool any_operator(Step step) noexcept {
  const auto any_of = [&](const FamilyInfo& family) {
    for (const OperatorInfo* info : family.operators)
      if (step(*info)) return true;
    return false;
  };
  for (const FamilyInfo* family : families())
    if (any_of(*family)) return true;
  for (const AddedFamily* added = added_families(); added; added = added->next)
    if (any_of(*added->family)) return true;
  return false;
}

}  // namespace aotriton::v2::inline abi1
