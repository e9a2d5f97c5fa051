// Autograd and autocast of attn_fwd and attn_bwd, with and without features, without a line of Python.
//
// The stable ABI has neither. So this is a library of its own, built against the classes of one release of torch, and
// loaded in that release alone; in others the kernels are those of attention.py, which do the same.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using at::IValue, at::Tensor;
using c10::DispatchKey, c10::DispatchKeySet, c10::OperatorHandle;
using torch::autograd::Node, torch::autograd::SavedVariable, torch::autograd::variable_list;
using torch::jit::Stack;

// An overload of attn_fwd and attn_bwd, whose schemas operators.cc has: first the tensors, then what a call says beside
// them, with the hints last.
struct Plain {
  static constexpr const char* overload = "";
  static constexpr size_t tensors = 3;  // of the forward
  static constexpr size_t shared = 3;   // of these, first, those that the backward takes, too
  static constexpr bool features = false;
};
struct Featured {
  static constexpr const char* overload = "features";
  static constexpr size_t tensors = 16;
  static constexpr size_t shared = 12;
  static constexpr bool features = true;
};
constexpr size_t kBias = 3, kSinks = 5;  // in the order of tensors; those before the bias are q, k and v

template <class Overload>
const OperatorHandle& backward_operator() {
  static const OperatorHandle found =
      c10::Dispatcher::singleton().findSchemaOrThrow("aotriton::attn_bwd", Overload::overload);
  return found;
}

// The hints of the region that this thread is in, then the call's own. Where a tracer sees the call, it is for later:
// its hints are its own.
void add_region(DispatchKeySet keys, IValue& hints) {
  if (keys.has(DispatchKey::Python)) return;
  static const OperatorHandle within = c10::Dispatcher::singleton().findSchemaOrThrow("aotriton::_within", "");
  Stack stack = {hints};
  within.callBoxed(stack);
  hints = std::move(stack.back());
}

std::string name_of(const OperatorHandle& op) {
  const auto& name = op.operator_name();
  const std::string own = name.name.substr(std::string("aotriton::").size());
  return name.overload_name.empty() ? own : own + "." + name.overload_name;
}

// Those that the call may ask a gradient of. A derivative in the other direction is refused.
variable_list tensors_of(const OperatorHandle& op, const IValue* given, size_t count) {
  variable_list tensors(count);
  for (size_t i = 0; i < count; ++i) {
    if (!given[i].isTensor()) continue;
    tensors[i] = given[i].toTensor();
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(tensors[i]), name_of(op),
                                ": forward AD has no formula for aotriton's operators, only backward has");
  }
  return tensors;
}

bool is_recorded(const variable_list& tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) return true;
  return false;
}

// From torch 2.13 on a node counts its references itself.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
template <class Gradient>
c10::intrusive_ptr<Gradient> new_node() {
  return c10::make_intrusive<Gradient>();
}
#else
template <class Gradient>
std::shared_ptr<Gradient> new_node() {
  return {new Gradient(), torch::autograd::deleteNode};
}
#endif

template <class Gradient>
auto node_of(const variable_list& tensors) {
  auto node = new_node<Gradient>();
  node->set_next_edges(torch::autograd::collect_next_edges(tensors));
  return node;
}

// The operator past autograd: a transform of torch.func outside of this one sees it still.
void call_below(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// The derivative of a forward; logsumexp has none.
template <class Overload>
struct AttentionBackward final : Node {
  std::vector<SavedVariable> given;  // what the backward takes, too
  SavedVariable out, logsumexp;
  std::vector<IValue> said;

  std::string name() const override { return "AttentionBackward"; }

  variable_list apply(variable_list&& gradients) override {
    variable_list found(Overload::tensors);
    if (!gradients[0].defined()) return found;
    const auto one = [](Tensor tensor) { return tensor.defined() ? IValue(std::move(tensor)) : IValue(); };
    const auto wanted = [&](size_t i) { return this->task_should_compute_output(i); };
    Stack stack;
    stack.reserve(backward_operator<Overload>().schema().arguments().size());
    for (size_t i = 0; i < Overload::shared; ++i) {
      if (i == kBias) break;
      stack.push_back(one(given[i].unpack()));
    }
    for (Tensor tensor : {out.unpack(this->getptr()), gradients[0], logsumexp.unpack(this->getptr())})
      stack.push_back(std::move(tensor));
    for (size_t i = kBias; i < Overload::shared; ++i) stack.push_back(one(given[i].unpack()));
    stack.insert(stack.end(), said.begin(), said.end() - 1);
    int64_t skipped = 0;  // as AOTRITON_SKIP_ of c.h
    for (size_t i = 0; i < kBias; ++i) skipped |= int64_t{!wanted(i)} << i;
    stack.emplace_back(skipped);
    if constexpr (Overload::features) {
      stack.emplace_back(wanted(kBias));
      stack.emplace_back(wanted(kSinks));
    }
    stack.emplace_back();  // deterministic: what torch is told to be
    stack.push_back(said.back());
    backward_operator<Overload>().callBoxed(stack);
    constexpr std::array<size_t, 5> places = {0, 1, 2, kBias, kSinks};
    for (size_t i = 0; i < stack.size(); ++i)
      if (wanted(places[i])) found[places[i]] = stack[i].toTensor();
    return found;
  }

  void release_variables() override {
    for (SavedVariable& one : given) one.reset_data();
    out.reset_data();
    logsumexp.reset_data();
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(given, false);
    args.collect(out, true);
    args.collect(logsumexp, true);
    for (const IValue& one : said) args.collect(one);
  }

  variable_list apply_with_saved(const variable_list& gradients,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    saved.before(given), saved.before(out), saved.before(logsumexp), saved.before(said);
    variable_list found = apply(variable_list(gradients));
    saved.after(given), saved.after(out), saved.after(logsumexp), saved.after(said);
    return found;
  }
};

// Of a gradient that is recorded in turn: who asks for its derivative is told that there is none.
struct AttentionSecondBackward final : Node {
  std::string name() const override { return "AttentionSecondBackward"; }

  variable_list apply(variable_list&&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "aotriton's attention has no second derivative: attn_fwd has a gradient, attn_bwd, and that has none. "
        "torch's attention has, with sdpa_kernel(SDPBackend.MATH)");
  }
};

