// Calls every operator with parameters that are right, nearly right or nonsense. usage: fuzz CALLS SEED cuda|hip
// [SECONDS]
//
// What must hold: nothing that a sanitizer sees; nothing launched after an error, but driver_failed; launches, tensor
// maps and fills that a driver takes, with arguments of the image's own sizes (fuzz/driver.h); the kernels that explain
// names; no call accepted that is not sane (fuzz/judge.h); and a call that is remembered, or was prepared, launches
// what a new one does. Prints how calls ended, and a hash of all that was launched.
#include <chrono>
#include <cinttypes>
#include <thread>

#include "fuzz/judge.h"

using namespace fuzz;

namespace {

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : chance_(seed), drafter_(chance_), operators_(operators()) {}

  void step() {
    if (chance_.percent(1)) ++state.context_id;  // its images are to be loaded again
    state.fail_at = chance_.percent(3) ? static_cast<int>(chance_.between(1, 30)) : 0;
    state.capturing = chance_.percent(2);
    const Operator& op = operators_[chance_.below(operators_.size())];
    Draft draft = next_draft(op);
    switch (chance_.below(9)) {
      case 0:
        ask(op, draft);
        break;
      case 1:
        explain_anywhere(op, draft);
        break;
      case 2:
        prepare_and_launch(op, draft);
        break;
      case 3:
        call_damaged(op, draft);
        break;
      case 4:
        call_again(op, draft);
        break;
      default:
        call(op, draft);
    }
    remember(draft);
  }

  void print() const {
    for (const auto& [outcome, count] : outcomes_) printf("%10" PRIu64 "  %s\n", count, outcome.c_str());
    printf("hash of launches %016" PRIx64 "\n", state.hash);
  }

 private:
  static constexpr size_t kRemembered = 32;

  // A new one, or one that was made before with other data; spoiled, or not.
  Draft next_draft(const Operator& op) {
    Draft draft(*op.info);
    const Draft* known = known_.empty() ? nullptr : &known_[chance_.below(known_.size())];
    if (known && known->info == op.info && chance_.percent(60)) {
      draft = *known;
      drafter_.move(draft);
    } else {
      op.suit(draft, chance_);
      drafter_.lay_out(draft);
    }
    if (chance_.percent(40))
      for (int64_t count = chance_.between(1, 3); count; --count) drafter_.spoil(draft);
    if (!draft.hints && chance_.percent(25)) add_hints(draft);
    what_happens = draft.text();
    return draft;
  }

  // Words that hints are made of: right ones, of this operator or of another, and nonsense.
  std::string hint_word() {
    static constexpr const char* kWords[] = {"schedule=bfs",
                                             "schedule=dfs",
                                             "schedule=auto",
                                             "deterministic",
                                             "deterministic=0",
                                             "batch_invariant",
                                             "latency",
                                             "throughput=1",
                                             "workspace_limit=0",
                                             "workspace_limit=4096",
                                             "workspace_limit=100000000000",
                                             "backend=portable",
                                             "backend=hopper",
                                             "backend=split",
                                             "exclude=portable",
                                             "exclude=hopper,hopper_split,fast",
                                             "unknown=1",
                                             "schedule=",
                                             "workspace_limit=x",
                                             "=",
                                             "exclude=,,"};
    if (chance_.percent(20) && !images_.empty())
      return (chance_.percent(50) ? "image=" : "exclude=") + images_[chance_.below(images_.size())];
    if (chance_.percent(90)) return chance_.one_of(kWords);
    std::string nonsense;
    for (uint64_t length = chance_.below(400); length; --length)
      nonsense += static_cast<char>(chance_.between(1, chance_.percent(50) ? 127 : 255));
    return nonsense;
  }

  // Hints of some words. Text that is refused leaves them as they were.
  void add_hints(Draft& draft) {
    draft.hints.emplace();
    for (int64_t count = chance_.between(1, 4); count; --count) {
      const std::string word = hint_word();
      const hints before = *draft.hints;
      const Error error = draft.hints->parse(word.c_str());
      ++outcomes_[std::string("hints: ") + error_name(error)];
      if (error == Error::success)
        draft.hints_text += " " + word;
      else if (memcmp(static_cast<const aotriton_hints*>(&before), &*draft.hints, sizeof before))
        object("hints were refused, and changed: " + word);
    }
  }

