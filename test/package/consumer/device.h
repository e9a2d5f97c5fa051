// Device memory through libcuda.so.1, opened at run time, so that this program builds where there is no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

class Device {
 public:
  // Makes the first device's primary context current. False, with the reason in why(), where there is no device.
  bool open();
  const char* why() const { return why_; }

  // A copy of `bytes` in device memory; freed by free_all().
  void* upload(const std::vector<uint16_t>& elements);
  void* allocate(size_t bytes);
  template <class T>
  std::vector<T> download(const void* device, size_t count) {
    std::vector<T> host(count);
    to_host(host.data(), device, count * sizeof(T));
    return host;
  }
  void fill(void* device, size_t bytes, unsigned char value);
  void free_all();

 private:
  void to_host(void* host, const void* device, size_t bytes);
  const char* why_ = "";
  std::vector<uint64_t> allocated_;
};
