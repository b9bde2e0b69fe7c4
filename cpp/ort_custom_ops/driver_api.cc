#include "driver_api.h"

#include <map>
#include <memory>
#include <mutex>

#include "platform.h"

namespace mirage::cu {
namespace {

template <class Fn>
bool load(void* handle, const char* name, Fn* out, std::string* missing) {
  *out = reinterpret_cast<Fn>(platform::find_symbol(handle, name));
  if (*out == nullptr && missing->empty()) *missing = name;
  return *out != nullptr;
}

std::unique_ptr<Driver> open_uncached(const std::string& name, std::string* error) {
  std::string why;
  void* handle = platform::open_library(name, &why);
  if (handle == nullptr) {
    *error = "cannot open the CUDA driver " + name + ": " + why;
    return nullptr;
  }
  auto driver = std::make_unique<Driver>();
  driver->path = name;
  std::string missing;
  load(handle, "cuInit", &driver->Init, &missing);
  load(handle, "cuDeviceGetCount", &driver->DeviceGetCount, &missing);
  load(handle, "cuDeviceGet", &driver->DeviceGet, &missing);
  load(handle, "cuDeviceGetAttribute", &driver->DeviceGetAttribute, &missing);
  load(handle, "cuGetErrorName", &driver->GetErrorName, &missing);
  load(handle, "cuCtxGetDevice", &driver->CtxGetDevice, &missing);
  load(handle, "cuLibraryLoadData", &driver->LibraryLoadData, &missing);
  load(handle, "cuLibraryGetKernel", &driver->LibraryGetKernel, &missing);
  load(handle, "cuKernelGetFunction", &driver->KernelGetFunction, &missing);
  load(handle, "cuKernelSetAttribute", &driver->KernelSetAttribute, &missing);
  load(handle, "cuLaunchKernelEx", &driver->LaunchKernelEx, &missing);
  if (!missing.empty()) {
    *error = "the CUDA driver " + name + " has no " + missing + " (CUDA 12.0 or later is needed)";
    platform::close_library(handle);
    return nullptr;
  }
  std::string optional;
  load(handle, "cuMemAllocAsync", &driver->MemAllocAsync, &optional);
  load(handle, "cuMemFreeAsync", &driver->MemFreeAsync, &optional);
  load(handle, "cuMemcpyAsync", &driver->MemcpyAsync, &optional);
  load(handle, "cuDeviceGetName", &driver->DeviceGetName, &optional);
  load(handle, "cuDeviceTotalMem_v2", &driver->DeviceTotalMem, &optional);
  load(handle, "cuOccupancyMaxActiveClusters", &driver->OccupancyMaxActiveClusters, &optional);
  load(handle, "cuTensorMapEncodeTiled", &driver->TensorMapEncodeTiled, &optional);
  load(handle, "cuKernelGetParamInfo", &driver->KernelGetParamInfo, &optional);
  if (Result r = driver->Init(0); r != kSuccess) {
    *error = "cuInit of " + name + " failed: " + driver->describe(r);
    platform::close_library(handle);
    return nullptr;
  }
  return driver;
}

}  // namespace

std::string Driver::describe(Result result) const {
  const char* name = nullptr;
  if (GetErrorName(result, &name) != kSuccess || name == nullptr) name = "unknown CUDA error";
  return std::string(name) + " (" + std::to_string(result) + ")";
}

const Driver* open_driver(const std::string& path, std::string* error) {
  // Never destroyed: kernels may still be launched while static destructors run.
  static auto* mutex = new std::mutex;
  static auto* drivers = new std::map<std::string, std::unique_ptr<Driver>>;
  const std::string name = path.empty() ? platform::kDriverName : path;
  std::lock_guard<std::mutex> lock(*mutex);
  auto found = drivers->find(name);
  if (found != drivers->end()) return found->second.get();
  auto driver = open_uncached(name, error);  // a failure is not cached: a driver may appear later
  if (driver == nullptr) return nullptr;
  return drivers->emplace(name, std::move(driver)).first->second.get();
}

bool compute_capability(
    const Driver& driver, Device device, int* major, int* minor, std::string* error) {
  Result r = driver.DeviceGetAttribute(major, kDeviceComputeMajor, device);
  if (r == kSuccess) r = driver.DeviceGetAttribute(minor, kDeviceComputeMinor, device);
  if (r != kSuccess) *error = "cuDeviceGetAttribute failed: " + driver.describe(r);
  return r == kSuccess;
}

void which_device(const Driver& driver, Device device, std::string* name, int* multiprocessors) {
  char text[256] = "";
  const bool named = driver.DeviceGetName != nullptr &&
      driver.DeviceGetName(text, sizeof text - 1, device) == kSuccess;
  *name = named ? text : "";
  int count = 0;
  const Result r = driver.DeviceGetAttribute(&count, kDeviceMultiprocessors, device);
  *multiprocessors = r == kSuccess && count > 0 ? count : 0;
}

bool device_limits(const Driver& driver, Device device, Limits* limits, std::string* error) {
  int most = 0;
  int reserved = 0;
  int clusters = 0;
  Result r = driver.DeviceGetAttribute(&most, kDeviceMostSharedBytes, device);
  if (r == kSuccess) r = driver.DeviceGetAttribute(&reserved, kDeviceReservedSharedBytes, device);
  if (r == kSuccess) r = driver.DeviceGetAttribute(&clusters, kDeviceClusters, device);
  if (r == kSuccess && (most < 0 || reserved < 0)) r = kInvalidValue;
  if (r != kSuccess) *error = "cuDeviceGetAttribute failed: " + driver.describe(r);
  *limits = {uint64_t(most), uint64_t(reserved), clusters != 0};
  return r == kSuccess;
}

}  // namespace mirage::cu
