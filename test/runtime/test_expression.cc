// Expressions: C++ makes of them what Python does, and tells what does not fit.
#include <random>

#include "attn_fwd.operator.h"
#include "call/expressions.h"
#include "check.h"
#include "dispatch/select.h"
#include "expressions.h"
#include "program/expression.h"
#include "program/registry.h"

using namespace aotriton::v2;

namespace {

// A call with what the made-up expressions name.
struct Given {
  Call call{flash::attn_fwd_operator};
  Environment environment = {&call, kTunables, kMultiprocessors, 0};

  Given() {
    for (size_t i = 0; i < 8; ++i) {
      call.sizes[i] = kSizes[i];
      call.set_whole(i, kScalars[i]);
      call.views[i] = View::none();
      if (kPresent[i]) call.views[i].data = &call;
    }
  }
};

struct Answer {
  bool fits;
  int64_t value;
};

Answer evaluated(std::initializer_list<Instruction> code) {
  const Given given;
  int64_t value = 0;
  const bool fits = evaluate({{code.begin(), code.size()}}, given.environment, &value);
  return {fits, value};
}

// Every expression of an operator, whoever asks for it.
std::vector<const Expression*> expressions_of(const OperatorInfo& info) {
  std::vector<const Expression*> found = {&info.flops};
  for (const BackendInfo& backend : info.backends) {
    for (const DerivedSize& derived : backend.sizes) found.push_back(&derived.value);
    for (const KernelInfo* kernel : backend.kernels) {
      for (const Argument& argument : kernel->arguments) found.push_back(&argument.value);
      for (const Expression& axis : kernel->grid) found.push_back(&axis);
      found.push_back(&kernel->schedule);
    }
  }
  return found;
}

// Sizes of calls from small ones to what does not fit in 63 bits, and tunables.
struct Drawn {
  Call call;
  int32_t tunables[kMaxTunables];

  Drawn(const OperatorInfo& info, std::mt19937_64& random) : call(info) {
    for (View& view : call.views) view = View::none();
    for (int64_t& size : call.sizes) size = static_cast<int64_t>(random() >> (1 + random() % 63));
    for (size_t i = 0; i < kMaxScalars; ++i) call.set_whole(i, static_cast<int64_t>(random() % 2));
    for (int32_t& tunable : tunables) tunable = static_cast<int32_t>(random() % 257);
    call.dtype = DType::bfloat16;
  }

  Environment environment() const { return {&call, tunables, 132, 0}; }
};

}  // namespace

TEST("what is compiled of an operator has the value that is interpreted, or does not fit either") {
  std::mt19937_64 random(1);
  size_t fitting = 0, lost = 0;
  const auto count = [&](bool fits) { ++(fits ? fitting : lost); };
  any_operator([&](const OperatorInfo& info) {
    CHECK(info.steps.empty() || info.compiled_steps.first);
    for (int i = 0; i < 200; ++i) {
      const Drawn drawn(info, random);
      for (const Expression* one : expressions_of(info)) {
        CHECK(one->step == kNoStep || info.steps[one->step].kept);
        if (!one->compiled) continue;
        int64_t made = 0, wanted = 0;
        const bool fits = evaluate({one->code}, drawn.environment(), &wanted);
        CHECK_EQ(one->compiled(drawn.environment(), &made), fits);
        if (fits) CHECK_EQ(made, wanted);
        count(fits);
      }
      const Values made(info.steps, info.compiled_steps, drawn.environment());
      const Values wanted(info.steps, {}, drawn.environment());
      for (size_t i = 0; i < info.steps.size(); ++i) {
        if (!info.steps[i].kept) continue;
        const auto step = static_cast<StepNumber>(i);
        int64_t a = 0, b = 0;
        const bool fits = wanted.get(step, &b);
        CHECK_EQ(made.get(step, &a), fits);
        if (fits) CHECK_EQ(a, b);
        count(fits);
      }
    }
    return false;
  });
  CHECK(fitting > 10000 && lost > 1000);
}

TEST("a kernel's guards are bits of its operator's, whose conditions are the same") {
  std::mt19937_64 random(2);
  size_t refused = 0, served = 0;
  any_operator([&](const OperatorInfo& info) {
    for (int i = 0; i < 200; ++i) {
      const Drawn drawn(info, random);
      const Survey survey(drawn.call, {0, 0, 132, true});
      for (const BackendInfo& backend : info.backends)
        for (const KernelInfo* kernel : backend.kernels) {
          const char* const wanted = refusal(*kernel, drawn.environment());
          CHECK_EQ(survey.refusal(*kernel), wanted);
          ++(wanted ? refused : served);
        }
    }
    return false;
  });
  CHECK(refused > 1000 && served > 1000);
}

