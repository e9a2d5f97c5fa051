// The explanation of a dispatch.
#pragma once

#include <aotriton/explain.h>

#include <cstddef>

namespace aotriton::v2::inline abi1 {

class ChosenCall;
struct Dispatch;

// What the dispatch says of a kernel of its backend, by number. add_call_facts() adds what only the call says; the log
// does without.
KernelChoice explain(const Dispatch& dispatch, size_t kernel) noexcept;

// Adds what the cost models predict where measurements of this very problem decided, and not a predicted time.
void add_prediction(ChosenCall chosen, size_t kernel, KernelChoice* choice) noexcept;

// Adds each backend's state and measured time, the call's FLOPs, and what is padded.
void add_call_facts(ChosenCall chosen, size_t kernel, KernelChoice* choice) noexcept;

// How the bin's representative problem, which a median is of, compares with the call by its tuning keys and padding.
enum class Measured { alike, larger, smaller, otherwise };
Measured measured_at(const KernelChoice& choice) noexcept;
const char* measured_name(Measured measured) noexcept;

// That of the backend which the kernel belongs to.
const BackendState& chosen_state(const KernelChoice& choice) noexcept;

inline const char* provenance_of(const KernelChoice& choice) noexcept {
  return provenance_name(static_cast<Provenance>(choice.provenance));
}

// Microseconds in the unit that suits: "12.34 us", "1.234 ms".
void format_time(double us, char* text, size_t size) noexcept;

// A day such as 20261124 as 2026-11-24.
void format_day(int64_t day, char* text, size_t size) noexcept;

// The choice on one short line of at most `size` bytes, without a newline: what the log prints.
void format_line(const KernelChoice& choice, char* line, size_t size) noexcept;

}  // namespace aotriton::v2::inline abi1
