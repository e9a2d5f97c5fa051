// Two copies of the library in one process, in shared objects that are open to all: each serves its own.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace {

struct Copy {
  explicit Copy(const char* path) : library(dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
    if (!library) printf("  %s\n", dlerror());
    CHECK(library);
    find(version, "copy_version");
    find(message, "copy_message");
    find(refusal, "copy_refusal");
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(library ? dlsym(library, name) : nullptr);
    CHECK(function);
  }

  void* library;
  const char* (*version)();
  const char* (*message)();
  const char* (*refusal)(int);
};

// The dynamic symbols that `path` defines.
std::vector<std::string> exported(const char* path) {
  FILE* const pipe = popen((NM " -D --defined-only --format=posix " + std::string(path)).c_str(), "r");
  std::vector<std::string> names;
  for (char line[512]; pipe && fgets(line, sizeof line, pipe);) names.push_back(strtok(line, " "));
  CHECK(pipe && pclose(pipe) == 0);
  return names;
}

}  // namespace

TEST("two copies of the library in one process do not take each other's place") {
  const Copy first(FIRST_COPY), second(SECOND_COPY);
  CHECK_EQ(first.version(), std::string(FIRST_VERSION));
  CHECK_EQ(second.version(), std::string("77.8.9"));
  CHECK_EQ(first.refusal(1), std::string("attn_fwd: q has heads_q -1, which must not be negative"));
  CHECK_EQ(second.refusal(2), std::string("attn_fwd: q has heads_q -2, which must not be negative"));
  CHECK_EQ(first.message(), std::string("attn_fwd: q has heads_q -1, which must not be negative"));
}

TEST("a shared object with the whole archive inside exports nothing of it") {
  const std::vector<std::string> names = exported(FIRST_COPY);
  CHECK_EQ(names.size(), 3u);
  for (const std::string& name : names) CHECK_EQ(name.substr(0, 5), "copy_");
}
