#include "platform.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#endif

namespace mirage::platform {

#ifdef _WIN32

void* open_library(const std::string& name, std::string* error) {
  // A plain name is looked for in the system's folder only, where the driver is.
  const bool plain = name.find_first_of("/\\:") == std::string::npos;
  HMODULE library = LoadLibraryExA(name.c_str(), nullptr, plain ? LOAD_LIBRARY_SEARCH_SYSTEM32 : 0);
  if (library == nullptr) *error = "error " + std::to_string(GetLastError());
  return reinterpret_cast<void*>(library);
}

void* find_symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), name));
}

void close_library(void* library) { FreeLibrary(reinterpret_cast<HMODULE>(library)); }

uint64_t machine_bytes() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : 0;
}

void stay_loaded() {
  HMODULE self = nullptr;
  GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
      reinterpret_cast<LPCSTR>(&stay_loaded), &self);
}

#else

void* open_library(const std::string& name, std::string* error) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    *error = why != nullptr ? why : "no reason";
  }
  return library;
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

void close_library(void* library) { dlclose(library); }

uint64_t machine_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? uint64_t(pages) * uint64_t(bytes) : 0;
}

void stay_loaded() {}

#endif

}  // namespace mirage::platform
