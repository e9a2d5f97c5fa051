// The Python module aotriton._binding: each operator as a function, and launches of explicit candidates for the tuner.
#include <aotriton/runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dispatch/explain.h"
#include "launch/device.h"
#include "launch/load.h"
#include "launch/prepared.h"
#include "launch/request.h"
#include "launch/run.h"
#include "program/registry.h"
#include "python/bound_call.h"
#include "python/named_hints.h"
#include "python/owned_candidate.h"

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

// Python's arguments of a call: operands by position or name, then the workspace where there is one; scalars and
// features by name. Returns what `stream` was.
py::object bind(const OperatorInfo& info, BoundCall& call, const py::args& args, const py::kwargs& kwargs) {
  const size_t operands = info.operands.size(), slots = operands + info.takes_workspace();
  const size_t by_position = info.plain_operands() + slots - operands;
  if (args.size() > by_position)
    throw py::type_error(std::string(info.name) + " takes " + std::to_string(by_position) +
                         " tensors by position, got " + std::to_string(args.size()));
  std::vector<bool> given(slots);
  const auto set = [&](size_t slot, py::handle tensor) {
    if (given[slot]) throw py::type_error(std::string(info.name) + " got a tensor twice");
    given[slot] = true;
    if (slot < operands)
      call.set_operand(slot, tensor);
    else
      call.set_workspace(tensor);
  };
  for (size_t i = 0; i < args.size(); ++i) set(i < info.plain_operands() ? i : operands, args[i]);
  py::object stream = py::none();
  for (const auto& [key, value] : kwargs) {
    const auto name = py::cast<std::string>(key);
    const int slot = find_slot(info, name), scalar = find_scalar(info, name);
    if (name == "stream")
      stream = py::reinterpret_borrow<py::object>(value);
    else if (name == "hints")
      call.set_hints(value);
    else if (name == "workspace" && slots > operands)
      set(operands, value);
    else if (slot >= 0 && static_cast<size_t>(slot) < operands)
      set(static_cast<size_t>(slot), value);
    else if (scalar >= 0 && !info.scalars[static_cast<size_t>(scalar)].internal)
      call.set_scalar(static_cast<size_t>(scalar), value);
    else
      throw py::type_error(std::string(info.name) + " has no argument " + name);
  }
  for (size_t slot = 0; slot < operands; ++slot)
    if (!given[slot] && !info.operands[slot].optional)
      throw py::type_error(std::string(info.name) + " misses its tensor " + info.operands[slot].name);
  return stream;
}

// What a scalar is where a caller gives none.
py::object fallback_of(const ScalarInfo& scalar) {
  if (!is_given(scalar.fallback)) return py::none();
  if (!scalar.values.empty()) return py::str(scalar.values[static_cast<size_t>(scalar.fallback)]);
  if (scalar.type == ScalarType::fp32) return py::float_(static_cast<double>(scalar.fallback));
  if (scalar.type == ScalarType::i32) return py::int_(static_cast<int64_t>(scalar.fallback));
  return py::bool_(scalar.fallback != 0);
}

// "scale(x, bias=None, y, workspace=None, *, factor=1.0, exact=False, hints=None, stream=None)"
std::string signature_of(const OperatorInfo& info) {
  std::string text = std::string(info.name) + "(";
  const auto add = [&](const OperandInfo& operand) {
    text += std::string(operand.name) + (operand.optional ? "=None, " : ", ");
  };
  for (size_t slot = 0; slot < info.plain_operands(); ++slot) add(info.operands[slot]);
  if (info.takes_workspace()) text += "workspace=None, ";
  text += "*, ";
  for (size_t slot = info.plain_operands(); slot < info.operands.size(); ++slot) add(info.operands[slot]);
  for (const ScalarInfo& scalar : info.scalars)
    if (!scalar.internal) text += std::string(scalar.name) + "=" + std::string(py::repr(fallback_of(scalar))) + ", ";
  return text + "hints=None, stream=None)";
}

