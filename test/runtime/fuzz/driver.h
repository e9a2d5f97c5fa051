// A driver that takes nothing that the vendors' drivers refuse: every launch, tensor map and fill must be legal, and
// the arguments of a launch as large as the image's own parameters.
#pragma once

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "call/call.h"
#include "driver/driver.h"
#include "launch/device.h"

namespace fuzz {

using namespace aotriton::v2;

inline std::string what_happens;  // printed where an oracle objects

[[noreturn]] inline void object(const std::string& objection) {
  fprintf(stderr, "fuzz: %s\nlast error: %s\n%s\n", objection.c_str(), last_error_message(), what_happens.c_str());
  abort();
}

// As test/fake_build.py makes it.
struct FakeImage {
  std::string digest, entry;
  std::vector<uint16_t> parameters;  // bytes of each
};

struct SeenLaunch {
  std::string image;  // its name
  uint64_t hash;      // of all that it was given
};

struct SeenFill {
  uintptr_t begin, end;
};

// What the driver pretends and saw since the last reset_seen.
struct State {
  bool hip;
  int multiprocessors;
  uint64_t context_id = 1;
  int fail_at = 0;  // this call, counted from 1, fails; 0: none
  bool capturing = false;

  int calls = 0;
  std::vector<SeenLaunch> launches;
  std::vector<SeenFill> fills;
  uint64_t hash = 0;  // of everything that was ever launched: equal for two builds that do the same
  std::map<std::string, std::unique_ptr<FakeImage>> images;  // by digest and entry
};
inline State state;

inline void reset_seen() {
  state.calls = 0;
  state.launches.clear();
  state.fills.clear();
}

inline constexpr int kFailure = 999;
inline constexpr size_t kMostFills = 1000;  // of one call; more would take too long
inline void* const kContext = reinterpret_cast<void*>(uintptr_t{0xC0});

inline Status status() { return {++state.calls == state.fail_at ? kFailure : 0}; }

inline uint64_t mix(uint64_t hash, const void* data, size_t size) {
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  return hash;
}

inline Status contexts(void*, Contexts* contexts) {
  *contexts = {kContext, kContext, state.context_id};
  return status();
}
inline Status enter(void*) { return status(); }
inline Status leave(void*) { return status(); }
inline Status properties(DeviceProperties* properties) {
  snprintf(properties->arch, sizeof properties->arch, "%s", state.hip ? "gfx942" : "sm_90");
  snprintf(properties->name, sizeof properties->name, "a GPU of no product");
  properties->multiprocessors = state.multiprocessors;
  properties->ordinal = 0;
  properties->memory = 0;
  return status();
}
inline Status primary_context(int, void** context) { return *context = kContext, status(); }

inline Status load_module(void** module, const void* binary) {
  std::istringstream text(static_cast<const char*>(binary));
  auto image = std::make_unique<FakeImage>();
  std::string parameters;
  std::getline(std::getline(std::getline(text, image->digest), image->entry), parameters);
  std::istringstream numbers(parameters);
  for (uint16_t bytes; numbers >> bytes;) image->parameters.push_back(bytes);
  if (image->digest.size() != 16 || image->parameters.size() < 3) object("an image was not unpacked to what it was");
  std::unique_ptr<FakeImage>& known = state.images[image->digest + image->entry];
  if (!known) known = std::move(image);
  *module = known.get();
  return status();
}
inline Status unload_module(void*) { return {}; }
inline Status get_function(void** function, void* module, const char* name) {
  if (static_cast<FakeImage*>(module)->entry != name) object("a function was looked for in another image");
  *function = module;
  return status();
}
inline Status set_max_shared(void*, uint32_t bytes) {
  if (bytes > 227 * 1024) object("more shared memory than a program can have");
  return status();
}
inline Status is_capturing(void*, bool* capturing) { return *capturing = state.capturing, status(); }

// The request's fields without what lies between them, so that equal requests are equal bytes.
inline void store(TensorMap* map, const TensorMapRequest& r) {
  memset(map, 0, sizeof *map);
  map->opaque[0] = reinterpret_cast<uint64_t>(r.address);
  map->opaque[1] =
      static_cast<uint64_t>(r.dtype) << 32 | static_cast<uint64_t>(r.rank) << 16 | static_cast<uint64_t>(r.swizzle);
  for (size_t i = 0; i < 4; ++i) map->opaque[2 + i] = r.sizes[i], map->opaque[12 + i] = r.box[i];
  for (size_t i = 0; i < 3; ++i) map->opaque[6 + i] = r.strides[i];
}

inline Status encode_tensor_map(TensorMap* map, const TensorMapRequest& r) {
  const uint64_t element = static_cast<uint64_t>(bytes_of(r.dtype));
  if (reinterpret_cast<uintptr_t>(r.address) % 16) object("tensor map: its address is not aligned");
  if (r.rank < 1 || r.rank > 5) object("tensor map: its rank");
  for (int i = 0; i < r.rank; ++i) {
    if (!r.sizes[i] || r.sizes[i] > uint64_t{1} << 32) object("tensor map: a size");
    if (!r.box[i] || r.box[i] > 256) object("tensor map: a side of the box");
    if (i && (r.strides[i - 1] % 16 || r.strides[i - 1] >= uint64_t{1} << 40)) object("tensor map: a stride");
  }
  constexpr uint64_t kSpans[] = {UINT64_MAX, 32, 64, 128};  // bytes, by swizzle
  if (r.box[0] * element % 16 || r.swizzle < 0 || r.swizzle > 3 || r.box[0] * element > kSpans[r.swizzle])
    object("tensor map: a row of the box");
  store(map, r);
  return status();
}
inline Status replace_address(TensorMap* map, void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16) object("tensor map: its new address is not aligned");
  map->opaque[0] = reinterpret_cast<uint64_t>(address);
  return status();
}

