// What a session asked for: its config entries, then the environment, then the defaults.
#pragma once

#include <string>

#include "ort_abi.h"

namespace mirage {

struct Config {
  std::string ep = "auto";  // ai.mirage.ep, MIRAGE_ONNX_EP
  std::string driver;  // ai.mirage.driver, MIRAGE_ONNX_DRIVER; "" = libcuda.so.1
  std::string session;  // ai.mirage.session: the tag of the counters
  bool verbose = false;  // MIRAGE_ONNX_VERBOSE=1
};

ort::Status* read_config(const ort::Api*, const ort::SessionOptions*, Config* out);

// Reads one entry; `value` is left alone when the session has none.
ort::Status* read_entry(
    const ort::Api*, const ort::SessionOptions*, const char* key, std::string* value);

// Whether ORT was built with, and offers, the CUDA execution provider.
ort::Status* has_cuda_provider(const ort::Api*, bool* out);

}  // namespace mirage
