#include "device.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace {

// CUdeviceptr is a 64-bit integer, handles are pointers, enumerations and CUdevice are int.
int (*init)(unsigned);
int (*device_get)(int*, int);
int (*retain)(void**, int);
int (*set_current)(void*);
int (*allocate_memory)(uint64_t*, size_t);
int (*free_memory)(uint64_t);
int (*copy_to_device)(uint64_t, const void*, size_t);
int (*copy_to_host)(void*, uint64_t, size_t);
int (*set_bytes)(uint64_t, unsigned char, size_t);
int (*synchronize)();

void check(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "CUDA could not %s: error %d\n", what, status);
  std::exit(2);
}

}  // namespace

bool Device::open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    why_ = "libcuda.so.1 was not found";
    return false;
  }
  bool complete = true;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    complete = complete && function;
  };
  find(init, "cuInit");
  find(device_get, "cuDeviceGet");
  find(retain, "cuDevicePrimaryCtxRetain");
  find(set_current, "cuCtxSetCurrent");
  find(allocate_memory, "cuMemAlloc_v2");
  find(free_memory, "cuMemFree_v2");
  find(copy_to_device, "cuMemcpyHtoD_v2");
  find(copy_to_host, "cuMemcpyDtoH_v2");
  find(set_bytes, "cuMemsetD8_v2");
  find(synchronize, "cuCtxSynchronize");
  int device = 0;
  void* context = nullptr;
  if (!complete || init(0) || device_get(&device, 0)) {
    why_ = "libcuda.so.1 has no device";
    return false;
  }
  check(retain(&context, device), "retain the primary context");
  check(set_current(context), "make the primary context current");
  return true;
}

void* Device::allocate(size_t bytes) {
  uint64_t address = 0;
  check(allocate_memory(&address, bytes), "allocate memory");
  allocated_.push_back(address);
  return reinterpret_cast<void*>(address);
}

void* Device::upload(const std::vector<uint16_t>& elements) {
  void* device = allocate(elements.size() * 2);
  check(copy_to_device(reinterpret_cast<uint64_t>(device), elements.data(), elements.size() * 2), "copy to the device");
  return device;
}

void Device::to_host(void* host, const void* device, size_t bytes) {
  check(synchronize(), "run the kernels");
  check(copy_to_host(host, reinterpret_cast<uint64_t>(device), bytes), "copy to the host");
}

void Device::fill(void* device, size_t bytes, unsigned char value) {
  check(set_bytes(reinterpret_cast<uint64_t>(device), value, bytes), "fill memory");
}

void Device::free_all() {
  check(synchronize(), "run the kernels");
  for (uint64_t address : allocated_) check(free_memory(address), "free memory");
  allocated_.clear();
}