inline Status fill(void* data, uint32_t, int64_t bytes, int64_t width, int64_t rows, int64_t pitch, void*) {
  if (!data || (bytes != 2 && bytes != 4) || reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes))
    object("fill: its data");
  if (width < 1 || rows < 1 || (rows > 1 && pitch < width * bytes)) object("fill: its rows");
  const auto begin = reinterpret_cast<uintptr_t>(data);
  state.fills.push_back({begin, begin + static_cast<uintptr_t>((rows - 1) * pitch + width * bytes)});
  return state.fills.size() > kMostFills ? Status{kFailure} : status();
}

inline void check_arguments(const FakeImage& image, const Launch& launch) {
  if (image.parameters.size() != static_cast<size_t>(launch.argument_count)) object("a launch has too few arguments");
  size_t end = 0;
  for (size_t i = 0; i < image.parameters.size(); ++i) {
    const size_t wanted = image.parameters[i], given = launch.sizes[i];
    // A stride that the kernel takes in 32 bits is given in 64.
    if (given != wanted && !(state.hip && wanted == 4 && given == 8)) object("an argument has another size");
    if (wanted == sizeof(TensorMap) && reinterpret_cast<uintptr_t>(launch.arguments[i]) % 64)
      object("a tensor map is not aligned");
    const size_t alignment = wanted == sizeof(TensorMap) ? 64 : wanted;
    end = (end + alignment - 1) / alignment * alignment + wanted;
  }
  if (end > 4096) object("more than 4 KiB of parameters");
}

inline Status launch(const Launch& launch) {
  const auto& image = *static_cast<const FakeImage*>(launch.function);
  const uint32_t* const grid = launch.grid;
  if (!grid[0] || !grid[1] || !grid[2] || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535)
    object("a grid that can not be launched");
  if (!launch.threads || launch.threads > 1024) object("a number of threads that can not be launched");
  if (state.hip && uint64_t{grid[0]} * launch.threads > UINT32_MAX) object("more threads than HIP counts");
  check_arguments(image, launch);
  if (const Status failed = status()) return failed;
  uint64_t hash = mix(mix(14695981039346656037u, image.digest.data(), 16), grid, 3 * sizeof *grid);
  for (int i = 0; i < launch.argument_count; ++i) hash = mix(hash, launch.arguments[i], launch.sizes[i]);
  // A portable kernel's device code of other levels has its name, and more.
  const bool own_name = image.entry.find("_hopper") != std::string::npos;
  const std::string kernel = own_name ? image.entry : image.entry.substr(0, image.entry.find("_features"));
  state.launches.push_back({kernel + (state.hip ? "_gfx942_" : "_sm_90_") + image.digest, hash});
  state.hash = mix(state.hash, &hash, sizeof hash);
  return {};
}

inline void describe_error(Status failed, char* text, size_t size) { snprintf(text, size, "FUZZ, %d", failed.number); }

inline const Driver& fuzzed_driver() {
  static const Driver made = {
      .name = state.hip ? "HIP" : "CUDA",
      .vendor = state.hip ? "hip" : "cuda",
      .contexts = contexts,
      .enter = enter,
      .leave = leave,
      .properties = properties,
      .primary_context = primary_context,
      .load_module = load_module,
      .unload_module = unload_module,
      .get_function = get_function,
      .set_max_shared = set_max_shared,
      .is_capturing = is_capturing,
      .encode_tensor_map = state.hip ? nullptr : encode_tensor_map,
      .replace_address = state.hip ? nullptr : replace_address,
      .fill = fill,
      .launch = launch,
      .is_gone = nullptr,
      .describe_error = describe_error,
  };
  return made;
}

}  // namespace fuzz
