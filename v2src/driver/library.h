// A shared library opened at run time, and the functions found in it.
#pragma once

#include <dlfcn.h>

#include <initializer_list>

namespace aotriton::v2::inline abi1 {

class Library {
 public:
  // Opens the first of `names` that the process has loaded already, else the first that exists, and keeps it open.
  bool open(std::initializer_list<const char*> names) noexcept {
    for (const int loaded : {RTLD_NOLOAD, 0})
      for (const char* name : names) {
        handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | loaded);
        if (handle_) return true;
      }
    return false;
  }

  template <class Function>
  void find(Function*& function, const char* name) noexcept {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (!function && !missing_) missing_ = name;
  }

  // First function that was looked for in vain, or null.
  const char* missing() const noexcept { return missing_; }

 private:
  void* handle_ = nullptr;
  const char* missing_ = nullptr;
};

}  // namespace aotriton::v2::inline abi1