  // What was launched must be what the hints leave.
  void check_hints(const Draft& draft, const Explanation& explanation) const {
    const auto has = [](const char* list, const char* name) {
      return ("," + std::string(list) + ",").find("," + std::string(name) + ",") != std::string::npos;
    };
    for (size_t i = 0; i < explanation.kernel_count; ++i) {
      const KernelChoice& choice = explanation.kernels[i];
      if (*draft.hints->backend && strcmp(draft.hints->backend, choice.backend))
        object("another backend was asked for");
      for (const char* name : {choice.backend, choice.kernel, choice.image})
        if (has(draft.hints->exclude, name)) object(std::string("excluded, and chosen: ") + name);
    }
    for (const SeenLaunch& launch : state.launches)
      if (has(draft.hints->exclude, launch.image.c_str())) object("excluded, and launched: " + launch.image);
  }

  // Whether the call gets a backend that needs no workspace, whichever is the fastest.
  static bool does_without(const Draft& draft) { return !draft.workspace && draft.info->backends[0].workspace.empty(); }

  void remember(const Draft& draft) {
    if (known_.size() < kRemembered)
      known_.push_back(draft);
    else
      known_[chance_.below(kRemembered)] = draft;
  }

  void count(const Operator& op, const char* what, Error error) {
    ++outcomes_[std::string(op.info->name) + " " + what + ": " + error_name(error)];
  }

  Stream any_stream() { return {reinterpret_cast<void*>(chance_.percent(50) ? uintptr_t{0} : uintptr_t{0x55})}; }

  void call(const Operator& op, Draft& draft) {
    size_t bytes = 0;
    const int fail_at = std::exchange(state.fail_at, 0);
    const Error of_query = op.workspace_size(draft, {}, &bytes);
    const bool supported = op.supported(draft, {});
    if (of_query == Error::success) check_query_without_data(op, draft, bytes);
    state.fail_at = fail_at;
    reset_seen();
    const Error error = op.run(draft, any_stream());
    count(op, "call", error);
    check(op, draft, error);
    check_answer(draft, supported, error);
    if (error != Error::success) return;
    if (of_query != Error::success) object("a call was accepted whose workspace query was refused");
    if (bytes && !state.launches.empty() && !does_without(draft)) Judge(op, draft).check_workspace(bytes);
    if (chance_.percent(15)) check_same_anew(op, draft);
  }

  // A call that was made twice is known by its parameters: whatever changes then, it does what a new one does.
  void call_again(const Operator& op, Draft& draft) {
    state.fail_at = 0;
    state.capturing = false;
    for (int i = 0; i < 2; ++i) static_cast<void>(op.run(draft, {}));
    if (chance_.percent(60)) drafter_.move(draft);
    if (chance_.percent(40)) drafter_.spoil(draft);
    if (chance_.percent(10)) draft.workspace = nullptr;
    what_happens = draft.text();
    reset_seen();
    const Error error = op.run(draft, {});
    count(op, "call again", error);
    check(op, draft, error);
    if (error == Error::success) return check_same_anew(op, draft);
    std::thread([&] {
      if (op.run(draft, {}) != error) object("a call that is known is refused otherwise than a new one");
    }).join();
  }

  // A workspace query of the same call before any or some of its data is there must have said enough.
  void check_query_without_data(const Operator& op, const Draft& draft, size_t bytes) {
    Draft early = draft;
    for (size_t slot = 0; slot < early.tensors.size(); ++slot)
      if (!draft.info->operands[slot].optional && chance_.percent(50)) early.tensors[slot].data = nullptr;
    size_t before = 0;
    if (op.workspace_size(early, {}, &before) != Error::success || before < bytes)
      object("a query without all data said " + std::to_string(before) + " bytes, " + std::to_string(bytes) +
             " are needed");
  }

