#include "call/hints.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/abi.h"
#include "base/error.h"

namespace aotriton::v2::inline abi1 {

namespace {

constexpr char kBlanks[] = " \t\n\r";

constexpr Field kFields[] = {
    AOTRITON_FIELD(aotriton_hints, size),
    AOTRITON_FIELD(aotriton_hints, schedule),
    AOTRITON_FIELD(aotriton_hints, objective),
    AOTRITON_FIELD(aotriton_hints, workspace_limit),
    AOTRITON_FIELD(aotriton_hints, workspace_limited),
    AOTRITON_FIELD(aotriton_hints, deterministic),
    AOTRITON_FIELD(aotriton_hints, batch_invariant),
    AOTRITON_FIELD(aotriton_hints, reserved),
    AOTRITON_FIELD(aotriton_hints, backend),
    AOTRITON_FIELD(aotriton_hints, image),
    AOTRITON_FIELD(aotriton_hints, exclude),
    AOTRITON_FIELD(aotriton_hints, unknown),
};
static_assert(are_all(kFields, sizeof(aotriton_hints)));

// The struct in this library's size.
Error read(const char* who, const aotriton_hints& given, aotriton_hints* own) {
  if (given.size < sizeof(size_t) || given.size > kMostStructBytes || !cuts_no_field(kFields, given.size))
    return fail(Error::invalid_argument, "%s: hints.size is %zu, which must be sizeof of the struct, %zu", who,
                given.size, sizeof given);
  memset(own, 0, sizeof *own);
  memcpy(own, &given, std::min(given.size, sizeof *own));
  return Error::success;
}

Error check(const char* who, const aotriton_hints& hints) {
  if (hints.schedule < AOTRITON_AUTO || hints.schedule > AOTRITON_DFS)
    return fail(Error::invalid_argument, "%s: hints.schedule is %d, which is none of those in c.h", who,
                hints.schedule);
  if (hints.objective < AOTRITON_NO_OBJECTIVE || hints.objective > AOTRITON_THROUGHPUT)
    return fail(Error::invalid_argument, "%s: hints.objective is %d, which is none of those in c.h", who,
                hints.objective);
  for (const uint8_t byte : hints.reserved)
    if (byte) return fail(Error::not_supported, "%s: a reserved field of hints is not zero", who);
  const struct {
    const char *name, *text;
    size_t size;
  } texts[] = {{"backend", hints.backend, sizeof hints.backend},
               {"image", hints.image, sizeof hints.image},
               {"exclude", hints.exclude, sizeof hints.exclude},
               {"unknown", hints.unknown, sizeof hints.unknown}};
  for (const auto& [name, text, size] : texts)
    if (!memchr(text, 0, size)) return fail(Error::invalid_argument, "%s: hints.%s has no end", who, name);
  return Error::success;
}

// A word of the text, such as schedule=dfs.
struct Word {
  std::string_view name, value;
  bool has_value;
};

Error misread(const Word& word, const char* wanted) {
  return fail(Error::invalid_argument, "hints: %.*s is '%.*s', which must be %s", static_cast<int>(word.name.size()),
              word.name.data(), static_cast<int>(word.value.size()), word.value.data(), wanted);
}

Error read_flag(const Word& word, bool* flag) {
  *flag = !word.has_value || word.value == "1";
  return *flag || word.value == "0" ? Error::success : misread(word, "0 or 1");
}

template <size_t kSize>
Error read_names(const Word& word, char (&names)[kSize]) {
  if (word.value.empty()) return misread(word, "a name");
  if (word.value.size() >= kSize)
    return fail(Error::invalid_argument, "hints: %.*s has %zu letters, and there is room for %zu",
                static_cast<int>(word.name.size()), word.name.data(), word.value.size(), kSize - 1);
  memset(names, 0, kSize);  // the bytes behind the text count, too, where calls are compared
  memcpy(names, word.value.data(), word.value.size());
  return Error::success;
}

// Appends the name as far as there is room.
void note_unknown(const Word& word, aotriton_hints* hints) {
  size_t used = strlen(hints->unknown);
  const size_t last = sizeof hints->unknown - 1;
  if (used && used < last) hints->unknown[used++] = ' ';
  const size_t length = word.name.size() < last - used ? word.name.size() : last - used;
  memcpy(hints->unknown + used, word.name.data(), length);
  hints->unknown[used + length] = '\0';
}

// What a newer caller's struct has more is a hint that is not known here.
void note_newer(const aotriton_hints& given, aotriton_hints* own) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  for (size_t i = sizeof *own; i < given.size; ++i)
    if (bytes[i]) return note_unknown({"a_newer_field", {}, false}, own);
}

Error read_word(const Word& word, aotriton_hints* hints) {
  bool flag;
  if (word.name == "schedule") {
    constexpr std::string_view names[] = {"auto", "bfs", "dfs"};
    for (int32_t i = 0; i < 3; ++i)
      if (word.value == names[i]) return hints->schedule = i, Error::success;
    return misread(word, "auto, bfs or dfs");
  }
  if (word.name == "latency" || word.name == "throughput") {
    const int32_t own = word.name == "latency" ? AOTRITON_LATENCY : AOTRITON_THROUGHPUT;
    AOTRITON_TRY(read_flag(word, &flag));
    if (flag)
      hints->objective = own;
    else if (hints->objective == own)
      hints->objective = AOTRITON_NO_OBJECTIVE;
    return Error::success;
  }
  if (word.name == "deterministic" || word.name == "batch_invariant") {
    AOTRITON_TRY(read_flag(word, &flag));
    (word.name == "deterministic" ? hints->deterministic : hints->batch_invariant) = flag;
    return Error::success;
  }
  if (word.name == "workspace_limit") {
    uint64_t bytes;
    const char *const begin = word.value.data(), *const end = begin + word.value.size();
    const auto [stop, error] = std::from_chars(begin, end, bytes);
    if (error != std::errc() || stop != end) return misread(word, "a number of bytes");
    hints->workspace_limit = bytes;
    hints->workspace_limited = 1;
    return Error::success;
  }
  if (word.name == "backend") return read_names(word, hints->backend);
  if (word.name == "image") return read_names(word, hints->image);
  if (word.name == "exclude") return read_names(word, hints->exclude);
  note_unknown(word, hints);
  return Error::success;
}

}  // namespace

