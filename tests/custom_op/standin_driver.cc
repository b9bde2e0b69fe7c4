// A stand-in for the CUDA driver: the entry points that the custom-op library uses, on host memory.
//
// A cubin is an ELF file with a section ".standin" of text: "STANDIN\n" and one line per kernel,
// "<name> <parameter sizes...>". Every call
// that matters is appended to the file named by STANDIN_LOG. STANDIN_CC ("90") is the compute
// capability, STANDIN_DEVICES the device count, STANDIN_SHARED the most shared memory of a block,
// STANDIN_CLUSTERS whether there are clusters, STANDIN_CLUSTER the most blocks of one (16), STANDIN_FAIL the name of an entry point that fails.
//
// Kernels that it executes: standin_copy(dst, src, i64 bytes) and standin_add(dst, a, b, i32 n), the
// latter on floats, one thread an element, so a grid that does not cover n leaves a gap.
//
// With STANDIN_IMAGES defined (and image.cc) it takes NVRTC's own images as well; their kernels do nothing.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#ifdef STANDIN_IMAGES
#include <algorithm>

#include "image.h"
#endif

#define STANDIN extern "C" __attribute__((visibility("default")))

namespace {

#ifdef _WIN32
void* aligned_alloc(size_t at, size_t bytes) { return _aligned_malloc(bytes, at); }
void aligned_free(void* memory) { _aligned_free(memory); }
#else
void aligned_free(void* memory) { std::free(memory); }
#endif

struct Kernel {
  std::string name;
  std::vector<size_t> sizes;
};
struct Library {
  std::map<std::string, Kernel> kernels;
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

std::mutex mutex;

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

void write_log(const std::string& line) {
  const char* path = std::getenv("STANDIN_LOG");
  if (path == nullptr || *path == '\0') return;
  std::lock_guard<std::mutex> lock(mutex);
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

bool fails(const char* name) {
  const char* text = std::getenv("STANDIN_FAIL");
  return text != nullptr && std::strcmp(text, name) == 0;
}

template <class T>
T parameter(void** params, int i) {
  T value;
  std::memcpy(&value, params[i], sizeof value);
  return value;
}

// The text of the section ".standin", or null. The library has checked all bounds by now.
const char* standin_text(const void* image) {
  const auto* data = static_cast<const char*>(image);
  const auto number = [&](uint64_t at, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, data + at, bytes);
    return value;
  };
  if (std::memcmp(data, "\x7f" "ELF", 4) != 0) return nullptr;
  const uint64_t table = number(40, 8);
  const uint64_t names = number(table + 64 * number(62, 2) + 24, 8);
  for (uint64_t i = 0; i < number(60, 2); ++i) {
    const uint64_t header = table + 64 * i;
    if (std::strcmp(data + names + number(header, 4), ".standin") == 0) {
      return data + number(header + 24, 8);
    }
  }
  return nullptr;
}

#ifdef STANDIN_IMAGES
// The kernels of an image that has no such section, by what it says of them; the library has checked it.
Library* read_real(const void* image) {
  const auto* data = static_cast<const uint8_t*>(image);
  const auto number = [&](uint64_t at, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, data + at, bytes);
    return value;
  };
  const uint64_t table = number(40, 8), count = number(60, 2);
  uint64_t end = std::max(table + 64 * count, number(32, 8) + 56 * number(56, 2));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t header = table + 64 * i;
    if (number(header + 4, 4) != 8) end = std::max(end, number(header + 24, 8) + number(header + 32, 8));
  }
  mirage::ImageKernels kernels;
  if (!mirage::read_image(data, end, &kernels).empty()) return nullptr;
  auto* library = new Library;
  for (const auto& [name, kernel] : kernels) {
    const auto& sizes = kernel.parameter_bytes;
    library->kernels[name] = {name, {sizes.begin(), sizes.end()}};
  }
  return library;
}
#endif

}  // namespace

#define FAIL_IF_ASKED(name) \
  if (fails(name)) return 999

