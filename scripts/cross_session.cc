// Runs an optimized model in ONNX Runtime's C API, as a program for another system does: scripts/cross_build.py
// compiles this for the machine that it is on and for Windows, which Wine runs, and compares what both print.
//
//     try-session ONNXRUNTIME OPS ORIGINAL MODEL DRIVER     (libraries and models; DRIVER: a stand-in)

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace {

using namespace mirage::ort;

// What a program calls beside what the library does: the same table.
#define SLOTS(X) \
  X(CreateEnv, 3, Status*, (int level, const char* id, void** out)) \
  X(CreateSessionFromArray, 8, Status*, (void* env, const void*, size_t, SessionOptions*, void** out)) \
  X(Run, 9, Status*, (void* session, const void*, const char* const* names, const Value* const* inputs, size_t, \
      const char* const* outputs, size_t, Value** out)) \
  X(CreateSessionOptions, 10, Status*, (SessionOptions** out)) \
  X(RegisterCustomOpsLibrary, 29, Status*, (SessionOptions*, const char* path, void** handle)) \
  X(CreateTensorWithDataAsOrtValue, 49, Status*, (const void* memory, void* data, size_t size, \
      const int64_t* dims, size_t rank, int type, Value** out)) \
  X(CreateCpuMemoryInfo, 69, Status*, (int allocator, int type, void** out))
#define CALL(name, index, result, parameters) \
  inline result (*name(const Api* table)) parameters { \
    return reinterpret_cast<result(*) parameters>(table->slot[index]); \
  }
SLOTS(CALL)

void* symbol(const char* library, const char* name) {
#ifdef _WIN32
  HMODULE opened = LoadLibraryA(library);
  void* found = opened ? reinterpret_cast<void*>(GetProcAddress(opened, name)) : nullptr;
#else
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* found = opened ? dlsym(opened, name) : nullptr;
#endif
  if (found == nullptr) std::printf("no %s in %s\n", name, library);
  return found;
}

const Api* api;

bool good(Status* status, const char* what) {
  if (status == nullptr) return true;
  std::printf("%s: %s\n", what, GetErrorMessage(api)(status));
  return false;
}

std::vector<char> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Wish {
  const char *ops, *ep, *driver;
};

// A session of a model, with the library where there is a wish; null where it cannot be made.
void* session_of(void* env, const char* model, const Wish* wish) {
  SessionOptions* options = nullptr;
  void *handle = nullptr, *session = nullptr;
  if (!good(CreateSessionOptions(api)(&options), "options")) return nullptr;
  if (wish != nullptr) {
    if (wish->ep) good(AddSessionConfigEntry(api)(options, "ai.mirage.ep", wish->ep), "ep");
    good(AddSessionConfigEntry(api)(options, "ai.mirage.session", "try"), "tag");
    if (wish->driver) good(AddSessionConfigEntry(api)(options, "ai.mirage.driver", wish->driver), "driver");
    if (!good(RegisterCustomOpsLibrary(api)(options, wish->ops, &handle), "register")) return nullptr;
  }
  const std::vector<char> data = read(model);
  good(CreateSessionFromArray(api)(env, data.data(), data.size(), options, &session), "session");
  return session;
}

// The bits of y(x), x of 8 x 64 halves.
std::vector<char> run(void* session) {
  static std::vector<uint16_t> x(8 * 64);
  uint32_t state = 1;
  for (uint16_t& v : x) {
    state = state * 1664525u + 1013904223u;  // between 1 and 2, or -2 and -1
    v = uint16_t((state >> 31 << 15) | 0x3c00 | (state >> 12 & 0x3ff));
  }
  void* memory = nullptr;
  Value *in = nullptr, *out = nullptr;
  const int64_t dims[] = {8, 64};
  const char *name = "x", *result = "y";
  void* data = nullptr;
  TensorInfo* info = nullptr;
  size_t rank = 0;
  constexpr int kFloat16 = 10;
  if (session == nullptr || !good(CreateCpuMemoryInfo(api)(1, 0, &memory), "memory") ||
      !good(CreateTensorWithDataAsOrtValue(api)(memory, x.data(), x.size() * 2, dims, 2, kFloat16, &in), "x") ||
      !good(Run(api)(session, nullptr, &name, &in, 1, &result, 1, &out), "run") ||
      !good(GetTensorTypeAndShape(api)(out, &info), "y") ||
      !good(GetDimensionsCount(api)(info, &rank), "rank")) {
    return {};
  }
  std::vector<int64_t> shape(rank);
  GetDimensions(api)(info, shape.data(), rank);
  size_t bytes = 2;
  for (const int64_t n : shape) bytes *= size_t(n);
  GetTensorMutableData(api)(out, &data);
  return {static_cast<char*>(data), static_cast<char*>(data) + bytes};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const char *runtime = argv[1], *ops = argv[2], *original = argv[3], *model = argv[4], *driver = argv[5];
  auto* base = reinterpret_cast<const ApiBase* (*)()>(symbol(runtime, "OrtGetApiBase"));
  auto* counters = reinterpret_cast<size_t (*)(const char*, char*, size_t)>(symbol(ops, "mirage_counters_json"));
  if (base == nullptr || counters == nullptr) return 1;
  api = base()->get_api(18);
  std::printf("onnxruntime %s\n", base()->get_version_string());
  void* env = nullptr;
  if (api == nullptr || !good(CreateEnv(api)(3, "try", &env), "env")) return 1;
  const Wish automatic{ops, nullptr, nullptr}, host{ops, "host", driver};
  const std::vector<char> want = run(session_of(env, original, nullptr));
  std::printf("original: %zu bytes\n", want.size());
  const bool plain = run(session_of(env, model, nullptr)) == want;
  const bool there = run(session_of(env, model, &automatic)) == want;
  std::printf("without the library: %s; with it, no GPU: %s\n", plain ? "same bits" : "other bits",
      there ? "same bits" : "other bits");
  void* made = session_of(env, model, &host);
  const size_t bytes = run(made).size();  // its kernels do nothing
  static char text[1 << 16];
  counters("try", text, sizeof text);
  std::printf("on a stand-in for a GPU: %zu bytes %s\n", bytes, text);
  return !(want.size() && plain && there && bytes == want.size());
}