void bind_operator(py::module_& m, const OperatorInfo& info) {
  const std::string name = info.name, signature = signature_of(info);
  std::string doc = signature +
                    "\n\nLaunches on `stream` (None: torch's current stream of the tensors' device, or the "
                    "default one) and returns without waiting.\n"
                    "`hints`: what you wish of the call, as text such as 'schedule=dfs deterministic' or as a dict.\n";
  for (const OperandInfo& operand : info.operands) {
    doc += std::string(operand.name) + ": [";
    for (size_t i = 0; i < operand.dims.size(); ++i) doc += std::string(i ? ", " : "") + info.sizes[operand.dims[i]];
    doc += std::string("]") + (operand.written ? ", written" : "") +
           (operand.layout == Layout::contiguous ? ", contiguous" : "") + "\n";
  }
  for (const ScalarInfo& scalar : info.scalars) {
    if (!is_given(scalar.fallback))
      doc += std::string(scalar.name) + ": None is one that is not given; see aotriton/c.h\n";
    if (scalar.values.empty()) continue;
    doc += std::string(scalar.name) + ": ";
    for (const char* const value : scalar.values) doc += "'" + std::string(value) + "', ";
    doc += "or 0 to " + std::to_string(scalar.values.size() - 1) + ", as in aotriton/c.h\n";
  }
  m.def(
      info.name,
      [&info](const py::args& args, const py::kwargs& kwargs) {
        BoundCall call(info);
        const py::object stream = bind(info, call, args, kwargs);
        call.run(stream, [](Call& bound, Stream on) { return run(bound, on); });
      },
      doc.c_str());
  m.def((name + "_workspace_size").c_str(),
        [&info](const py::args& args, const py::kwargs& kwargs) {
          BoundCall call(info);
          const py::object stream = bind(info, call, args, kwargs);
          size_t bytes = 0;
          call.run(stream, [&](Call& bound, Stream on) { return workspace_size(bound, on, &bytes); });
          return bytes;
        },
        ("Bytes of workspace that " + signature + " needs on the tensors' device.").c_str());
  m.def((name + "_supported").c_str(),
        [&info](const py::args& args, const py::kwargs& kwargs) {
          BoundCall call(info);
          const py::object stream = bind(info, call, args, kwargs);
          bool answer = false;
          call.run(stream, [&](Call& bound, Stream on) {
            answer = supported(bound, on) == Error::success;
            return Error::success;
          });
          return answer;
        },
        ("Whether " + signature + " would run on the tensors' device.").c_str());
  m.def((name + "_hint_outcomes").c_str(),
        [&info](const py::args& args, const py::kwargs& kwargs) {
          BoundCall call(info);
          const py::object stream = bind(info, call, args, kwargs);
          HintOutcomes made;
          made.count = AOTRITON_MOST_OUTCOMES;
          call.run(stream, [&](Call& bound, Stream on) { return hint_outcomes(bound, on, made.list, &made.count); });
          return outcomes_of(std::span(made.list, made.count));
        },
        ("What becomes of each of the hints of " + signature +
         " on the tensors' device: {name: {'honoured': bool, 'why': str}}.")
            .c_str());
}

