#include "module_cache.h"

#include <map>
#include <mutex>
#include <tuple>

#include "image.h"

namespace mirage {
namespace {

constexpr uint32_t kDefaultSmemBytes = 48 * 1024;  // more must be asked for, per kernel
constexpr uint32_t kPortableCluster = 8;

struct Loaded {
  cu::Library library = nullptr;
  ImageKernels kernels;
};

struct Cache {
  std::mutex mutex;
  std::map<std::tuple<const cu::Driver*, Digest>, Loaded> libraries;
  // Highest limit set so far. It must never fall: two plans may launch one kernel with
  // different sizes, and the later plan must not break the earlier one.
  std::map<std::tuple<cu::Kernel, cu::Device>, uint32_t> smem_limit;
};

Cache& cache() {
  static auto* instance = new Cache;  // never destroyed, see driver_api.cc
  return *instance;
}

size_t argument_bytes(const Arg& arg) {
  return arg.is_map ? sizeof(cu::TensorMap) : arg.kind == ArgKind::kInt32 ? 4 : 8;
}

// Compares a launch with what the kernel was compiled for, and both with what the device gives. The
// driver reads each argument with the size that the image states, so a plan that disagrees would make it
// read beyond our array.
std::string check_launch(
    const ImageKernel& kernel, const Launch& launch, const cu::Limits& limits) {
  const std::string name = "kernel " + launch.kernel;
  if (kernel.parameter_bytes.size() != launch.args.size()) {
    return name + " does not take " + std::to_string(launch.args.size()) + " arguments";
  }
  for (size_t i = 0; i < launch.args.size(); ++i) {
    const size_t planned = argument_bytes(launch.args[i]);
    if (kernel.parameter_bytes[i] != planned) {
      return "argument " + std::to_string(i) + " of " + name + " has " +
          std::to_string(kernel.parameter_bytes[i]) + " bytes, the plan passes " +
          std::to_string(planned);
    }
  }
  const auto differs = [&](const char* what, uint64_t compiled, uint64_t planned) {
    return name + " is compiled for " + std::to_string(compiled) + " " + what + ", the plan has " +
        std::to_string(planned);
  };
  if (kernel.threads != launch.block) return differs("threads", kernel.threads, launch.block);
  if (kernel.cluster != launch.cluster) {
    return differs("blocks in a cluster", kernel.cluster, launch.cluster);
  }
  if (launch.cluster > 1 && !limits.clusters) {
    return name + " is of clusters of " + std::to_string(launch.cluster) +
        ", and the device has none";
  }
  // An image counts what the system takes where it has shared memory of its own. 64 bits hold the sums.
  if (launch.smem_bytes > limits.shared_bytes ||
      kernel.shared_bytes + launch.smem_bytes > limits.shared_bytes + limits.reserved_bytes) {
    return name + " has " + std::to_string(kernel.shared_bytes) +
        " bytes of shared memory, and the plan adds " + std::to_string(launch.smem_bytes) +
        ": the device gives a block " + std::to_string(limits.shared_bytes);
  }
  return "";
}

// The driver must see the parameters that the image states.
std::string check_driver(const cu::Driver& driver, cu::Kernel kernel, const Launch& launch) {
  if (driver.KernelGetParamInfo == nullptr) return "";  // before CUDA 12.4
  for (size_t i = 0; i <= launch.args.size(); ++i) {
    size_t offset = 0;
    size_t size = 0;
    const cu::Result r = driver.KernelGetParamInfo(kernel, i, &offset, &size);
    if (r != cu::kSuccess && r != cu::kInvalidValue) {
      return "cuKernelGetParamInfo failed: " + driver.describe(r);
    }
    const bool exists = r == cu::kSuccess;
    const bool wanted = i < launch.args.size();
    if (exists != wanted || (exists && size != argument_bytes(launch.args[i]))) {
      return "the driver has other parameters of kernel " + launch.kernel + " than the plan";
    }
  }
  return "";
}

// A cluster that no part of the device can hold (by its blocks, their registers or shared memory) is
// refused now: the driver would refuse every launch.
std::string check_cluster(const cu::Driver& driver, cu::Function function, const Launch& launch) {
  if (launch.cluster == 1 || driver.OccupancyMaxActiveClusters == nullptr) return "";
  cu::LaunchAttribute attribute{};
  attribute.id = cu::kAttrClusterDim;
  attribute.value.cluster = {launch.cluster, 1, 1};
  cu::LaunchConfig config{};
  config.grid[0] = launch.cluster;
  config.block[0] = launch.block;
  config.grid[1] = config.grid[2] = config.block[1] = config.block[2] = 1;
  config.smem_bytes = launch.smem_bytes;
  config.attributes = &attribute;
  config.attribute_count = 1;
  int clusters = 0;
  const cu::Result r = driver.OccupancyMaxActiveClusters(&clusters, function, &config);
  if (r == cu::kSuccess && clusters > 0) return "";
  const std::string why = "the device holds no cluster of " + std::to_string(launch.cluster) +
      " blocks of kernel " + launch.kernel;
  return r == cu::kSuccess ? why : why + ": " + driver.describe(r);
}

}  // namespace

std::string prepare_kernel(const cu::Driver& driver, cu::Device device, const Section& cubin,
    const Launch& launch, cu::Kernel* out) {
  std::lock_guard<std::mutex> lock(cache().mutex);
  const std::string image = "cubin " + std::to_string(launch.cubin);
  Loaded& loaded = cache().libraries[{&driver, cubin.digest}];
  if (loaded.library == nullptr) {
    ImageKernels kernels;
    if (std::string why = read_image(cubin.data, cubin.size, &kernels); !why.empty()) {
      return image + " is no image to be loaded: " + why;
    }
    cu::Library library = nullptr;
    const cu::Result r =
        driver.LibraryLoadData(&library, cubin.data, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (r != cu::kSuccess) return "cuLibraryLoadData of " + image + " failed: " + driver.describe(r);
    loaded = {library, std::move(kernels)};
  }
  const auto compiled = loaded.kernels.find(launch.kernel);
  if (compiled == loaded.kernels.end()) {
    return image + " has no kernel " + launch.kernel + " that says what it takes";
  }
  cu::Limits limits;
  if (std::string why; !cu::device_limits(driver, device, &limits, &why)) return why;
  if (std::string why = check_launch(compiled->second, launch, limits); !why.empty()) return why;
  cu::Result r = driver.LibraryGetKernel(out, loaded.library, launch.kernel.c_str());
  if (r != cu::kSuccess) {
    return image + " has no kernel " + launch.kernel + ": " + driver.describe(r);
  }
  if (std::string why = check_driver(driver, *out, launch); !why.empty()) return why;
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
  if (r != cu::kSuccess) {
    return "cuKernelGetFunction of " + launch.kernel + " failed: " + driver.describe(r);
  }
  return check_cluster(driver, function, launch);
}

}  // namespace mirage
