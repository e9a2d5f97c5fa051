#include "recording.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "launch/device.h"

namespace aotriton::v2::inline abi1 {

namespace {

struct Module {
  std::string head;
};

struct Function {
  Module* module;
  std::string entry;
  uint32_t max_shared = 0;
};

Recording recording;
std::mutex mutex;
std::vector<std::unique_ptr<Module>> modules;
std::vector<std::unique_ptr<Function>> functions;
thread_local std::vector<void*> current = {nullptr};

// Every function of the table begins with one; the status tells whether this call is the one to fail.
struct Call {
  std::lock_guard<std::mutex> lock{mutex};
  const Status status = {++recording.calls == recording.fail_at ? kRecordedFailure : 0};
};

Status contexts(void* stream, Contexts* contexts) {
  const Call call;
  contexts->current = contexts->of_stream = current.back();
  if (stream) contexts->of_stream = recording.stream_contexts.at(stream);
  contexts->id = 0;
  if (contexts->of_stream)
    contexts->id =
        reinterpret_cast<uint64_t>(contexts->of_stream) << 16 | recording.devices.at(contexts->of_stream).life;
  return call.status;
}

Status enter(void* context) {
  const Call call;
  if (!call.status) current.push_back(context);
  return call.status;
}

Status leave(void*) {
  const Call call;
  current.pop_back();
  return call.status;
}

Status properties(DeviceProperties* properties) {
  const Call call;
  const RecordedDevice& device = recording.devices.at(current.back());
  snprintf(properties->arch, sizeof properties->arch, "%s", device.arch.c_str());
  properties->multiprocessors = device.multiprocessors;
  snprintf(properties->name, sizeof properties->name, "%s", device.name.c_str());
  properties->ordinal = device.ordinal;
  properties->memory = device.memory;
  return call.status;
}

Status primary_context(int ordinal, void** context) {
  const Call call;
  for (const auto& [found, device] : recording.devices)
    if (device.ordinal == ordinal) *context = const_cast<void*>(found);
  return call.status;
}

Status load_module(void** module, const void* binary) {
  const Call call;
  if (call.status) return call.status;
  const std::string head(static_cast<const char*>(binary), 16);
  recording.loads.push_back({current.back(), head});
  ++recording.modules;
  *module = modules.emplace_back(new Module{head}).get();
  return {};
}

Status unload_module(void*) {
  const Call call;
  --recording.modules;
  return call.status;
}

Status get_function(void** function, void* module, const char* name) {
  const Call call;
  if (call.status) return call.status;
  *function = functions.emplace_back(new Function{static_cast<Module*>(module), name}).get();
  return {};
}

Status set_max_shared(void* function, uint32_t bytes) {
  const Call call;
  static_cast<Function*>(function)->max_shared = bytes;
  return call.status;
}

Status is_capturing(void* stream, bool* capturing) {
  const Call call;
  *capturing = recording.capturing.contains(stream);
  return call.status;
}

Status encode_tensor_map(TensorMap* map, const TensorMapRequest& request) {
  const Call call;
  ++recording.encoded;
  memset(map, 0, sizeof *map);
  memcpy(map, &request, sizeof request);
  return call.status;
}

Status replace_address(TensorMap* map, void* address) {
  const Call call;
  ++recording.replaced;
  memcpy(reinterpret_cast<char*>(map) + offsetof(TensorMapRequest, address), &address, sizeof address);
  return call.status;
}

Status fill(void* data, uint32_t pattern, int64_t bytes, int64_t width, int64_t rows, int64_t pitch, void*) {
  const Call call;
  recording.fills.push_back({data, pattern, bytes, width, rows, pitch});
  return call.status;
}

Status launch(const Launch& launch) {
  const Call call;
  if (call.status) return call.status;
  const auto& function = *static_cast<const Function*>(launch.function);
  RecordedLaunch seen = {.context = current.back(),
                         .stream = launch.stream,
                         .entry = function.entry,
                         .head = function.module->head,
                         .grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                         .threads = launch.threads,
                         .shared = launch.shared,
                         .max_shared = function.max_shared,
                         .early = launch.early,
                         .arguments = {}};
  for (int i = 0; i < launch.argument_count; ++i) {
    const auto* bytes = static_cast<const unsigned char*>(launch.arguments[i]);
    seen.arguments.emplace_back(bytes, bytes + launch.sizes[i]);
  }
  recording.launches.push_back(std::move(seen));
  return {};
}

void describe_error(Status status, char* text, size_t size) {
  snprintf(text, size, "RECORDED_FAILURE, %d", status.number);
}

constexpr Driver table(const char* name, const char* vendor, bool descriptors) {
  return {.name = name,
          .vendor = vendor,
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
          .encode_tensor_map = descriptors ? encode_tensor_map : nullptr,
          .replace_address = descriptors ? replace_address : nullptr,
          .fill = fill,
          .launch = launch,
          .is_gone = nullptr,
          .describe_error = describe_error};
}

constexpr Driver cuda = table("CUDA", "cuda", true);
constexpr Driver hip = table("HIP", "hip", false);

}  // namespace

Recording& start_recording(const char* vendor) {
  replace_driver(!strcmp(vendor, "cuda") ? &cuda : &hip);
  forget_devices();
  recording = {};
  modules.clear();
  functions.clear();
  current = {nullptr};
  return recording;
}

void set_current_context(void* context) { current.back() = context; }
void* current_context() { return current.back(); }

}  // namespace aotriton::v2::inline abi1
