#include "config.h"

#include <cstdlib>
#include <cstring>

namespace mirage {
namespace {

void read_environment(const char* name, std::string* value) {
  const char* text = std::getenv(name);
  if (text != nullptr && *text != '\0') *value = text;
}

}  // namespace

ort::Status* read_entry(
    const ort::Api* api, const ort::SessionOptions* options, const char* key, std::string* value) {
  int exists = 0;
  if (auto* s = ort::HasSessionConfigEntry(api)(options, key, &exists)) return s;
  if (exists == 0) return nullptr;
  size_t size = 0;  // with the terminating NUL
  if (auto* s = ort::GetSessionConfigEntry(api)(options, key, nullptr, &size)) return s;
  std::string text(size, '\0');
  if (auto* s = ort::GetSessionConfigEntry(api)(options, key, text.data(), &size)) return s;
  *value = text.c_str();
  return nullptr;
}

ort::Status* read_config(const ort::Api* api, const ort::SessionOptions* options, Config* out) {
  read_environment("MIRAGE_ONNX_EP", &out->ep);
  read_environment("MIRAGE_ONNX_DRIVER", &out->driver);
  std::string verbose;
  read_environment("MIRAGE_ONNX_VERBOSE", &verbose);
  out->verbose = verbose == "1";
  if (auto* s = read_entry(api, options, "ai.mirage.ep", &out->ep)) return s;
  if (auto* s = read_entry(api, options, "ai.mirage.driver", &out->driver)) return s;
  return read_entry(api, options, "ai.mirage.session", &out->session);
}

ort::Status* has_cuda_provider(const ort::Api* api, bool* out) {
  char** names = nullptr;
  int count = 0;
  *out = false;
  if (auto* s = ort::GetAvailableProviders(api)(&names, &count)) return s;
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(names[i], "CUDAExecutionProvider") == 0) *out = true;
  }
  return ort::ReleaseAvailableProviders(api)(names, count);
}

}  // namespace mirage