  // What supported() said must be what the call does, but for what it does not ask for: the workspace, data that is not
  // there, and what a driver is in the mood for.
  static void check_answer(const Draft& draft, bool supported, Error error) {
    if (error == Error::success && !supported) object("a call was accepted that is not supported");
    if (!supported || error == Error::success || error == Error::driver_failed || error == Error::not_loaded ||
        error == Error::null_pointer || error == Error::workspace_too_small)
      return;
    if (strstr(last_error_message(), "workspace")) return;
    object(std::string("a call is supported, and was refused: ") + error_name(error) + draft.hints_text);
  }

  // One bit of the parameters is turned: whatever it was, the call is refused, or right as the parameters now are.
  void call_damaged(const Operator& op, Draft& draft) {
    reset_seen();
    const Error error = op.run_damaged(draft, chance_, any_stream());
    what_happens = draft.text();
    count(op, "damaged call", error);
    check(op, draft, error);
  }

  void check(const Operator& op, Draft& draft, Error error) {
    if (error != Error::success) {
      if (error != Error::driver_failed && !(state.launches.empty() && state.fills.empty()))
        object("something was launched, and the call was refused");
      return;
    }
    const Judge judge(op, draft);
    judge.check();
    judge.check_fills();
    if (state.launches.empty() && !judge.has_size_zero()) object("nothing was launched");
    Explanation explanation;
    const char* const arch = state.hip ? "gfx942" : "sm_90";
    if (op.explain(draft, arch, state.multiprocessors, &explanation) != Error::success)
      object("a call was accepted that can not be explained");
    if (draft.hints) check_hints(draft, explanation);
    for (size_t i = 0; i < explanation.kernel_count && images_.size() < 200; ++i)
      images_.push_back(explanation.kernels[i].image);
    if (does_without(draft)) return;
    size_t same = 0;
    while (same < std::min(explanation.kernel_count, state.launches.size()) &&
           state.launches[same].image == explanation.kernels[same].image)
      ++same;
    // Of a call in chunks, the first one is explained. One of a size that is 0 launches nothing.
    const bool in_chunks = explanation.kernel_count && explanation.kernels[0].pieces > 1;
    const size_t explained = state.launches.empty() ? 0 : explanation.kernel_count;
    if (same != explained || (!in_chunks && same != state.launches.size())) {
      std::string names = "explain names other kernels than ran:";
      for (const auto& one : state.launches) names += std::string(" ") + one.image;
      names += ", not";
      for (size_t i = 0; i < explanation.kernel_count; ++i) names += std::string(" ") + explanation.kernels[i].image;
      object(names);
    }
  }

  // A thread that remembers nothing, in a context in which nothing is known, gets the same.
  void check_same_anew(const Operator& op, Draft& draft) {
    const std::vector<SeenLaunch> before = state.launches;
    const uint64_t hash = state.hash;
    ++state.context_id;
    state.fail_at = 0;
    state.capturing = false;
    reset_seen();
    Error error;
    std::thread([&] { error = op.run(draft, {}); }).join();
    if (error != Error::success && state.fills.size() <= kMostFills) object("a call was accepted, and then refused");
    check_same(before);
    state.hash = hash;
  }

  void check_same(const std::vector<SeenLaunch>& before) const {
    bool same = before.size() == state.launches.size();
    for (size_t i = 0; same && i < before.size(); ++i) same = before[i].hash == state.launches[i].hash;
    if (!same) object("the same call launched something else");
  }

  // What is launched of a prepared call is what the call with those pointers launches.
  void prepare_and_launch(const Operator& op, Draft& draft) {
    reset_seen();
    PreparedCall prepared;
    const Error error = op.prepare(draft, any_stream(), &prepared);
    count(op, "prepare", error);
    if (!state.launches.empty() || !state.fills.empty()) object("something was launched to prepare a call");
    if (error != Error::success) return;
    const bool has_workspace = draft.workspace;
    for (int i = 0; i < 3; ++i) {
      if (i) drafter_.move(draft);
      what_happens = draft.text();
      std::vector<void*> pointers;
      for (const DraftTensor& tensor : draft.tensors) pointers.push_back(tensor.data);
      pointers.push_back(draft.workspace);
      reset_seen();
      const Error launched = prepared.launch(pointers.data(), pointers.size(), any_stream());
      count(op, "launch", launched);
      if (launched == Error::driver_failed) return;
      check_launch_of_prepared(op, draft, launched, has_workspace);
    }
  }

