#include "python/owned_program.h"

#include <map>

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

const std::map<std::string, Code> kCodes = {
    {"constant", Code::constant},
    {"size", Code::size},
    {"scalar", Code::scalar},
    {"tunable", Code::tunable},
    {"present", Code::present},
    {"transposed", Code::transposed},
    {"dtype", Code::dtype},
    {"addressing", Code::addressing},
    {"other_dtype", Code::other_dtype},
    {"add", Code::add},
    {"multiprocessors", Code::multiprocessors},
    {"subtract", Code::subtract},
    {"multiply", Code::multiply},
    {"minimum", Code::minimum},
    {"ceil_divide", Code::ceil_divide},
    {"maximum", Code::maximum},
    {"at_most", Code::at_most},
    {"equal", Code::equal},
    {"both", Code::both},
    {"negate", Code::negate},
    {"lowest_bit", Code::lowest_bit},
    {"choose", Code::choose},
};
const std::map<std::string, Pass> kPasses = {
    {"tensor", Pass::tensor}, {"stride", Pass::stride}, {"i32", Pass::i32}, {"i64", Pass::i64}, {"fp32", Pass::fp32}};
const std::map<std::string, Layout> kLayouts = {
    {"rows", Layout::rows}, {"contiguous", Layout::contiguous}, {"strided", Layout::strided}};
const std::map<std::string, ScalarType> kScalarTypes = {
    {"fp32", ScalarType::fp32}, {"i32", ScalarType::i32}, {"bool", ScalarType::boolean}};

template <class Value>
Value named(const std::map<std::string, Value>& among, const py::handle& name) {
  const auto found = among.find(py::cast<std::string>(name));
  if (found == among.end()) throw py::value_error("a program with an unknown word, " + py::cast<std::string>(name));
  return found->second;
}

// A number below `most`.
uint8_t index(const py::handle& value, size_t most) {
  const auto number = py::cast<size_t>(value);
  if (number >= most) throw py::value_error("a program with a number that is out of range");
  return static_cast<uint8_t>(number);
}

}  // namespace

const char* OwnedProgram::keep(const py::handle& text) {
  return texts_.emplace_back(py::cast<std::string>(text)).c_str();
}

Expression OwnedProgram::code(const py::handle& steps) {
  auto& made = codes_.emplace_back();
  for (const py::handle step : steps) {
    const auto pair = py::cast<py::tuple>(step);
    made.push_back({named(kCodes, pair[0]), py::cast<int32_t>(pair[1])});
  }
  return {made};
}

template <class T>
std::span<const T> OwnedProgram::numbers(const py::handle& values, std::deque<std::vector<T>>& into) {
  auto& made = into.emplace_back();
  for (const py::handle value : values) made.push_back(py::cast<T>(value));
  return made;
}

std::span<const OperandInfo> OwnedProgram::operands(const py::handle& rows, std::vector<OperandInfo>& into) {
  for (const py::handle row : rows) {
    const auto sizes = [&](const char* key) {
      auto& dims = dims_.emplace_back();
      for (const py::handle dim : row[key]) dims.push_back(index(dim, kMaxSizes));
      if (dims.size() > kMaxRank) throw py::value_error("a program with an operand of too many dimensions");
      return std::span<const uint8_t>(dims);
    };
    into.push_back({.name = keep(row["name"]),
                    .dims = sizes("dims"),
                    .dtype = static_cast<DType>(py::cast<int32_t>(row["dtype"])),
                    .layout = named(kLayouts, row["layout"]),
                    .written = py::cast<bool>(row["written"]),
                    .optional = py::cast<bool>(row["optional"]),
                    .alignment = py::cast<uint16_t>(row["alignment"]),
                    .if_empty = py::cast<float>(row["if_empty"]),
                    .paged_dims = sizes("paged_dims"),
                    .other_dtypes = py::cast<uint16_t>(row["other_dtypes"])});
  }
  return into;
}

OwnedProgram::OwnedProgram(const py::dict& program) {
  const py::dict of_operator = program["operator"], of_kernel = program["kernel"];
  auto& sizes = names_.emplace_back();
  for (const py::handle size : of_operator["sizes"]) sizes.push_back(keep(size));
  operator_.name = keep(of_operator["name"]);
  operator_.sizes = sizes;
  operator_.given_sizes = py::cast<size_t>(of_operator["given_sizes"]);
  operator_.operands = operands(of_operator["operands"], operands_);
  operator_.workspace = operands(of_operator["workspace"], workspace_);
  for (const py::handle row : of_operator["scalars"]) {
    auto& values = names_.emplace_back();
    for (const py::handle value : row["values"]) values.push_back(keep(value));
    scalars_.push_back({keep(row["name"]), named(kScalarTypes, row["type"]),
                        row["default"].is_none() ? kNotGiven : py::cast<float>(row["default"]),
                        py::cast<bool>(row["internal"]), values});
  }
  operator_.scalars = scalars_;
  operator_.dtypes = numbers<int64_t>(of_operator["dtypes"], values_);
  if (const int slot = py::cast<int>(of_operator["block_table"]); slot >= 0)
    operator_.block_table = index(of_operator["block_table"], operator_.operands.size());
  if (sizes.size() > kMaxSizes || operator_.given_sizes > sizes.size() || operator_.slots() > kMaxOperands ||
      scalars_.size() > kMaxScalars)
    throw py::value_error("a program of an operator that is too large");

  for (const py::handle row : of_kernel["arguments"])
    arguments_.push_back({.pass = named(kPasses, row["kind"]),
                          .block = py::cast<bool>(row["block"]),
                          .slot = index(row["slot"], kMaxOperands),
                          .dim = index(row["dim"], kMaxRank),
                          .value = code(row["value"]),
                          .levels = py::cast<uint8_t>(row["levels"])});
  for (const py::handle pair : of_kernel["uses"]) {
    const auto use = py::cast<py::tuple>(pair);
    const uint32_t bit = uint32_t{1} << index(use[0], operator_.slots());
    kernel_.uses.all |= bit;
    if (py::cast<bool>(use[1])) kernel_.uses.strided |= bit;
  }
  if (py::cast<bool>(of_kernel["steered"])) kernel_.uses.strided |= kSteered;
  for (const py::handle row : of_kernel["guards"]) guards_.push_back({code(row["condition"]), keep(row["why"])});
  for (const py::handle row : of_kernel["choices"]) {
    auto& texts = names_.emplace_back();
    for (const py::handle text : row["texts"]) texts.push_back(keep(text));
    choices_.push_back({.name = keep(row["name"]),
                        .value = code(row["value"]),
                        .round_up = py::cast<bool>(row["round_up"]),
                        .values = numbers<int64_t>(row["values"], values_),
                        .texts = texts});
    defaults_.push_back(py::cast<int>(row["default"]));
  }
  auto& tunables = names_.emplace_back();
  for (const py::handle tunable : of_kernel["tunables"]) tunables.push_back(keep(tunable));
  const py::sequence grid = of_kernel["grid"];
  if (grid.size() != 3 || tunables.size() > kMaxTunables || choices_.size() > kMaxChoices)
    throw py::value_error("a program of a kernel that is too large");
  kernel_.name = keep(of_kernel["name"]);
  kernel_.arguments = arguments_;
  for (size_t axis = 0; axis < 3; ++axis) kernel_.grid[axis] = code(grid[axis]);
  kernel_.guards = guards_;
  kernel_.choices = choices_;
  kernel_.tunables = tunables;
}

}  // namespace aotriton::v2::python