TEST("random expressions have the value that Python gives them, or are told not to fit where Python's leaves 64 bits") {
  const Given given;
  size_t fitting = 0;
  for (const Case& one : kExpressions) {
    int64_t value = 0;
    const bool fits = evaluate(one.code, given.environment, &value);
    CHECK_EQ(fits, one.fits);
    if (fits) CHECK_EQ(value, one.value);
    fitting += fits;
  }
  CHECK(fitting > 1000 && std::size(kExpressions) - fitting > 100);
}

TEST("steps have the values of the expressions that they are made of, and none where those have none") {
  const Given given;
  size_t fitting = 0, lost = 0;
  for (const Case& one : kExpressions) {
    if (one.steps.empty()) continue;  // more than there is room for
    const Values values(one.steps, {}, given.environment);
    const auto last = static_cast<uint8_t>(one.steps.size() - 1);
    int64_t value = 0;
    const bool fits = values.get(last, &value);
    CHECK_EQ(fits, one.fits);
    if (fits) CHECK_EQ(value, one.value);
    ++(fits ? fitting : lost);
  }
  CHECK(fitting > 1000 && lost > 100);
}

TEST("what shares a step with a number that does not fit has its own value all the same") {
  const Given given;
  constexpr Step steps[] = {{Code::constant, {}, INT32_MAX}, {Code::multiply, {0, 0}, 0}, {Code::multiply, {1, 1}, 0},
                            {Code::negate, {2}, 0},          {Code::at_most, {0, 1}, 0},  {Code::choose, {4, 0, 3}, 0}};
  const Values values(steps, {}, given.environment);
  int64_t value = 0;
  for (const uint8_t step : {2, 3, 5}) CHECK(!values.get(step, &value));
  CHECK(values.get(1, &value) && value == int64_t{INT32_MAX} * INT32_MAX);
  CHECK(values.get(4, &value) && value == 1);
}

// The first three are compiled apart from the others; of them an expression has the second one, and the fourth step the
// third.
constexpr Step kCompiled[] = {{Code::constant, {}, 6},
                              {Code::add, {0, 0}, 0, true},
                              {Code::multiply, {1, 0}, 0},
                              {Code::subtract, {2, 1}, 0, true}};

TEST("compiled steps that are kept have the values of interpreted ones") {
  const Given given;
  const Values values(kCompiled, compiled_steps<kCompiled, 3>(), given.environment);
  int64_t value = 0;
  CHECK(values.get(1, &value) && value == 12);
  CHECK_EQ(values.known(), 3u);
  CHECK(values.get(3, &value) && value == 60);
  CHECK_EQ(values.known(), 4u);
}

TEST("a number that does not fit is told, wherever it arises") {
  const Instruction most[] = {{Code::constant, INT32_MAX}, {Code::constant, INT32_MAX}};  // 2^31 - 1
  const Instruction square = {Code::multiply, 0}, two = {Code::constant, 2}, four = {Code::constant, 4};
  CHECK(evaluated({most[0], most[1], square}).fits);
  CHECK(evaluated({most[0], most[1], square, two, square}).fits);
  CHECK(!evaluated({most[0], most[1], square, four, square}).fits);
  // In the branch that is not taken, too: both are evaluated.
  const Instruction yes = {Code::constant, 1};
  CHECK(!evaluated({yes, two, most[0], most[1], square, four, square, {Code::choose, 0}}).fits);
}

TEST("a divisor that is not positive does not fit, and quotients are rounded up") {
  const auto divided = [](int32_t a, int32_t b) {
    return evaluated({{Code::constant, a}, {Code::constant, b}, {Code::ceil_divide, 0}});
  };
  CHECK(!divided(1, 0).fits);
  CHECK(!divided(1, -1).fits);
  CHECK_EQ(divided(7, 2).value, 4);
  CHECK_EQ(divided(8, 2).value, 4);
  CHECK_EQ(divided(0, 5).value, 0);
  CHECK_EQ(divided(-7, 2).value, -3);
}

TEST("a choice whose number does not fit is of no value of it, and a guard then refuses") {
  const Given given;
  static constexpr Instruction overflow[] = {{Code::constant, INT32_MAX},
                                             {Code::constant, INT32_MAX},
                                             {Code::multiply, 0},
                                             {Code::constant, INT32_MAX},
                                             {Code::multiply, 0}};
  static constexpr int64_t values[] = {1, 2};
  CHECK_EQ(digit({"", {overflow}, true, values, {}}, given.environment), -1);
  static constexpr GuardInfo guards[] = {{{overflow}, "too much"}};
  KernelInfo kernel = *flash::attn_fwd_operator.backends[0].kernels[0];
  kernel.guards = guards;
  CHECK_EQ(refusal(kernel, given.environment), std::string("too much"));
}