py::dict as_dict(const KernelChoice& choice) {
  using py::literals::operator""_a;
  py::list keys, padding, runners_up, backends;
  for (int i = 0; i < choice.key_count; ++i)
    keys.append(py::dict("name"_a = choice.keys[i].name, "value"_a = choice.keys[i].value,
                         "representative"_a = choice.keys[i].representative,
                         "beyond_last_bin"_a = choice.keys[i].value > choice.keys[i].representative));
  for (int i = 0; i < choice.padding_count; ++i)
    padding.append(py::dict("choice"_a = choice.paddings[i].choice, "value"_a = choice.paddings[i].value,
                            "padded"_a = choice.paddings[i].padded));
  for (int i = 0; i < choice.runner_up_count; ++i)
    runners_up.append(
        py::dict("config"_a = choice.runners_up[i].config, "median_us"_a = choice.runners_up[i].median_us));
  for (int i = 0; i < choice.backend_count; ++i) {
    const BackendState& state = choice.backend_states[i];
    backends.append(py::dict("name"_a = choice.backends[i].name, "median_us"_a = choice.backends[i].median_us,
                             "total_us"_a = state.total_us, "needs_workspace"_a = state.needs_workspace != 0,
                             "refusal"_a = state.refusal, "refusing_kernel"_a = state.kernel,
                             "refused_choice"_a = state.choice, "refused_value"_a = state.choice_value,
                             "predicted_us"_a = choice.backends_predicted_us[i]));
  }
  py::object certificate = py::none();
  if (choice.certificate_problems) {
    char day[32];
    format_day(choice.certificate_day, day, sizeof day);
    certificate = py::dict("product"_a = choice.certificate_product, "day"_a = day,
                           "problems"_a = choice.certificate_problems, "checks"_a = choice.certificate_checks,
                           "error"_a = choice.certificate_error, "allowed"_a = choice.certificate_allowed);
  }
  return py::dict("kernel"_a = choice.kernel, "arch"_a = choice.arch, "product"_a = choice.product,
                  "exact_product"_a = choice.exact_product != 0, "functional"_a = choice.functional,
                  "godel_number"_a = choice.godel_number, "keys"_a = keys, "padding"_a = padding,
                  "image"_a = choice.image, "tunables"_a = choice.tunables,
                  "compile_options"_a = choice.compile_options, "provenance"_a = provenance_of(choice),
                  "source"_a = choice.source, "median_us"_a = choice.median_us, "low_us"_a = choice.low_us,
                  "high_us"_a = choice.high_us, "shape"_a = choice.shape, "measured"_a = choice.measured,
                  "representative_is"_a = measured_name(measured_at(choice)), "runners_up"_a = runners_up,
                  "backend"_a = choice.backend, "total_us"_a = chosen_state(choice).total_us, "backends"_a = backends,
                  "predicted_us"_a = choice.predicted_us, "predicted_total_us"_a = choice.predicted_total_us,
                  "predicted_error"_a = choice.predicted_error, "model"_a = choice.model, "flops"_a = choice.flops,
                  "bin_image"_a = choice.bin_image, "bin_tunables"_a = choice.bin_tunables,
                  "bin_compile_options"_a = choice.bin_compile_options, "bin_median_us"_a = choice.bin_median_us,
                  "certificate"_a = certificate, "pieces"_a = choice.pieces,
                  "hints"_a = outcomes_of(std::span(choice.hints, static_cast<size_t>(choice.hint_count))));
}

// A size, or a scalar, which may be the name of a value.
double number_of(const OperatorInfo* info, const std::string& name, const py::handle& value) {
  const int scalar = info && py::isinstance<py::str>(value) ? find_scalar(*info, name) : -1;
  if (scalar >= 0) return value_of(*info, info->scalars[static_cast<size_t>(scalar)], py::cast<std::string>(value));
  try {
    return py::cast<double>(value);
  } catch (const py::cast_error&) {
    throw py::type_error("explain: " + name + " is " + std::string(py::repr(value)) + ", which must be a number");
  }
}

py::list explain_request(const std::string& op, const std::string& arch, const std::string& dtype, int multiprocessors,
                         const std::optional<std::string>& product, bool by_cell, const py::object& given_hints,
                         const py::kwargs& kwargs) {
  std::vector<std::string> names;
  std::vector<Named> values;
  const OperatorInfo* const info = find_operator(op.c_str());
  for (const auto& [key, value] : kwargs)
    if (!value.is_none()) names.push_back(py::cast<std::string>(key));
  for (const std::string& name : names) values.push_back({name.c_str(), number_of(info, name, kwargs[name.c_str()])});
  std::optional<hints> own;
  if (!given_hints.is_none()) own = hints_of(given_hints);
  Explanation explanation;
  // A variable of its own: g++ 13 fails on the braces as an argument.
  const ExplainRequest request = {.op = op.c_str(),
                                  .arch = arch.c_str(),
                                  .dtype = dtype.c_str(),
                                  .values = values,
                                  .multiprocessors = multiprocessors,
                                  .product = product ? product->c_str() : nullptr,
                                  .by_cell = by_cell,
                                  .hints = own ? &*own : nullptr};
  raise_if(explain(request, &explanation));
  py::list choices;
  for (size_t i = 0; i < explanation.kernel_count; ++i) choices.append(as_dict(explanation.kernels[i]));
  return choices;
}

