// Opens the custom-op library and asks it of a bundle: scripts/cross_build.py compiles this for the machine
// that it is on and for another one, which an emulator runs, and compares what both print.

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#ifdef _WIN32
void* open_library(const char* name) { return reinterpret_cast<void*>(LoadLibraryA(name)); }
std::string why_not() { return "error " + std::to_string(GetLastError()); }
void* symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}
#else
void* open_library(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }
std::string why_not() { return dlerror(); }
void* symbol(void* library, const char* name) { return dlsym(library, name); }
#endif

template <class Function>
Function* find(void* library, const char* name) {
  void* found = symbol(library, name);
  if (found == nullptr) std::printf("no %s\n", name);
  return reinterpret_cast<Function*>(found);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = open_library(argv[1]);
  if (library == nullptr) {
    std::printf("not opened: %s\n", why_not().c_str());
    return 1;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  auto* hash = find<void(const uint8_t*, size_t, uint8_t*)>(library, "mirage_test_sha256");
  auto* node = find<int(const void*, size_t, uint32_t, const char*, char*, size_t)>(library, "mirage_test_node");
  auto* domain = find<int(const char*, int, int, const char*, int, int, int, const char*, int, char*,
      char*, size_t)>(library, "mirage_decide_domain");
  auto* counters = find<size_t(const char*, char*, size_t)>(library, "mirage_counters_json");
  if (!hash || !node || !domain || !counters) return 1;
  uint8_t digest[32];
  hash(reinterpret_cast<const uint8_t*>(data.data()), data.size(), digest);
  for (const uint8_t byte : digest) std::printf("%02x", byte);
  std::printf(" of %zu bytes\n", data.size());
  char text[4096], reason[4096];
  for (uint32_t k = 0; k < 4; ++k) {
    const int refused = node(data.data(), data.size(), k, "any", text, sizeof text);
    std::printf("node %u: %d %s\n", k, refused, text);
  }
  const int mode = domain("cuda", 0, 1, "", 1, 9, 0, "NVIDIA GH200 480GB", 132, text, reason, sizeof text);
  std::printf("%d %s (%s)\n", mode, text, reason);
  const size_t size = counters("*", text, sizeof text);
  std::printf("%zu %s\n", size, text);
  return 0;
}
