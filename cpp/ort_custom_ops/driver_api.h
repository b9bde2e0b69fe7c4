// The few CUDA driver entry points this library calls, loaded with dlopen: no link to CUDA, and a
// machine without a driver is an ordinary case. Types are declared here; the driver ABI is stable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mirage::cu {

using Result = int;
using Device = int;
struct LibrarySt;
struct KernelSt;
struct FunctionSt;
struct StreamSt;
using Library = LibrarySt*;
using Kernel = KernelSt*;
using Function = FunctionSt*;
using Stream = StreamSt*;
using Address = unsigned long long;

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr int kDeviceMultiprocessors = 16;
constexpr int kDeviceComputeMajor = 75;
constexpr int kDeviceComputeMinor = 76;
constexpr int kDeviceMostSharedBytes = 97;  // of a block that asks for them
constexpr int kDeviceReservedSharedBytes = 111;  // of a block, for the system
constexpr int kDeviceClusters = 120;  // whether there are any
constexpr int kFuncMaxDynamicSmem = 8;
constexpr int kFuncNonPortableCluster = 14;
constexpr unsigned kAttrClusterDim = 4;
constexpr unsigned kAttrProgrammaticStreamSerialization = 6;
constexpr unsigned kAttrHostLaunch = 0x4d475500;  // host mode only: no CUDA driver ever sees it

// What an emulator has to know of a launch and the driver API has no place for: whose it is, and how
// many bytes there are at each pointer argument (0 for an integer). Mirrored in emulator/host/driver.cc.
struct HostLaunch {
  uint64_t counter;  // id of the kernel object's counter
  uint32_t plan, variant, launch, args;
  const uint64_t* arg_bytes;
};
static_assert(sizeof(HostLaunch) == 32, "layout of HostLaunch");

// What the copy engine is told of a tensor; the driver makes it.
struct alignas(64) TensorMap {
  uint64_t words[16];
};
constexpr int kTensorMapU16 = 1, kTensorMapSwizzle128 = 3, kTensorMapPromotion256 = 3;

struct LaunchAttribute {
  unsigned id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int pdl_allowed;
    const HostLaunch* host;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "layout of CUlaunchAttribute");

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned smem_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(
    offsetof(LaunchConfig, stream) == 32 && sizeof(LaunchConfig) == 56, "layout of CUlaunchConfig");

// One opened driver. Immutable once opened; lives until the process ends.
struct Driver {
  std::string path;
  Result (*Init)(unsigned);
  Result (*DeviceGetCount)(int*);
  Result (*DeviceGet)(Device*, int);
  Result (*DeviceGetAttribute)(int*, int, Device);
  Result (*GetErrorName)(Result, const char**);
  Result (*CtxGetDevice)(Device*);
  Result (*LibraryLoadData)(Library*, const void* code, int* jit, void** jit_values, unsigned jit_n,
      int* opts, void** opt_values, unsigned opt_n);
  Result (*LibraryGetKernel)(Kernel*, Library, const char*);
  Result (*KernelGetFunction)(Function*, Kernel);
  Result (*KernelSetAttribute)(int attribute, int value, Kernel, Device);
  Result (*DeviceGetName)(char* name, int size, Device);  // null where a stand-in lacks it
  Result (*DeviceTotalMem)(size_t* bytes, Device);  // null where a stand-in lacks it
  Result (*LaunchKernelEx)(const LaunchConfig*, Function, void** params, void** extra);
  // Memory in the order of a stream; null where a driver lacks them (CUDA's have all since 11.2).
  Result (*MemAllocAsync)(Address*, size_t, Stream);
  Result (*MemFreeAsync)(Address, Stream);
  Result (*MemcpyAsync)(Address to, Address from, size_t, Stream);
  // How many clusters of such a launch the device holds at once; null where a stand-in lacks it.
  Result (*OccupancyMaxActiveClusters)(int* clusters, Function, const LaunchConfig*);
  // Null where a stand-in lacks it: plans with tensor maps are refused there.
  Result (*TensorMapEncodeTiled)(TensorMap*, int type, unsigned rank, void* at, const uint64_t* sizes,
      const uint64_t* strides, const unsigned* box, const unsigned* steps, int interleave, int swizzle,
      int promotion, int fill);
  // CUDA 12.4 and later; null before.
  Result (*KernelGetParamInfo)(Kernel, size_t index, size_t* offset, size_t* size);

  // "CUDA_ERROR_INVALID_IMAGE (200)"
  std::string describe(Result) const;
};

// Opens the driver at `path` ("" = libcuda.so.1) once per path. Returns null and sets `error` when
// it cannot be opened, lacks an entry point, or cuInit fails.
const Driver* open_driver(const std::string& path, std::string* error);

// Compute capability of a device; false (with `error`) when the driver refuses.
bool compute_capability(const Driver&, Device, int* major, int* minor, std::string* error);

// What a device is called, and how many multiprocessors it has: "" and 0 where the driver does not say.
void which_device(const Driver&, Device, std::string* name, int* multiprocessors);

// What a device gives one block.
struct Limits {
  uint64_t shared_bytes;  // static and dynamic
  uint64_t reserved_bytes;  // for the system, beside them
  bool clusters;
};
// False (with `error`) when the driver does not say.
bool device_limits(const Driver&, Device, Limits*, std::string* error);

}  // namespace mirage::cu
