// RegisterCustomOps: the entry point that ORT calls when an application registers this library.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "config.h"
#include "counters.h"
#include "decide.h"
#include "mugraph_op.h"
#include "platform.h"

namespace mirage {
namespace {

// Registrations live as long as the process (28 KiB each). Sessions with the same wishes share one;
// the Python wrapper recycles its tags; tags beyond this bound are counted together, under "*". A
// session has three of them: of its GPU's architecture, its name, and its size.
constexpr size_t kMaxRegistrations = 3 * 256;
constexpr char kSharedSession[] = "*";
constexpr char kRegisteredKey[] = "ai.mirage.registered";
constexpr char kReasonKey[] = "ai.mirage.reason";
constexpr size_t kMostReason = 1000;  // older releases of ONNX Runtime hold 1024 characters

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Registration>> registrations;
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: ORT holds pointers into it
  return *instance;
}

Registration* find(const Registration& wanted) {
  for (const auto& it : registry().registrations) {
    if (it->api == wanted.api && it->driver == wanted.driver && it->mode == wanted.mode &&
        it->domain == wanted.domain && it->session == wanted.session) {
      return it.get();
    }
  }
  return nullptr;
}

ort::Status* find_or_make(Registration* wanted, Registration** out) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  *out = find(*wanted);
  if (*out == nullptr && registry().registrations.size() >= kMaxRegistrations) {
    wanted->session = kSharedSession;
    *out = find(*wanted);
  }
  if (*out != nullptr) return nullptr;
  auto made = std::make_unique<Registration>();
  made->api = wanted->api;
  made->shape_reference = wanted->shape_reference;
  made->driver = wanted->driver;
  made->mode = wanted->mode;
  made->domain = wanted->domain;
  made->session = wanted->session;
  made->major = wanted->major;
  made->minor = wanted->minor;
  make_ops(made.get());
  const ort::Api* api = made->api;
  if (auto* s = ort::CreateCustomOpDomain(api)(made->domain.c_str(), &made->ort_domain)) return s;
  if (made->domain.find('_') != std::string::npos) made->op_count = kOwnOps;
  for (uint32_t k = 0; k < made->op_count; ++k) {
    if (auto* s = ort::CustomOpDomain_Add(api)(made->ort_domain, &made->ops[k])) return s;
  }
  *out = made.get();
  registry().registrations.push_back(std::move(made));
  return nullptr;
}

ort::Status* gather(
    const ort::Api* api, const Config& config, Facts* facts, const cu::Driver** driver) {
  facts->ep = config.ep;
  facts->driver_given = !config.driver.empty();
  if (config.ep == "auto") {
    if (auto* s = has_cuda_provider(api, &facts->ort_has_cuda)) return s;
  }
  if (!needs_driver(*facts)) return nullptr;
  *driver = cu::open_driver(config.driver, &facts->driver_error);
  if (*driver == nullptr) return nullptr;
  cu::Result r = (*driver)->DeviceGetCount(&facts->devices);
  cu::Device device = 0;
  if (r == cu::kSuccess && facts->devices > 0) r = (*driver)->DeviceGet(&device, 0);
  if (r != cu::kSuccess) {
    facts->driver_error = "the driver cannot list its devices: " + (*driver)->describe(r);
  } else if (facts->devices > 0) {
    cu::compute_capability(**driver, device, &facts->major, &facts->minor, &facts->driver_error);
    cu::which_device(**driver, device, &facts->name, &facts->multiprocessors);
  }
  return nullptr;
}

const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::kNone: return "none";
    case Mode::kCuda: return "cuda";
    case Mode::kHost: return "host";
    case Mode::kRefuse: break;
  }
  return "refused";
}

// Which device the ops are for, or why there are none: a session that runs no kernel can say so.
ort::Status* leave_reason(
    const ort::Api* api, ort::SessionOptions* options, const std::string& reason) {
  std::string said;
  if (auto* s = read_entry(api, options, kReasonKey, &said)) return s;
  const std::string text = reason.substr(0, kMostReason);
  if (said == text) return nullptr;
  return ort::AddSessionConfigEntry(api)(options, kReasonKey, text.c_str());
}

