#include "workspace.h"

#include "error.h"

namespace aotriton::v2::inline abi1 {

namespace {

Error derive_sizes(Call& call, const BackendInfo& backend, const Environment& environment) {
  for (const DerivedSize& derived : backend.sizes)
    if (!evaluate(derived.value, environment, &call.sizes[derived.size]))
      return fail(Error::not_supported, "%s: %s does not fit in 63 bits", call.info->name,
                  call.info->sizes[derived.size]);
  return Error::success;
}

}  // namespace

Error lay_out(Call& call, const BackendInfo& backend, const int32_t* psels, int multiprocessors,
              Workspace* workspace) noexcept {
  AOTRITON_TRY(derive_sizes(call, backend, {&call, psels, multiprocessors, 0}));
  constexpr auto kAlignment = static_cast<int64_t>(kWorkspaceAlignment);
  bool fits = shape_workspace(call, true);
  int64_t used = 0;
  for (const uint8_t slot : backend.workspace) {
    used = (used + kAlignment - 1) / kAlignment * kAlignment;
    workspace->offsets[slot] = static_cast<size_t>(used);
    // The workspace is yet to be checked: as a pointer the sum may be none.
    call.views[slot].data =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call.workspace) + static_cast<uintptr_t>(used));
    const int64_t bytes = extent(call.info->slot(slot), call[slot]);
    fits &= bytes >= 0 && !__builtin_add_overflow(used, bytes, &used) && used <= INT64_MAX - kAlignment;
    if (!fits) return fail(Error::not_supported, "%s: the workspace overflows 63 bits", call.info->name);
  }
  workspace->bytes = static_cast<size_t>(used);
  if (!used)  // what has no bytes is nowhere, whichever workspace a call brings
    for (const uint8_t slot : backend.workspace) call.views[slot].data = nullptr;
  return Error::success;
}

}  // namespace aotriton::v2::inline abi1
