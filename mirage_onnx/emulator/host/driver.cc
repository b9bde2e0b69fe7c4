// libcuda's entry points, as far as the custom-op library uses them, for kernels that an emulator runs.
//
// The custom-op library opens this file by its path (session entry ai.mirage.driver, mode host): tensors
// are host memory, and each cuLaunchKernelEx calls the function that the process has set, in the thread
// that runs the session, and returns when the kernel is done. Any image and any kernel name are taken:
// which text stands for which launch is decided by whoever set the function (mirage_onnx/custom_op).
// EMU_CAPABILITY is the compute capability times ten, EMU_SHARED_BYTES the most dynamic shared memory of a
// block, EMU_RESERVED_BYTES what the system takes beside it, EMU_CLUSTERS 1 where there are clusters: one
// library per device profile.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define DRIVER extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kLaunchFailed = 719;
constexpr int kMultiprocessors = 16;
constexpr int kComputeMajor = 75, kComputeMinor = 76;
constexpr int kMostSharedBytes = 97, kReservedSharedBytes = 111, kClusters = 120;
constexpr unsigned kClusterDim = 4, kHostLaunch = 0x4d475500;

// As cpp/ort_custom_ops/driver_api.h declares them.
struct HostLaunch {
  uint64_t counter;
  uint32_t plan, variant, launch, args;
  const uint64_t* arg_bytes;
};
struct Attribute {
  unsigned id;
  char pad[4];
  union {
    char bytes[64];
    unsigned cluster[3];
    const HostLaunch* host;
  } value;
};
struct Config {
  unsigned grid[3], block[3], smem_bytes;
  void* stream;
  const Attribute* attributes;
  unsigned count;
};
static_assert(sizeof(Attribute) == 72 && sizeof(Config) == 56, "layout of the driver API");

// As mirage_onnx/emulator/driver.py declares it.
struct Launch {
  const char* kernel;
  const HostLaunch* host;
  void* const* params;
  unsigned grid[3], block[3], cluster, smem_bytes;
};
using Run = int (*)(const Launch*, char* message, size_t size);

struct Kernel {
  std::string name;
};

Run run = nullptr;
thread_local char message[2048] = "";

std::mutex mutex;
std::map<std::string, Kernel>& kernels() {
  static auto* all = new std::map<std::string, Kernel>;  // never destroyed: sessions may outlive us
  return *all;
}

int fail(int code, const char* why) {
  std::snprintf(message, sizeof message, "%s", why);
  return code;
}

}  // namespace

// `run` returns 0, or anything else and a message. To be set before the first session is made.
DRIVER void emu_driver_set_run(Run function) { run = function; }

DRIVER int cuInit(unsigned) { return kSuccess; }
DRIVER int cuDeviceGetCount(int* count) { return *count = 1, kSuccess; }
DRIVER int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, kSuccess; }
DRIVER int cuCtxGetDevice(int* device) { return *device = 0, kSuccess; }
DRIVER int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case kMultiprocessors: return *value = EMU_MULTIPROCESSORS, kSuccess;
    case kComputeMajor: return *value = EMU_CAPABILITY / 10, kSuccess;
    case kComputeMinor: return *value = EMU_CAPABILITY % 10, kSuccess;
    case kMostSharedBytes: return *value = EMU_SHARED_BYTES, kSuccess;
    case kReservedSharedBytes: return *value = EMU_RESERVED_BYTES, kSuccess;
    case kClusters: return *value = EMU_CLUSTERS, kSuccess;
    default: return kInvalidValue;
  }
}
DRIVER int cuDeviceGetName(char* name, int size, int) {
  return std::snprintf(name, size, "%s", EMU_NAME), kSuccess;
}
// What went wrong in this thread last: more than a name, and the only text that the API hands on.
DRIVER int cuGetErrorName(int, const char** name) { return *name = message, kSuccess; }
DRIVER int cuLibraryLoadData(void** out, const void*, int*, void**, unsigned, int*, void**,
                             unsigned) {
  return *out = &kernels(), kSuccess;
}
DRIVER int cuLibraryGetKernel(void** out, void*, const char* name) {
  std::lock_guard<std::mutex> lock(mutex);
  Kernel& kernel = kernels()[name];
  kernel.name = name;
  return *out = &kernel, kSuccess;
}
DRIVER int cuKernelGetFunction(void** out, void* kernel) { return *out = kernel, kSuccess; }
DRIVER int cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }
// A launch is done when it returns, so the order of a stream is that of the calls.
DRIVER int cuMemAllocAsync(unsigned long long* out, size_t bytes, void*) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return fail(2, "out of memory");
  return *out = reinterpret_cast<uintptr_t>(memory), kSuccess;
}
DRIVER int cuMemFreeAsync(unsigned long long memory, void*) {
  return std::free(reinterpret_cast<void*>(memory)), kSuccess;
}
DRIVER int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
// As tensor_load of async.h reads it.
DRIVER int cuTensorMapEncodeTiled(uint64_t* map, int, unsigned rank, void* at, const uint64_t* sizes,
                                  const uint64_t* strides, const unsigned* box, const unsigned*, int, int,
                                  int, int) {
  if (rank != 2 || box[0] != 64) return fail(kInvalidValue, "a tensor map that is not emulated");
  map[0] = reinterpret_cast<uintptr_t>(at);
  map[1] = sizes[1];
  map[2] = sizes[0];
  map[3] = strides[0] / 2;
  map[4] = box[1];
  return kSuccess;
}
DRIVER int cuLaunchKernelEx(const Config* config, void* function, void** params, void**) {
  Launch launch{};
  launch.kernel = static_cast<Kernel*>(function)->name.c_str();
  launch.params = params;
  launch.cluster = 1;
  launch.smem_bytes = config->smem_bytes;
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = config->grid[i];
    launch.block[i] = config->block[i];
  }
  for (unsigned i = 0; i < config->count; ++i) {
    const Attribute& attribute = config->attributes[i];
    if (attribute.id == kClusterDim) launch.cluster = attribute.value.cluster[0];
    if (attribute.id == kHostLaunch) launch.host = attribute.value.host;
  }
  if (run == nullptr) return fail(kNotFound, "no emulator is attached to the driver");
  if (launch.host == nullptr) return fail(kNotFound, "the custom-op library does not say whose launch it is");
  return run(&launch, message, sizeof message) == 0 ? kSuccess : kLaunchFailed;
}
