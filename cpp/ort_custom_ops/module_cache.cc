#include "module_cache.h"

#include <map>
#include <mutex>
#include <tuple>

namespace mirage {
namespace {

constexpr uint32_t kDefaultSmemBytes = 48 * 1024;  // more must be asked for, per kernel
constexpr uint32_t kPortableCluster = 8;

struct Cache {
  std::mutex mutex;
  std::map<std::tuple<const cu::Driver*, Digest>, cu::Library> libraries;
  // Highest limit set so far. It must never fall: two plans may launch one kernel with
  // different sizes, and the later plan must not break the earlier one.
  std::map<std::tuple<cu::Kernel, cu::Device>, uint32_t> smem_limit;
};

Cache& cache() {
  static auto* instance = new Cache;  // never destroyed, see driver_api.cc
  return *instance;
}

// Compares the kernel's parameters with the plan's arguments: the driver reads each argument with
// the size that the cubin states, so a plan that disagrees would make it read beyond our array.
std::string check_parameters(const cu::Driver& driver, cu::Kernel kernel, const Launch& launch) {
  if (driver.KernelGetParamInfo == nullptr) return "";  // before CUDA 12.4
  for (size_t i = 0; i <= launch.args.size(); ++i) {
    size_t offset = 0;
    size_t size = 0;
    const cu::Result r = driver.KernelGetParamInfo(kernel, i, &offset, &size);
    if (r != cu::kSuccess && r != cu::kInvalidValue) {
      return "cuKernelGetParamInfo failed: " + driver.describe(r);
    }
    const bool exists = r == cu::kSuccess;
    if (exists != (i < launch.args.size())) {
      return "kernel " + launch.kernel + " does not take " + std::to_string(launch.args.size()) +
          " arguments";
    }
    if (!exists) break;
    const size_t planned = launch.args[i].kind == ArgKind::kInt32 ? 4 : 8;
    if (size != planned) {
      return "argument " + std::to_string(i) + " of kernel " + launch.kernel + " has " +
          std::to_string(size) + " bytes, the plan passes " + std::to_string(planned);
    }
  }
  return "";
}

}  // namespace

std::string prepare_kernel(const cu::Driver& driver, cu::Device device, const Section& cubin,
    const Launch& launch, cu::Kernel* out) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  cu::Library& library = cache().libraries[{&driver, cubin.digest}];
  if (library == nullptr) {
    cu::Library loaded = nullptr;
    const cu::Result r =
        driver.LibraryLoadData(&loaded, cubin.data, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (r != cu::kSuccess) {
      return "cuLibraryLoadData of cubin " + std::to_string(launch.cubin) +
          " failed: " + driver.describe(r);
    }
    library = loaded;
  }
  cu::Result r = driver.LibraryGetKernel(out, library, launch.kernel.c_str());
  if (r != cu::kSuccess) {
    return "cubin " + std::to_string(launch.cubin) + " has no kernel " + launch.kernel + ": " +
        driver.describe(r);
  }
  if (std::string why = check_parameters(driver, *out, launch); !why.empty()) return why;
  if (launch.smem_bytes > kDefaultSmemBytes) {
    uint32_t& limit = cache().smem_limit[{*out, device}];
    if (launch.smem_bytes > limit) {
      r = driver.KernelSetAttribute(cu::kFuncMaxDynamicSmem, int(launch.smem_bytes), *out, device);
      if (r != cu::kSuccess) {
        return "kernel " + launch.kernel + " cannot have " + std::to_string(launch.smem_bytes) +
            " bytes of shared memory: " + driver.describe(r);
      }
      limit = launch.smem_bytes;
    }
  }
  if (launch.cluster > kPortableCluster) {
    r = driver.KernelSetAttribute(cu::kFuncNonPortableCluster, 1, *out, device);
    if (r != cu::kSuccess) {
      return "kernel " + launch.kernel + " cannot have clusters of " +
          std::to_string(launch.cluster) + ": " + driver.describe(r);
    }
  }
  // Loads the code into the context now: lazy loading would break a CUDA graph capture later.
  cu::Function function = nullptr;
  r = driver.KernelGetFunction(&function, *out);
  return r == cu::kSuccess
      ? ""
      : "cuKernelGetFunction of " + launch.kernel + " failed: " + driver.describe(r);
}

}  // namespace mirage
