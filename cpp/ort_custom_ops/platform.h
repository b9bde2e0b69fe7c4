// What differs between operating systems: shared libraries and the memory of the machine.
#pragma once

#include <cstdint>
#include <string>

namespace mirage::platform {

#ifdef _WIN32
constexpr char kDriverName[] = "nvcuda.dll";
#else
constexpr char kDriverName[] = "libcuda.so.1";
#endif

// Null, and `error` says why.
void* open_library(const std::string& name, std::string* error);
void* find_symbol(void* library, const char* name);
void close_library(void* library);

// Bytes of memory; 0 where the system does not say.
uint64_t machine_bytes();

// Keeps this library in the process: ORT closes it with its last session, but counters and loaded
// modules are of the process. Elsewhere the linker has been told (-z nodelete).
void stay_loaded();

}  // namespace mirage::platform