// A runtime says on stderr that it does not know a version, so that it is not asked for one.
ort::ShapeReference shape_reference(const ort::ApiBase* base) {
  const std::string version = base->get_version_string();  // "1.31.1"
  const size_t dot = version.find('.');
  if (dot == std::string::npos) return nullptr;
  const bool later = std::atoi(version.c_str()) > 1;
  if (!later && std::atoi(version.c_str() + dot + 1) < int(ort::kShapeReferenceVersion)) return nullptr;
  const ort::Api* api = base->get_api(ort::kShapeReferenceVersion);
  if (api == nullptr) return nullptr;
  void* const* slots = reinterpret_cast<void* const*>(api);
  return reinterpret_cast<ort::ShapeReference>(slots[ort::kShapeReferenceSlot]);
}

ort::Status* register_ops(
    const ort::Api* api, ort::ShapeReference reference, ort::SessionOptions* options) {
  // ORT refuses a domain that is added twice, so the options remember that they have it.
  std::string registered;
  if (auto* s = read_entry(api, options, kRegisteredKey, &registered)) return s;
  if (!registered.empty()) return nullptr;

  Config config;
  if (auto* s = read_config(api, options, &config)) return s;
  Facts facts;
  const cu::Driver* driver = nullptr;
  if (auto* s = gather(api, config, &facts, &driver)) return s;
  const Decision decision = decide(facts);
  if (config.verbose) {
    std::fprintf(stderr, "mirage-onnx: ep=%s domain=%s driver=%s (%s)\n", mode_name(decision.mode),
        decision.domain.empty() ? "-" : decision.domain.c_str(),
        driver == nullptr ? "-" : driver->path.c_str(), decision.reason.c_str());
  }
  if (decision.mode == Mode::kRefuse) {
    return ort::CreateStatus(api)(
        ort::kInvalidArgument, ("mirage-onnx: " + decision.reason).c_str());
  }
  if (auto* s = leave_reason(api, options, decision.reason)) return s;
  if (decision.mode == Mode::kNone) return nullptr;

  Registration wanted;
  wanted.api = api;
  wanted.shape_reference = reference;
  wanted.driver = driver;
  wanted.mode = decision.mode;
  wanted.session = config.session;
  wanted.major = facts.major;
  wanted.minor = facts.minor;
  std::vector<std::string> domains = decision.own_domains;
  domains.push_back(decision.domain);
  for (const std::string& domain : domains) {
    Registration* registration = nullptr;
    wanted.domain = domain;
    if (auto* s = find_or_make(&wanted, &registration)) return s;
    if (auto* s = ort::AddCustomOpDomain(api)(options, registration->ort_domain)) return s;
  }
  return ort::AddSessionConfigEntry(api)(options, kRegisteredKey, decision.domain.c_str());
}

}  // namespace
}  // namespace mirage

MIRAGE_EXPORT mirage::ort::Status* RegisterCustomOps(
    mirage::ort::SessionOptions* options, const mirage::ort::ApiBase* base) {
  const mirage::ort::Api* api = base->get_api(mirage::ort::kApiVersion);
  if (api == nullptr) {
    // No table means no way to make a status. Registering nothing is safe: the bodies run.
    std::fprintf(stderr, "mirage-onnx: ONNX Runtime %s is older than 1.18, nothing registered\n",
        base->get_version_string());
    return nullptr;
  }
  mirage::platform::stay_loaded();
  try {
    return mirage::register_ops(api, mirage::shape_reference(base), options);
  } catch (...) {  // only memory exhaustion throws
    return mirage::ort::CreateStatus(api)(mirage::ort::kFail, "mirage-onnx: out of memory");
  }
}

// Hides (1) or shows (0) the ops of a session tag from sessions that are created from now on.
MIRAGE_EXPORT void mirage_hide_ops(const char* session, int hidden) {
  std::lock_guard<std::mutex> lock(mirage::registry().mutex);
  for (const auto& it : mirage::registry().registrations) {
    if (it->session == session) it->hidden.store(hidden != 0);
  }
}