STANDIN int cuInit(unsigned) {
  FAIL_IF_ASKED("cuInit");
  return 0;
}
STANDIN int cuDeviceGetCount(int* count) {
  *count = number("STANDIN_DEVICES", 1);
  return 0;
}
STANDIN int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
STANDIN int cuDeviceGetAttribute(int* value, int attribute, int) {
  FAIL_IF_ASKED("cuDeviceGetAttribute");
  const int capability = number("STANDIN_CC", 90);
  switch (attribute) {
    case 16: *value = number("STANDIN_PROCESSORS", 0); return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    case 97: *value = number("STANDIN_SHARED", 232448); return 0;
    case 111: *value = 1024; return 0;
    case 120: *value = number("STANDIN_CLUSTERS", 1); return 0;
    default: return 1;
  }
}
STANDIN int cuDeviceGetName(char* name, int size, int) {
  const char* said = std::getenv("STANDIN_NAME");
  std::snprintf(name, size, "%s", said == nullptr ? "" : said);
  return 0;
}
STANDIN int cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}
STANDIN int cuGetErrorName(int error, const char** name) {
  static const std::map<int, const char*> names = {{1, "CUDA_ERROR_INVALID_VALUE"},
      {200, "CUDA_ERROR_INVALID_IMAGE"}, {500, "CUDA_ERROR_NOT_FOUND"},
      {999, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  if (found == names.end()) return 1;
  *name = found->second;
  return 0;
}

STANDIN int cuLibraryLoadData(
    void** out, const void* data, int*, void**, unsigned, int*, void**, unsigned) {
  FAIL_IF_ASKED("cuLibraryLoadData");
  const char* magic = "STANDIN\n";
  const char* text = standin_text(data);
#ifdef STANDIN_IMAGES
  if (text == nullptr) {
    *out = read_real(data);
    return *out == nullptr ? 200 : 0;
  }
#endif
  if (text == nullptr || std::strncmp(text, magic, std::strlen(magic)) != 0) return 200;
  auto* library = new Library;
  std::istringstream lines(text + std::strlen(magic));
  for (std::string line; std::getline(lines, line) && line != "end";) {
    std::istringstream words(line);
    Kernel kernel;
    words >> kernel.name;
    for (size_t size; words >> size;) kernel.sizes.push_back(size);
    library->kernels[kernel.name] = kernel;
  }
  *out = library;
  write_log("load");
  return 0;
}
STANDIN int cuLibraryGetKernel(void** out, void* library, const char* name) {
  auto& kernels = static_cast<Library*>(library)->kernels;
  const auto found = kernels.find(name);
  if (found == kernels.end()) return 500;
  *out = &found->second;
  return 0;
}
STANDIN int cuKernelGetFunction(void** out, void* kernel) {
  FAIL_IF_ASKED("cuKernelGetFunction");
  write_log("function " + static_cast<Kernel*>(kernel)->name);
  *out = kernel;
  return 0;
}
STANDIN int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  FAIL_IF_ASKED("cuKernelSetAttribute");
  std::ostringstream line;
  line << "attribute " << static_cast<Kernel*>(kernel)->name << " " << attribute << " " << value
       << " device " << device;
  write_log(line.str());
  return 0;
}
#ifndef STANDIN_NO_OCCUPANCY
STANDIN int cuOccupancyMaxActiveClusters(int* clusters, void*, const Config* config) {
  FAIL_IF_ASKED("cuOccupancyMaxActiveClusters");
  const bool whole = config->count == 1 && config->attributes[0].id == 4;
  if (!whole || config->grid[0] != config->attributes[0].value[0]) return 1;
  *clusters = int(config->grid[0]) <= number("STANDIN_CLUSTER", 16) ? 4 : 0;
  return 0;
}
#endif
#ifndef STANDIN_OLD  // a driver before CUDA 12.4 has no such entry point
STANDIN int cuKernelGetParamInfo(void* kernel, size_t index, size_t* offset, size_t* size) {
  const auto& sizes = static_cast<Kernel*>(kernel)->sizes;
  if (index >= sizes.size()) return 1;
  *offset = 8 * index;
  *size = sizes[index];
  return 0;
}
#endif

#ifndef STANDIN_NO_MEMORY
STANDIN int cuMemAllocAsync(unsigned long long* out, size_t bytes, void*) {
  FAIL_IF_ASKED("cuMemAllocAsync");
  *out = reinterpret_cast<uintptr_t>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  write_log("alloc " + std::to_string(*out) + " " + std::to_string(bytes));
  return 0;
}
STANDIN int cuMemFreeAsync(unsigned long long memory, void*) {
  write_log("free " + std::to_string(memory));
  aligned_free(reinterpret_cast<void*>(memory));
  return 0;
}
STANDIN int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  FAIL_IF_ASKED("cuMemcpyAsync");
  write_log("copy " + std::to_string(to) + " " + std::to_string(from) + " " + std::to_string(bytes));
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
#endif

#ifndef STANDIN_NO_LAUNCH  // a driver before CUDA 12.0
STANDIN int cuLaunchKernelEx(const Config* config, void* function, void** params, void**) {
  FAIL_IF_ASKED("cuLaunchKernelEx");
  const Kernel& kernel = *static_cast<Kernel*>(function);
  std::ostringstream line;
  line << "launch " << kernel.name << " grid " << config->grid[0] << " " << config->grid[1] << " "
       << config->grid[2] << " block " << config->block[0] << " " << config->block[1] << " "
       << config->block[2] << " smem " << config->smem << " stream " << config->stream;
  for (unsigned i = 0; i < config->count; ++i) {
    const Attribute& a = config->attributes[i];
    if (a.id == 4) line << " cluster " << a.value[0] << " " << a.value[1] << " " << a.value[2];
    if (a.id == 6) line << " pdl " << a.value[0];
  }
  line << " params";
  for (size_t i = 0; i < kernel.sizes.size(); ++i) {
    if (kernel.sizes[i] == 4)
      line << " " << parameter<int32_t>(params, int(i));
    else
      line << " " << parameter<int64_t>(params, int(i));
  }
  write_log(line.str());
  if (kernel.name == "standin_copy") {
    std::memcpy(parameter<void*>(params, 0), parameter<void*>(params, 1),
        size_t(parameter<int64_t>(params, 2)));
  } else if (kernel.name == "standin_add") {
    auto* out = parameter<float*>(params, 0);
    const auto* a = parameter<const float*>(params, 1);
    const auto* b = parameter<const float*>(params, 2);
    const int64_t threads = int64_t(config->grid[0]) * config->block[0];
    for (int64_t i = 0; i < threads && i < parameter<int32_t>(params, 3); ++i) out[i] = a[i] + b[i];
  }
  return 0;
}
#endif