std::string_view next_word(std::string_view* list, const char* separators) noexcept {
  list->remove_prefix(std::min(list->find_first_not_of(separators), list->size()));
  const std::string_view word = list->substr(0, list->find_first_of(separators));
  list->remove_prefix(word.size());
  return word;
}

bool lists_word(const char* list, const char* name) noexcept {
  std::string_view left = list;
  for (std::string_view word = next_word(&left, ","); !word.empty(); word = next_word(&left, ","))
    if (word == name) return true;
  return false;
}

Error take_given_hints(const aotriton_hints& given, Call* call) noexcept {
  const OperatorInfo& info = *call->info;
  call->hints = &given;
  if (given.size != sizeof given) {
    AOTRITON_TRY(read(info.name, given, &call->own_hints));
    call->hints = &call->own_hints;
  }
  AOTRITON_TRY(check(info.name, *call->hints));
  if (given.size > sizeof given) note_newer(given, &call->own_hints);
  const struct {
    const char* name;
    uint8_t asked;
  } scalars[] = {{"deterministic", call->hints->deterministic}, {"batch_invariant", call->hints->batch_invariant}};
  for (const auto& [name, asked] : scalars)
    for (size_t i = 0; asked && i < info.scalars.size(); ++i)
      if (!strcmp(info.scalars[i].name, name)) call->set_whole(i, 1);
  return Error::success;
}

Error parse_hints(const char* text, aotriton_hints* hints) noexcept {
  if (!text || !hints) return fail(Error::null_pointer, "hints: the text or the struct is null");
  aotriton_hints own;
  AOTRITON_TRY(read("parse_hints", *hints, &own));
  AOTRITON_TRY(check("parse_hints", own));
  std::string_view left = text;
  for (std::string_view whole = next_word(&left, kBlanks); !whole.empty(); whole = next_word(&left, kBlanks)) {
    const size_t equals = whole.find('=');
    const bool has_value = equals != std::string_view::npos;
    const Word word = {whole.substr(0, equals), has_value ? whole.substr(equals + 1) : "", has_value};
    AOTRITON_TRY(read_word(word, &own));
  }
  const struct {
    const char* name;
    bool asked;
    size_t end;
  } hard[] = {{"batch_invariant", own.batch_invariant != 0, offsetof(aotriton_hints, reserved)},
              {"backend", *own.backend != 0, offsetof(aotriton_hints, image)},
              {"image", *own.image != 0, offsetof(aotriton_hints, exclude)},
              {"exclude", *own.exclude != 0, offsetof(aotriton_hints, unknown)}};
  for (const auto& [name, asked, end] : hard)
    if (asked && hints->size < end)
      return fail(Error::not_supported, "parse_hints: %s has no place in a struct of %zu bytes, an older version's",
                  name, hints->size);
  memcpy(hints, &own, std::min(hints->size, sizeof own));
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1

extern "C" aotriton_error aotriton_parse_hints(const char* text, aotriton_hints* hints) {
  return static_cast<aotriton_error>(aotriton::v2::parse_hints(text, hints));
}
