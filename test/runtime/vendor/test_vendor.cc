// The driver tables over the vendors' libraries. Runs with LD_LIBRARY_PATH at the stand-ins made of lib*.cc.
#include <dlfcn.h>

#include "check.h"
#include "driver/driver.h"

using namespace aotriton::v2;

namespace {

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

// A symbol of the stand-in, which open_cuda or open_hip has loaded.
void* of_library(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  void* const symbol = handle ? dlsym(handle, name) : nullptr;
  CHECK(symbol);
  return symbol;
}

std::string calls(const char* library, const char* name) {
  return reinterpret_cast<const char* (*)()>(of_library(library, name))();
}
std::string cuda_calls() { return calls("libcuda.so.1", "fake_cuda_calls"); }
std::string hip_calls() { return calls("libamdhip64.so", "fake_hip_calls"); }

// What is the same for both: modules, capture and launch.
void check_common(const Driver& driver, std::string (*calls)(), int argument) {
  void *module = nullptr, *function = nullptr;
  CHECK(!driver.load_module(&module, "binary"));
  CHECK(!driver.get_function(&function, module, "entry"));
  CHECK(!driver.unload_module(module));
  // Loaded in the relaxed mode, in which it breaks no capture of another thread.
  CHECK_EQ(calls(), "mode 2;load binary;mode 0;function 0x200 entry;unload 0x200;");

  bool capturing = false;
  CHECK(!driver.is_capturing(pointer(0x999), &capturing));
  CHECK(capturing);
  CHECK(!driver.is_capturing(nullptr, &capturing));
  CHECK(!capturing);

  void* arguments[] = {&argument};
  const uint16_t sizes[] = {sizeof argument};
  CHECK(!driver.launch({pointer(0x300), {1, 2, 3}, 256, 4096, pointer(0x55), arguments, sizes, 1}));
  CHECK_EQ(calls(), "launch 0x300 1,2,3 256,1,1 4096 0x55 " + std::to_string(argument) + " (nil);");
}

// What the library is asked for by a launch that may begin early.
std::string early_launch(const Driver& driver, std::string (*calls)()) {
  int argument = 79;
  void* arguments[] = {&argument};
  const uint16_t sizes[] = {sizeof argument};
  CHECK(!driver.launch({pointer(0x300), {1, 2, 3}, 256, 4096, pointer(0x55), arguments, sizes, 1, true}));
  return calls();
}
const std::string kPlainLaunch = "launch 0x300 1,2,3 256,1,1 4096 0x55 79 (nil);";

}  // namespace

TEST("CUDA is chosen where both vendors have a device, HIP where CUDA has none, none where neither has") {
  CHECK_EQ(driver()->vendor, std::string("cuda"));
  replace_driver(nullptr);
  *static_cast<int*>(of_library("libcuda.so.1", "fake_cuda_devices")) = 0;
  CHECK_EQ(driver()->vendor, std::string("hip"));
  replace_driver(nullptr);
  *static_cast<int*>(of_library("libamdhip64.so", "fake_hip_devices")) = 0;
  CHECK(!driver());
  CHECK_EQ(last_error_message(),
           std::string("no GPU driver: libcuda.so.1 has no device; libamdhip64.so has no device"));
  *static_cast<int*>(of_library("libcuda.so.1", "fake_cuda_devices")) = 1;
  *static_cast<int*>(of_library("libamdhip64.so", "fake_hip_devices")) = 2;
}

TEST("the CUDA table calls libcuda.so.1 with the arguments in its order") {
  char why[200];
  const Driver& cuda = *open_cuda(why, sizeof why);
  static_cast<void>(cuda_calls());

  Contexts contexts;
  for (const uintptr_t of_current : {0, 1, 2}) {  // the default streams, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD too
    CHECK(!cuda.contexts(pointer(of_current), &contexts));
    CHECK(contexts.of_stream == contexts.current && contexts.current == pointer(0x100));
    CHECK_EQ(contexts.id, 0x1100u);
  }
  CHECK(!cuda.contexts(pointer(0x55), &contexts));
  CHECK(contexts.of_stream == pointer(0x101) && contexts.current == pointer(0x100));
  CHECK_EQ(contexts.id, 0x1101u);
  CHECK_EQ(cuda_calls(), "context of 0x55;");
  void* primary;
  CHECK(!cuda.primary_context(1, &primary));
  CHECK_EQ(primary, pointer(0x101));
  CHECK_EQ(cuda_calls(), "retain 1;");

  DeviceProperties properties;
  CHECK(!cuda.enter(contexts.of_stream));
  CHECK(!cuda.properties(&properties));
  CHECK(!cuda.leave(contexts.current));
  CHECK_EQ(properties.arch, std::string("sm_90"));
  CHECK_EQ(properties.name, std::string("NVIDIA H200"));
  CHECK_EQ(properties.memory, uint64_t{141} << 30);
  CHECK_EQ(properties.multiprocessors, 132);
  CHECK_EQ(properties.ordinal, 1);
  CHECK_EQ(cuda_calls(), "push 0x101;attribute 75 of 1;attribute 76 of 1;attribute 16 of 1;name of 1;memory of 1;pop;");

  CHECK(!cuda.set_max_shared(pointer(0x300), 100000));
  CHECK_EQ(cuda_calls(), "set 0x300 8 100000;");

  TensorMap map;
  TensorMapRequest request = {DType::bfloat16, 4, pointer(0x4000), {64, 9, 2, 1}, {128, 1152, 2304}, {32, 16, 1, 1}, 2};
  for (const auto& [dtype, type] : {std::pair(DType::float16, 6), {DType::float32, 7}, {DType::bfloat16, 9}}) {
    request.dtype = dtype;
    CHECK(!cuda.encode_tensor_map(&map, request));
    CHECK_EQ(map.opaque[0], 1u);
    CHECK_EQ(cuda_calls(), "encode " + std::to_string(type) + " 4 0x4000 64,9 128 32,16 1,1 0 2 2 0;");
  }
  CHECK(!cuda.replace_address(&map, pointer(0x8000)));
  CHECK_EQ(map.opaque[1], 0x8000u);
  CHECK_EQ(cuda_calls(), "replace 0x8000;");

  CHECK(!cuda.fill(pointer(0x100), 0xabcd, 2, 64, 10, 256, pointer(0x55)));
  CHECK(!cuda.fill(pointer(0x100), 0xff800000, 4, 64, 1, 0, nullptr));  // one row: its pitch is its length
  CHECK_EQ(cuda_calls(), "fill16 0x100 256 abcd 64 10 0x55;fill32 0x100 256 ff800000 64 1 (nil);");
  check_common(cuda, cuda_calls, 77);

  char text[100];
  cuda.describe_error({2}, text, sizeof text);
  CHECK_EQ(text, std::string("CUDA_ERROR_OUT_OF_MEMORY, 2 (out of memory)"));
  cuda.describe_error({12345}, text, sizeof text);
  CHECK_EQ(text, std::string("unknown error, 12345 (no description)"));
}

