#include "python/named_hints.h"

#include <string>

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

std::string type_of(py::handle value) { return py::cast<std::string>(py::type::handle_of(value).attr("__name__")); }

// The value of a hint as its text has it.
std::string text_of(const std::string& name, py::handle value) {
  if (py::isinstance<py::bool_>(value)) return py::cast<bool>(value) ? "1" : "0";
  if (py::isinstance<py::int_>(value) || py::isinstance<py::str>(value)) return py::str(value);
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value))
    throw py::type_error("hints: " + name + " must be text, a whole number, a flag or a list of names, got " +
                         type_of(value));
  std::string names;
  for (const py::handle one : value) {
    if (!py::isinstance<py::str>(one))
      throw py::type_error("hints: " + name + " must be a list of names, and has one of type " + type_of(one));
    names += (names.empty() ? "" : ",") + py::cast<std::string>(one);
  }
  return names;
}

// One hint of the text: name=value.
std::string hint_text(py::handle name, py::handle value) {
  if (!py::isinstance<py::str>(name)) throw py::type_error("hints: a name must be text, got " + type_of(name));
  const auto own = py::cast<std::string>(name);
  const std::string word = own + "=" + text_of(own, value);
  if (own.empty() || own.find('=') != std::string::npos || word.find_first_of(" \t\n\r") != std::string::npos)
    throw py::value_error("hints: " + own + " has a blank in its value, or is no name");
  return word;
}

}  // namespace

hints hints_of(py::handle given) {
  std::string text;
  if (py::isinstance<py::str>(given)) {
    text = py::cast<std::string>(given);
  } else if (py::isinstance<py::dict>(given)) {
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(given))
      if (!value.is_none()) text += hint_text(name, value) + " ";
  } else {
    throw py::type_error("hints must be text or a dict, got " + type_of(given));
  }
  if (text.find('\0') != std::string::npos) throw py::value_error("hints: the text has a zero in it");
  hints made;
  if (made.parse(text.c_str()) != Error::success) throw py::value_error(last_error_message());
  return made;
}

py::dict outcomes_of(std::span<const aotriton_hint_outcome> outcomes) {
  using py::literals::operator""_a;
  py::dict made;
  for (const aotriton_hint_outcome& one : outcomes)
    made[py::str(one.name)] = py::dict("honoured"_a = one.honoured != 0, "why"_a = one.why);
  return made;
}

}  // namespace aotriton::v2::python
