// The one generic op: MuGraph_k executes plan k of the bundle that is its first input.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "decide.h"
#include "driver_api.h"
#include "ort_abi.h"

namespace mirage {

constexpr uint32_t kOps =
    128;  // ORT's session creation grows superlinearly beyond (280 ms at 1024)

constexpr uint32_t kOwnOps = 16;  // of kernels for one GPU only: a session pays for each name

struct Registration;

struct MuGraphOp : ort::CustomOp {
  const Registration* registration;
  uint32_t number;  // k
  char name[16];
  char hidden_name[24];
};

// One set of ops, for one domain, driver and session tag. ORT keeps pointers to it for as long as
// any session lives, so it is never freed; register.cc shares and bounds them.
struct Registration {
  const ort::Api* api = nullptr;
  ort::ShapeReference shape_reference = nullptr;
  const cu::Driver* driver = nullptr;
  Mode mode = Mode::kNone;
  std::string domain;
  std::string session;
  int major = 0;
  int minor = 0;
  ort::CustomOpDomain* ort_domain = nullptr;
  MuGraphOp ops[kOps];
  uint32_t op_count = kOps;
  // ORT asks for the op names when it creates a session, not when the domain is added. While
  // hidden, the ops show names that no model uses, and a session made from the same options runs
  // the function bodies. Options cannot be copied or un-registered, so this is how the Python
  // wrapper retries after a CUDA provider that failed to load.
  std::atomic<bool> hidden{false};
};

// Fills in registration->ops; every other field must be set.
void make_ops(Registration* registration);

}  // namespace mirage
