// The Python module pyaotriton over the public headers, and over explicit candidates for the tuner.
#include <aotriton/flash.h>
#include <aotriton/runtime.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "device.h"
#include "flash/request.h"
#include "load.h"
#include "python/candidate.h"
#include "python/tensor.h"

namespace py = pybind11;

namespace aotriton::v2::python {

namespace {

PyObject* error_type = nullptr;  // AotritonError

void raise_if(Error error) {
  if (error == Error::success) return;
  const py::object raised = py::reinterpret_borrow<py::object>(error_type)(last_error_message());
  raised.attr("code") = error_name(error);
  PyErr_SetObject(error_type, raised.ptr());
  throw py::error_already_set();
}

// Runs `call` without the interpreter's lock. The message of an error is this thread's, so it survives the switch.
template <class Call>
void run(Call call) {
  Error error;
  {
    const py::gil_scoped_release release;
    error = call();
  }
  raise_if(error);
}

Stream stream_of(uintptr_t handle) { return {reinterpret_cast<void*>(handle)}; }

using Object = const py::object&;

attn_fwd_params fwd_params(Object q, Object k, Object v, Object out, Object logsumexp, float sm_scale, bool causal) {
  return {tensor_of<4>(q, "q"),
          tensor_of<4>(k, "k"),
          tensor_of<4>(v, "v"),
          tensor_of<4>(out, "out"),
          tensor_of<3>(logsumexp, "logsumexp"),
          sm_scale,
          causal};
}

attn_bwd_params bwd_params(Object q, Object k, Object v, Object out, Object dout, Object logsumexp, Object dq,
                           Object dk, Object dv, float sm_scale, bool causal, bool deterministic) {
  return {tensor_of<4>(q, "q"),
          tensor_of<4>(k, "k"),
          tensor_of<4>(v, "v"),
          tensor_of<4>(out, "out"),
          tensor_of<4>(dout, "dout"),
          tensor_of<3>(logsumexp, "logsumexp"),
          tensor_of<4>(dq, "dq"),
          tensor_of<4>(dk, "dk"),
          tensor_of<4>(dv, "dv"),
          sm_scale,
          causal,
          nullptr,
          0,
          deterministic};
}

py::dict as_dict(const KernelChoice& choice) {
  using py::literals::operator""_a;
  py::list keys, runners_up, backends;
  for (int i = 0; i < choice.key_count; ++i)
    keys.append(py::dict("name"_a = choice.keys[i].name, "value"_a = choice.keys[i].value,
                         "representative"_a = choice.keys[i].representative));
  for (int i = 0; i < choice.runner_up_count; ++i)
    runners_up.append(
        py::dict("config"_a = choice.runners_up[i].config, "median_us"_a = choice.runners_up[i].median_us));
  for (int i = 0; i < choice.backend_count; ++i)
    backends.append(py::dict("name"_a = choice.backends[i].name, "median_us"_a = choice.backends[i].median_us));
  return py::dict("kernel"_a = choice.kernel, "arch"_a = choice.arch, "functional"_a = choice.functional,
                  "godel_number"_a = choice.godel_number, "keys"_a = keys, "image"_a = choice.image,
                  "psels"_a = choice.psels, "copts"_a = choice.copts,
                  "provenance"_a = provenance_name(choice.provenance), "source"_a = choice.source,
                  "median_us"_a = choice.median_us, "runners_up"_a = runners_up, "backend"_a = choice.backend,
                  "backends"_a = backends);
}

py::list explain_request(const std::string& op, const std::string& arch, const std::string& dtype, int64_t batch,
                         int64_t heads, int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim,
                         std::optional<int64_t> heads_k, bool causal, int multiprocessors) {
  Explanation explanation;
  raise_if(flash::explain({.op = op.c_str(),
                           .arch = arch.c_str(),
                           .dtype = dtype.c_str(),
                           .batch = batch,
                           .heads = heads,
                           .heads_k = heads_k.value_or(heads),
                           .seqlen_q = seqlen_q,
                           .seqlen_k = seqlen_k,
                           .head_dim = head_dim,
                           .causal = causal,
                           .multiprocessors = multiprocessors},
                          &explanation));
  py::list choices;
  for (int i = 0; i < explanation.kernel_count; ++i) choices.append(as_dict(explanation.kernels[i]));
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

void bind_operators(py::module_& m) {
  m.def(
      "attn_fwd",
      [](Object q, Object k, Object v, Object out, Object logsumexp, float sm_scale, bool causal, uintptr_t stream) {
        const attn_fwd_params params = fwd_params(q, k, v, out, logsumexp, sm_scale, causal);
        run([&] { return attn_fwd(params, stream_of(stream)); });
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("logsumexp") = py::none(), py::kw_only(),
      py::arg("sm_scale"), py::arg("causal") = false, py::arg("stream") = 0,
      "Writes softmax(sm_scale * q k^T) v to out, and its log-sum-exp to logsumexp where that is given.\n\n"
      "q, out: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_k, seqlen_k, head_dim], float16 or bfloat16 "
      "with\n"
      "a contiguous last dimension; logsumexp: [batch, heads, seqlen_q] float32, contiguous. Returns without waiting.");
  m.def(
      "attn_bwd_workspace_size",
      [](Object q, Object k, Object v, Object out, Object dout, Object logsumexp, Object dq, Object dk, Object dv,
         float sm_scale, bool causal, bool deterministic) {
        size_t bytes = 0;
        const attn_bwd_params params =
            bwd_params(q, k, v, out, dout, logsumexp, dq, dk, dv, sm_scale, causal, deterministic);
        raise_if(attn_bwd_workspace_size(params, &bytes));
        return bytes;
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("dout"), py::arg("logsumexp"), py::arg("dq"),
      py::arg("dk"), py::arg("dv"), py::kw_only(), py::arg("sm_scale"), py::arg("causal") = false,
      py::arg("deterministic") = false, "Bytes of workspace that attn_bwd needs for these tensors.");
  m.def(
      "attn_bwd",
      [](Object q, Object k, Object v, Object out, Object dout, Object logsumexp, Object dq, Object dk, Object dv,
         Object workspace, float sm_scale, bool causal, bool deterministic, uintptr_t stream) {
        attn_bwd_params params = bwd_params(q, k, v, out, dout, logsumexp, dq, dk, dv, sm_scale, causal, deterministic);
        const View bytes = view_of(workspace, "workspace");
        if (bytes.rank != 1 || bytes.element_size != 1)
          throw py::value_error("workspace must be a 1-D tensor of bytes");
        params.workspace = bytes.data;
        params.workspace_size = static_cast<size_t>(bytes.sizes[0]);
        run([&] { return attn_bwd(params, stream_of(stream)); });
      },
      py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("dout"), py::arg("logsumexp"), py::arg("dq"),
      py::arg("dk"), py::arg("dv"), py::arg("workspace"), py::kw_only(), py::arg("sm_scale"), py::arg("causal") = false,
      py::arg("deterministic") = false, py::arg("stream") = 0,
      "Writes the gradients of attn_fwd to dq, dk and dv. workspace: 1-D tensor of attn_bwd_workspace_size bytes, "
      "256-byte\n"
      "aligned. deterministic: the same bits every time. Returns without waiting.");
  m.def("explain", explain_request, py::arg("op"), py::kw_only(), py::arg("arch"), py::arg("dtype"), py::arg("batch"),
        py::arg("heads"), py::arg("seqlen_q"), py::arg("seqlen_k"), py::arg("head_dim"),
        py::arg("heads_k") = py::none(), py::arg("causal") = false, py::arg("multiprocessors") = 0,
        "The kernels that a call on contiguous tensors runs on arch, and why: one dict for each. Needs no GPU.");
}

void bind_runtime(py::module_& m) {
  m.def(
      "preload", [](uintptr_t stream) { run([&] { return preload(stream_of(stream)); }); }, py::arg("stream") = 0,
      "Loads every image that fits the stream's device, ahead of graph capture.");
  m.def("version", version, "Version of the library.");
  m.def(
      "arch", [] { return current_device("arch").arch->arch; }, "Architecture of the current device, such as 'sm_90'.");
  m.def(
      "multiprocessors", [] { return current_device("multiprocessors").multiprocessors; },
      "Number of multiprocessors of the current device.");
}

void bind_candidates(py::module_& m) {
  py::class_<Candidate>(m, "Candidate", "An image that is not in the archive, for the launch_ functions.")
      .def(py::init<const std::string&, const py::bytes&, const py::dict&, const std::map<std::string, int32_t>&>(),
           py::arg("kernel"), py::arg("binary"), py::arg("metadata"), py::arg("psels"),
           "metadata: as the image store's json. ValueError where something in it does not fit the kernel.")
      .def_property_readonly("name", &Candidate::name);
  m.def(
      "release", [](Candidate& candidate) { run([&] { return unload_image(candidate.get().image); }); },
      py::arg("candidate"), "Unloads the candidate from every device. No launch of it may be under way.");
  m.def(
      "launch_attn_fwd",
      [](Candidate& candidate, Object q, Object k, Object v, Object out, Object logsumexp, float sm_scale, bool causal,
         uintptr_t stream) {
        const attn_fwd_params params = fwd_params(q, k, v, out, logsumexp, sm_scale, causal);
        run([&] { return flash::launch_attn_fwd(candidate.get(), params, stream_of(stream)); });
      },
      py::arg("candidate"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("out"), py::arg("logsumexp"),
      py::kw_only(), py::arg("sm_scale"), py::arg("causal"), py::arg("stream") = 0);
  m.def(
      "launch_attn_bwd_preprocess",
      [](Candidate& candidate, Object out, Object dout, Object delta, uintptr_t stream) {
        const Tensor<4> o = tensor_of<4>(out, "out"), d = tensor_of<4>(dout, "dout");
        const Tensor<3> rows = tensor_of<3>(delta, "delta");
        run([&] { return flash::launch_attn_bwd_preprocess(candidate.get(), o, d, rows, stream_of(stream)); });
      },
      py::arg("candidate"), py::arg("out"), py::arg("dout"), py::arg("delta"), py::kw_only(), py::arg("stream") = 0);
  m.def(
      "launch_attn_bwd_dk_dv",
      [](Candidate& candidate, Object q, Object k, Object v, Object dout, Object logsumexp, Object delta, Object dk,
         Object dv, float sm_scale, bool causal, uintptr_t stream) {
        const Tensor<4> tensors[] = {tensor_of<4>(q, "q"),       tensor_of<4>(k, "k"),   tensor_of<4>(v, "v"),
                                     tensor_of<4>(dout, "dout"), tensor_of<4>(dk, "dk"), tensor_of<4>(dv, "dv")};
        const Tensor<3> lse = tensor_of<3>(logsumexp, "logsumexp"), rows = tensor_of<3>(delta, "delta");
        run([&] {
          return flash::launch_attn_bwd_dk_dv(candidate.get(), tensors[0], tensors[1], tensors[2], tensors[3], lse,
                                              rows, tensors[4], tensors[5], sm_scale, causal, stream_of(stream));
        });
      },
      py::arg("candidate"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("dout"), py::arg("logsumexp"),
      py::arg("delta"), py::arg("dk"), py::arg("dv"), py::kw_only(), py::arg("sm_scale"), py::arg("causal"),
      py::arg("stream") = 0);
  m.def(
      "launch_attn_bwd_dq",
      [](Candidate& candidate, Object q, Object k, Object v, Object dout, Object logsumexp, Object delta, Object dq,
         float sm_scale, bool causal, uintptr_t stream) {
        const Tensor<4> tensors[] = {tensor_of<4>(q, "q"), tensor_of<4>(k, "k"), tensor_of<4>(v, "v"),
                                     tensor_of<4>(dout, "dout"), tensor_of<4>(dq, "dq")};
        const Tensor<3> lse = tensor_of<3>(logsumexp, "logsumexp"), rows = tensor_of<3>(delta, "delta");
        run([&] {
          return flash::launch_attn_bwd_dq(candidate.get(), tensors[0], tensors[1], tensors[2], tensors[3], lse, rows,
                                           tensors[4], sm_scale, causal, stream_of(stream));
        });
      },
      py::arg("candidate"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("dout"), py::arg("logsumexp"),
      py::arg("delta"), py::arg("dq"), py::kw_only(), py::arg("sm_scale"), py::arg("causal"), py::arg("stream") = 0);
  m.def(
      "launch_attn_bwd_hopper_prepare",
      [](Candidate& candidate, Object out, Object dout, Object delta, Object dq_sum, uintptr_t stream) {
        const Tensor<4> o = tensor_of<4>(out, "out"), d = tensor_of<4>(dout, "dout");
        const Tensor<3> rows = tensor_of<3>(delta, "delta");
        void* const sum = tensor_of<4>(dq_sum, "dq_sum").data;
        run([&] { return flash::launch_attn_bwd_hopper_prepare(candidate.get(), o, d, rows, sum, stream_of(stream)); });
      },
      py::arg("candidate"), py::arg("out"), py::arg("dout"), py::arg("delta"), py::arg("dq_sum"), py::kw_only(),
      py::arg("stream") = 0);
  m.def(
      "launch_attn_bwd_hopper",
      [](Candidate& candidate, Object q, Object k, Object v, Object dout, Object logsumexp, Object delta, Object dk,
         Object dv, Object dq_sum, float sm_scale, bool causal, uintptr_t stream) {
        const Tensor<4> tensors[] = {tensor_of<4>(q, "q"),       tensor_of<4>(k, "k"),   tensor_of<4>(v, "v"),
                                     tensor_of<4>(dout, "dout"), tensor_of<4>(dk, "dk"), tensor_of<4>(dv, "dv")};
        const Tensor<3> lse = tensor_of<3>(logsumexp, "logsumexp"), rows = tensor_of<3>(delta, "delta");
        void* const sum = tensor_of<4>(dq_sum, "dq_sum").data;
        run([&] {
          return flash::launch_attn_bwd_hopper(candidate.get(), tensors[0], tensors[1], tensors[2], tensors[3], lse,
                                               rows, tensors[4], tensors[5], sum, sm_scale, causal, stream_of(stream));
        });
      },
      py::arg("candidate"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("dout"), py::arg("logsumexp"),
      py::arg("delta"), py::arg("dk"), py::arg("dv"), py::arg("dq_sum"), py::kw_only(), py::arg("sm_scale"),
      py::arg("causal"), py::arg("stream") = 0);
  m.def(
      "launch_attn_bwd_hopper_finish",
      [](Candidate& candidate, Object dq_sum, Object dq, float sm_scale, uintptr_t stream) {
        void* const sum = tensor_of<4>(dq_sum, "dq_sum").data;
        const Tensor<4> to = tensor_of<4>(dq, "dq");
        run([&] {
          return flash::launch_attn_bwd_hopper_finish(candidate.get(), sum, to, sm_scale, stream_of(stream));
        });
      },
      py::arg("candidate"), py::arg("dq_sum"), py::arg("dq"), py::kw_only(), py::arg("sm_scale"),
      py::arg("stream") = 0);
}

}  // namespace

}  // namespace aotriton::v2::python

PYBIND11_MODULE(pyaotriton, m) {
  using namespace aotriton::v2::python;
  m.doc() =
      "Attention kernels, tuned ahead of time. Tensors are objects with data_ptr(), shape, stride() and dtype as\n"
      "torch's, or with __dlpack__; streams are integer handles, 0 being the default stream.";
  error_type = PyErr_NewExceptionWithDoc("pyaotriton.AotritonError",
                                         "What the library refused or failed to do; `code` is the error's name.",
                                         PyExc_RuntimeError, nullptr);
  m.attr("AotritonError") = py::handle(error_type);
  bind_operators(m);
  bind_runtime(m);
  bind_candidates(m);
}