// What is known of the current device.
Device current_device(const char* who) {
  Device found = {};
  raise_if(on_device(who, {}, [&](const Device& device) {
    found = device;
    return Error::success;
  }));
  return found;
}

void bind_runtime(py::module_& m) {
  m.def(
      "explain", explain_request, py::arg("op"), py::kw_only(), py::arg("arch"), py::arg("dtype"),
      py::arg("multiprocessors") = 0, py::arg("product") = py::none(), py::arg("by_cell") = false,
      py::arg("hints") = py::none(),
      "The kernels that a call of the operator `op` on contiguous tensors runs on `arch`, and why: one dict for each.\n"
      "`product`: such as 'NVIDIA H200', by default the arch's usual one, or that which is most like a GPU with so "
      "many\n"
      "`multiprocessors`.\n"
      "Sizes and scalars by name; rows=16 is every size whose name begins with rows_, transposed_x=True has the "
      "operand\n"
      "x lie by columns, sinks=True has the operand sinks given, which a call may leave out; float8_e4m3fn_k=True has "
      "k and v of this type; a scalar whose values "
      "have "
      "names takes those, too; None is one that is not given. dtype: "
      "'bf16' or 'bfloat16' and so on. `by_cell`: what the call's bin alone would choose, "
      "without\n"
      "predicted times. `hints`: as of a call; \"hints\" tells what becomes of them. Medians are of the bin's "
      "representative problem, which is\n"
      "'alike', or 'larger', 'smaller' or 'other' than the call. Needs no GPU.");
  m.def(
      "operators",
      [] {
        py::list names;
        any_operator([&](const OperatorInfo& info) {
          names.append(info.name);
          return false;
        });
        return names;
      },
      "Names of the operators.");
  m.def(
      "products",
      [] {
        py::dict archs;
        for (size_t arch = 0; arch < arch_names().size(); ++arch) {
          py::list names;
          for (const ProductInfo& product : products(static_cast<int>(arch))) names.append(product.name);
          archs[arch_names()[arch]] = names;
        }
        return archs;
      },
      "Names of the products that this build has tables for, by arch; the arch's usual one first.");
  m.def(
      "preload",
      [](uintptr_t stream) {
        Error error;
        {
          const py::gil_scoped_release release;
          error = preload(Stream{reinterpret_cast<void*>(stream)});
        }
        raise_if(error);
      },
      py::arg("stream") = 0, "Loads every image that fits the stream's device, ahead of graph capture.");
  m.def(
      "write_int64",
      [](uintptr_t memory, const std::vector<int64_t>& values, uintptr_t stream) {
        raise_if(write_int64(reinterpret_cast<int64_t*>(memory), values.data(), values.size(),
                             Stream{reinterpret_cast<void*>(stream)}));
      },
      py::arg("memory"), py::arg("values"), py::arg("stream") = 0,
      "Writes numbers of int64 to device memory at this address, 8-byte aligned, in the order of the stream.\n"
      "A captured graph writes the same ones each time.");
  m.def("version", version, "Version of the library.");
  m.def(
      "arch", [] { return current_device("arch").arch().arch; },
      "Architecture of the current device, such as 'sm_90'.");
  m.def(
      "product", [] { return current_device("product").facts.gpu.product_info().name; },
      "The product whose tables the current device gets, such as 'NVIDIA H200': its own, or the one that it is like.");
  m.def(
      "multiprocessors", [] { return current_device("multiprocessors").facts.gpu.multiprocessors; },
      "Number of multiprocessors of the current device.");
}

