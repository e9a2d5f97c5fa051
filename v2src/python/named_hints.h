// From Python's hints, as text or by name, to the struct of c.h, and from what became of them to Python.
#pragma once

#include <aotriton/types.h>
#include <pybind11/pybind11.h>

#include <span>

namespace aotriton::v2::python {

// Hints as text, such as "schedule=dfs deterministic", or as a dict of them: {"schedule": "dfs", "deterministic": True,
// "exclude": ["hopper"]}, where None is one that is not given. TypeError for what is neither, and for a value of
// another type; ValueError for one that the hint cannot have. Both name the hint.
hints hints_of(pybind11::handle given);

// {name: {"honoured": bool, "why": str}}
pybind11::dict outcomes_of(std::span<const aotriton_hint_outcome> outcomes);

}  // namespace aotriton::v2::python
