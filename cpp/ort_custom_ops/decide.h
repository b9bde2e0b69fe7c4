// Which domain a session gets, as a pure function of what was found: the one rule that decides
// between our kernels and the function bodies. Kept apart so that it can be tested without a GPU.
#pragma once

#include <string>
#include <vector>

namespace mirage {

struct Facts {
  std::string ep;  // auto | cuda | none | host
  bool driver_given = false;  // an explicit driver library was named
  bool ort_has_cuda = false;  // ORT offers the CUDA execution provider
  std::string driver_error;  // why the driver cannot be used; empty = it can
  int devices = 0;
  int major = 0;  // compute capability of device 0
  int minor = 0;
  std::string name;  // what the driver calls device 0; empty where it does not say
  int multiprocessors = 0;  // of device 0; 0 where it does not say
};

enum class Mode { kNone = 0, kCuda = 1, kHost = 2, kRefuse = 3 };

struct Decision {
  Mode mode;
  std::string domain;  // "ai.mirage.v1.sm90a" for kCuda and kHost
  // Those of kernels that are for device 0 only, not for all of its architecture.
  std::vector<std::string> own_domains;
  std::string reason;
};

Decision decide(const Facts&);

// What the domain of kernels for one GPU has behind its architecture, "sm90a_h200", "sm86_x46": of what
// the driver calls it, and of how many multiprocessors it has. targets/names.py has the same rule.
std::vector<std::string> chip_words(const std::string& name, int multiprocessors);

// Whether the driver has to be looked at for this decision: not for sessions that will never use it.
bool needs_driver(const Facts&);

}  // namespace mirage