// Sets operands, scalars, and sizes that no operand has, by name.
void set_named(BoundCall& call, const OwnedCandidate& candidate, const py::dict& operands, const py::dict& scalars,
               const py::dict& sizes) {
  const OperatorInfo& info = candidate.info();
  for (const auto& [key, tensor] : operands) {
    const auto name = py::cast<std::string>(key);
    const int slot = find_slot(info, name);
    if (slot < 0) throw py::value_error(candidate.name() + ": " + info.name + " has no operand " + name);
    call.set_operand(static_cast<size_t>(slot), tensor);
  }
  for (const auto& [key, value] : scalars) {
    const auto name = py::cast<std::string>(key);
    const int scalar = find_scalar(info, name);
    if (scalar < 0) throw py::value_error(candidate.name() + ": " + info.name + " has no scalar " + name);
    call.set_scalar(static_cast<size_t>(scalar), value);
  }
  for (const auto& [key, value] : sizes) {
    const auto name = py::cast<std::string>(key);
    const int size = find_size(info, name);
    if (size < 0) throw py::value_error(candidate.name() + ": " + info.name + " has no size " + name);
    call.set_size(static_cast<size_t>(size), py::cast<int64_t>(value));
  }
  if (const char* const missing = call.missing_scalar())
    throw py::value_error(candidate.name() + " misses its scalar " + missing);
}

void launch_candidate(OwnedCandidate& candidate, const py::dict& operands, const py::dict& scalars,
                      const py::dict& sizes, const py::object& workspace, const py::object& stream) {
  BoundCall call(candidate.info());
  set_named(call, candidate, operands, scalars, sizes);
  call.set_workspace(workspace);
  call.run(stream, [&](Call& bound, Stream on) { return run(candidate.get(), bound, on); });
}

size_t workspace_of_candidate(OwnedCandidate& candidate, const py::dict& operands, const py::dict& scalars,
                              const py::dict& sizes, const py::object& stream) {
  BoundCall call(candidate.info());
  set_named(call, candidate, operands, scalars, sizes);
  size_t bytes = 0;
  call.run(stream, [&](Call& bound, Stream on) { return workspace_size(candidate.get(), bound, on, &bytes); });
  return bytes;
}

void bind_candidates(py::module_& m) {
  py::class_<OwnedCandidate>(m, "Candidate", "An image that is not in the archive, for launch().")
      .def(py::init<const py::dict&, const py::bytes&, const py::dict&, const std::map<std::string, int32_t>&>(),
           py::arg("program"), py::arg("binary"), py::arg("metadata"), py::arg("tunables"),
           "program: what aotriton.codegen.program.launch_program returns; metadata: as the image store's json.\n"
           "ValueError where something in it does not fit the kernel.")
      .def_property_readonly("name", &OwnedCandidate::name);
  m.def(
      "release",
      [](OwnedCandidate& candidate) {
        Error error;
        {
          const py::gil_scoped_release release;
          error = unload_image(candidate.get().image);
        }
        raise_if(error);
      },
      py::arg("candidate"), "Unloads the candidate from every device. No launch of it may be under way.");
  m.def(
      "launch", launch_candidate, py::arg("candidate"), py::arg("operands"), py::arg("scalars") = py::dict(),
      py::arg("sizes") = py::dict(), py::kw_only(), py::arg("workspace") = py::none(), py::arg("stream") = py::none(),
      "Launches a candidate on tensors by the names of its operator's operands and workspace tensors. `sizes`: those\n"
      "that none of the tensors has, such as the rows of keys in pages. `workspace`: as many bytes as "
      "workspace_size()\n"
      "says, for the image's programs alone; null is refused where there are any.");
  m.def("workspace_size", workspace_of_candidate, py::arg("candidate"), py::arg("operands"),
        py::arg("scalars") = py::dict(), py::arg("sizes") = py::dict(), py::kw_only(), py::arg("stream") = py::none(),
        "Bytes of scratch memory that this launch() of a candidate needs: its image's, for each program of the grid.");
}

}  // namespace

}  // namespace aotriton::v2::python

PYBIND11_MODULE(_binding, m) {
  using namespace aotriton::v2;
  using namespace aotriton::v2::python;
  m.doc() =
      "Kernels that were tuned ahead of time. Tensors are objects with data_ptr(), shape, stride() and dtype as\n"
      "torch's, or with __dlpack__; streams are integer handles.";
  make_error_type(m);
  any_operator([&](const OperatorInfo& info) {
    bind_operator(m, info);
    return false;
  });
  bind_runtime(m);
  bind_candidates(m);
}