  void check_launch_of_prepared(const Operator& op, Draft& draft, Error launched, bool has_workspace) {
    if (launched != Error::success) {
      if (!state.launches.empty()) object("something was launched, and the prepared call was refused");
      return;
    }
    const std::vector<SeenLaunch> before = state.launches;
    Draft same = draft;
    same.workspace_size = size_t{1} << 62;  // a launch is not told of it
    // The backend was chosen with one, or without.
    if (!has_workspace) same.workspace = nullptr;
    if (has_workspace && !same.workspace) same.workspace = reinterpret_cast<void*>(uintptr_t{256});
    state.fail_at = 0;
    state.capturing = false;
    reset_seen();
    const Error error = op.run(same, {});
    if (error != Error::success && state.fills.size() <= kMostFills)
      object(std::string("a prepared call was launched that is refused as a call: ") + error_name(error));
    check_same(before);
  }

  void ask(const Operator& op, Draft& draft) {
    reset_seen();
    if (chance_.percent(50))
      for (DraftTensor& tensor : draft.tensors) tensor.data = nullptr;
    size_t bytes = 7;
    const Error error = op.workspace_size(draft, any_stream(), chance_.percent(98) ? &bytes : nullptr);
    count(op, "workspace query", error);
    if (error != Error::success && bytes != 7 && bytes != 0) object("a query was refused, and gave a size");
    const bool supported = op.supported(draft, any_stream());
    if (supported && error != Error::success && error != Error::driver_failed && error != Error::null_pointer &&
        error != Error::not_supported)
      object("a call is supported, and its query is refused");
    if (!state.launches.empty() || !state.fills.empty()) object("something was launched to answer a question");
  }

  void explain_anywhere(const Operator& op, Draft& draft) {
    static constexpr const char* kArchs[] = {"sm_90", "NVIDIA H200", "gfx942",        "sm_80",
                                             "",      "sm_9",        "gfx942:xnack-", nullptr};
    static constexpr int kMultiprocessors[] = {0, 1, -1, 132, 304, INT32_MAX, INT32_MIN};
    reset_seen();
    if (chance_.percent(50))
      for (DraftTensor& tensor : draft.tensors) tensor.data = nullptr;
    Explanation explanation;
    const Error error = op.explain(draft, chance_.one_of(kArchs), chance_.one_of(kMultiprocessors),
                                   chance_.percent(98) ? &explanation : nullptr);
    count(op, "explain", error);
    if (state.calls) object("explain asked a driver");
  }

  Chance chance_;
  Drafter drafter_;
  const std::vector<Operator> operators_;
  std::vector<Draft> known_;
  std::vector<std::string> images_;  // that were chosen
  std::map<std::string, uint64_t> outcomes_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return fprintf(stderr, "usage: fuzz CALLS SEED cuda|hip [SECONDS]\n"), 2;
  const uint64_t calls = strtoull(argv[1], nullptr, 10), seed = strtoull(argv[2], nullptr, 10);
  state.hip = !strcmp(argv[3], "hip");
  state.multiprocessors = state.hip ? 304 : 132;
  const auto limit = std::chrono::seconds(argc > 4 ? strtoull(argv[4], nullptr, 10) : 1000000);
  const auto begin = std::chrono::steady_clock::now();
  replace_driver(&fuzzed_driver());
  Fuzzer fuzzer(seed);
  uint64_t done = 0;
  while (done < calls && (done % 256 || std::chrono::steady_clock::now() - begin < limit)) fuzzer.step(), ++done;
  fuzzer.print();
  printf("%" PRIu64 " calls\n", done);
}