void require_gradient(const OperatorHandle& op, const variable_list& tensors, size_t shared) {
  const auto name = [&](size_t i) -> const std::string& { return op.schema().arguments()[i].name(); };
  for (size_t i = shared; i < tensors.size(); ++i)
    TORCH_CHECK_NOT_IMPLEMENTED(!tensors[i].defined(), "attn_fwd: a call with ", name(i),
                                " has no gradient, which an input asks for");
  for (size_t i = 0; i < kBias; ++i)
    TORCH_CHECK_NOT_IMPLEMENTED(tensors[i].element_size() > 1, "attn_fwd: a call with ", name(i),
                                " of 8 bits has no gradient, which an input asks for");
  for (size_t i = kBias; i < shared; ++i)
    TORCH_CHECK(i == kBias || i == kSinks || !tensors[i].defined() || !tensors[i].requires_grad(),
                "attn_fwd: ", name(i), " asks for a gradient, which attention has not");
}

template <class Overload>
void autograd_fwd(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  IValue* given = &*(stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size()));
  const variable_list tensors = tensors_of(op, given, Overload::tensors);
  if (!is_recorded(tensors)) return call_below(op, keys, stack);
  require_gradient(op, tensors, Overload::shared);
  add_region(keys, stack->back());
  const auto node = node_of<AttentionBackward<Overload>>(tensors);
  for (size_t i = 0; i < Overload::shared; ++i) node->given.emplace_back(tensors[i], false);
  node->said.assign(given + Overload::tensors, &stack->back() + 1);
  call_below(op, keys, stack);
  const Tensor logsumexp = stack->back().toTensor(), out = (stack->end() - 2)->toTensor();
  torch::autograd::set_history(out, node);
  node->out = SavedVariable(out, true);
  node->logsumexp = SavedVariable(logsumexp, true);
}

void autograd_bwd(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  size_t count = 0;
  while (!arguments[count].kwarg_only()) ++count;
  const variable_list tensors = tensors_of(op, &*(stack->end() - static_cast<ptrdiff_t>(arguments.size())), count);
  const bool recorded = is_recorded(tensors);
  call_below(op, keys, stack);
  if (!recorded) return;
  const auto node = node_of<AttentionSecondBackward>(tensors);
  for (auto made = stack->end() - static_cast<ptrdiff_t>(op.schema().returns().size()); made != stack->end(); ++made)
    torch::autograd::set_history(made->toTensor(), node);
}

// What autocast computes in becomes the type of q, k, v and bias; not of what is always float32, nor of tensors of 8
// bits, which mean something only with their scales.
template <DispatchKey key, at::DeviceType device>
void autocast(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once{DispatchKeySet(key)};
  IValue* given = &*(stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size()));
  for (size_t i = 0; i <= kBias; ++i) {
    if (!given[i].isTensor()) continue;
    const Tensor& tensor = given[i].toTensor();
    if (tensor.is_floating_point() && tensor.element_size() > 1)
      given[i] = tensor.to(at::autocast::get_autocast_dtype(device));
  }
  op.callBoxed(stack);
}

template <void (*kernel)(const OperatorHandle&, DispatchKeySet, Stack*)>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

template <DispatchKey key, at::DeviceType device>
void implement_autocast(torch::Library& m) {
  m.impl("attn_fwd", boxed<autocast<key, device>>());
  m.impl("attn_fwd.features", boxed<autocast<key, device>>());
}

}  // namespace

TORCH_LIBRARY_IMPL(aotriton, Autograd, m) {
  m.impl("attn_fwd", boxed<autograd_fwd<Plain>>());
  m.impl("attn_fwd.features", boxed<autograd_fwd<Featured>>());
  m.impl("attn_bwd", boxed<autograd_bwd>());
  m.impl("attn_bwd.features", boxed<autograd_bwd>());
  for (const char* twin : {"_attn_fwd", "_attn_bwd", "_attn_fwd.features", "_attn_bwd.features"})
    m.impl(twin, torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aotriton, AutocastCPU, m) { implement_autocast<DispatchKey::AutocastCPU, at::kCPU>(m); }

TORCH_LIBRARY_IMPL(aotriton, AutocastCUDA, m) { implement_autocast<DispatchKey::AutocastCUDA, at::kCUDA>(m); }
