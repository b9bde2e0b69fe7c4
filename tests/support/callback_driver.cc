// A CUDA driver for tests whose launches are done by the test: the custom-op library opens it by path,
// and every cuLaunchKernelEx calls the function that the test has set, with host addresses.
// It takes any image and any kernel name.

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

struct Kernel {
  std::string name;
};
struct Attribute {
  unsigned id;
  char pad[4];
  unsigned value[16];
};
struct Config {
  unsigned grid[3], block[3], smem;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

// name, grid, block, cluster, shared bytes, parameters (each the address of a pointer)
using Callback = int (*)(const char*, const unsigned*, unsigned, unsigned, unsigned, void**);
Callback callback = nullptr;
std::map<std::string, Kernel> kernels;
std::mutex mutex;

}  // namespace

DRIVER void test_set_callback(Callback f) { callback = f; }

DRIVER int cuInit(unsigned) { return 0; }
DRIVER int cuDeviceGetCount(int* count) { return *count = 1, 0; }
DRIVER int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
DRIVER int cuDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute != 75 && attribute != 76) return 1;
  const char* text = std::getenv("TEST_DRIVER_CC");
  const int capability = text != nullptr ? std::atoi(text) : 90;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
DRIVER int cuCtxGetDevice(int* device) { return *device = 0, 0; }
DRIVER int cuGetErrorName(int, const char** name) { return *name = "TEST_DRIVER_ERROR", 0; }
DRIVER int cuLibraryLoadData(void** out, const void*, int*, void**, unsigned, int*, void**,
                             unsigned) {
  return *out = &kernels, 0;
}
DRIVER int cuLibraryGetKernel(void** out, void*, const char* name) {
  std::lock_guard<std::mutex> lock(mutex);
  Kernel& kernel = kernels[name];
  kernel.name = name;
  return *out = &kernel, 0;
}
DRIVER int cuKernelGetFunction(void** out, void* kernel) { return *out = kernel, 0; }
DRIVER int cuKernelSetAttribute(int, int, void*, int) { return 0; }
DRIVER int cuLaunchKernelEx(const Config* config, void* function, void** params, void**) {
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->count; ++i)
    if (config->attributes[i].id == 4) cluster = config->attributes[i].value[0];
  const char* name = static_cast<Kernel*>(function)->name.c_str();
  return callback == nullptr
             ? 1
             : callback(name, config->grid, config->block[0], cluster, config->smem, params);
}