TEST("a launch that may begin early says so to CUDA, to drivers since 12.3") {
  char why[200];
  int& version = *static_cast<int*>(of_library("libcuda.so.1", "fake_cuda_version"));
  for (const auto& [driver, wanted] : {std::pair(12030, "launch 0x300 1,2,3 256,1,1 4096 0x55 79 (nil) with 1: 6=1;"),
                                       {12020, kPlainLaunch.c_str()},
                                       {13000, "launch 0x300 1,2,3 256,1,1 4096 0x55 79 (nil) with 1: 6=1;"}}) {
    version = driver;
    const Driver& cuda = *open_cuda(why, sizeof why);
    static_cast<void>(cuda_calls());
    CHECK_EQ(early_launch(cuda, cuda_calls), wanted);
  }
}

TEST("the HIP table calls libamdhip64.so with the arguments in its order, and strips the features off the arch") {
  char why[200];
  const Driver& hip = *open_hip(why, sizeof why);
  static_cast<void>(hip_calls());

  Contexts contexts;
  CHECK(!hip.contexts(nullptr, &contexts));
  CHECK(contexts.of_stream && contexts.of_stream == contexts.current && contexts.id);
  const uint64_t id = contexts.id;
  CHECK(!hip.contexts(pointer(0x55), &contexts));
  CHECK(contexts.of_stream != contexts.current && contexts.id != id);
  CHECK_EQ(hip_calls(), "device of 0x55;");
  void* primary;
  CHECK(!hip.primary_context(1, &primary));
  CHECK_EQ(primary, contexts.of_stream);

  DeviceProperties properties;
  CHECK(!hip.enter(contexts.of_stream));
  CHECK(!hip.properties(&properties));
  CHECK(!hip.leave(contexts.current));
  CHECK_EQ(properties.arch, std::string("gfx942"));
  CHECK_EQ(properties.name, std::string("AMD Instinct MI300X"));
  CHECK_EQ(properties.memory, uint64_t{192} << 30);
  CHECK_EQ(properties.multiprocessors, 304);
  CHECK_EQ(properties.ordinal, 1);
  CHECK_EQ(hip_calls(), "device 1;properties of 1;name of 1;memory of 1;device 0;");

  CHECK(!hip.set_max_shared(pointer(0x300), 65536));
  CHECK(!hip.encode_tensor_map && !hip.replace_address);

  CHECK(!hip.fill(pointer(0x100), 0, 2, 64, 10, 256, pointer(0x55)));
  CHECK(!hip.fill(pointer(0x100), 0, 4, 64, 1, 0, nullptr));
  CHECK_EQ(hip_calls(), "fill8 0x100 256 0 128 10 0x55;fill8 0x100 256 0 256 1 (nil);");
  CHECK(!hip.fill(pointer(0x100), 0xfc00, 2, 64, 2, 256, nullptr));  // row by row, as bytes differ
  CHECK(!hip.fill(pointer(0x100), 0xff800000, 4, 64, 1, 0, nullptr));
  CHECK_EQ(hip_calls(), "fill16 0x100 fc00 64 (nil);fill16 0x200 fc00 64 (nil);fill32 0x100 ff800000 64 (nil);");
  check_common(hip, hip_calls, 78);
  CHECK_EQ(early_launch(hip, hip_calls), kPlainLaunch);

  char text[100];
  hip.describe_error({2}, text, sizeof text);
  CHECK_EQ(text, std::string("hipErrorOutOfMemory, 2 (out of memory)"));
}
