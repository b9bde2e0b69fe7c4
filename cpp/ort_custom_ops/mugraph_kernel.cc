#include "mugraph_kernel.h"

#include <algorithm>

#include "declared.h"
#include "module_cache.h"
#include "node_digest.h"
#include "platform.h"
#include "tensor_info.h"

namespace mirage {
namespace {

ort::Status* node_name(const ort::Api* api, const ort::KernelInfo* info, std::string* out) {
  size_t size = 0;
  if (auto* s = ort::KernelInfo_GetNodeName(api)(info, nullptr, &size)) return s;
  std::string text(size, '\0');
  if (auto* s = ort::KernelInfo_GetNodeName(api)(info, text.data(), &size)) return s;
  *out = text.c_str();
  return nullptr;
}

// What the node's attribute says, "" where it has no such text. No digest is as long as what is cut off.
std::string stated_digest(const ort::Api* api, const ort::KernelInfo* info) {
  char text[80] = {};
  size_t size = sizeof text;
  ort::Status* status = ort::KernelInfoGetAttribute_string(api)(info, kDigestAttribute, text, &size);
  if (status == nullptr) return {text, size - 1};
  ort::ReleaseStatus(api)(status);
  return size > sizeof text ? "too long" : "";
}

// Memory of the device, or of the machine in host mode; never more than a tebibyte.
uint64_t memory_bytes(const cu::Driver& driver, Mode mode, cu::Device device) {
  constexpr uint64_t kMost = uint64_t(1) << 40;
  if (mode == Mode::kHost) {
    const uint64_t bytes = platform::machine_bytes();
    return bytes > 0 ? std::min(kMost, bytes) : kMost;
  }
  size_t bytes = 0;
  const bool known = driver.DeviceTotalMem != nullptr &&
      driver.DeviceTotalMem(&bytes, device) == cu::kSuccess && bytes > 0;
  return known ? std::min(kMost, uint64_t(bytes)) : kMost;
}

}  // namespace

ort::Status* MuGraphKernel::fail(int code, const std::string& why) const {
  return ort::CreateStatus(api_)(code, ("mirage-onnx: " + label_ + ": " + why).c_str());
}

ort::Status* MuGraphKernel::create(
    const MuGraphOp& op, const ort::Api* api, const ort::KernelInfo* info, MuGraphKernel** out) {
  auto kernel = std::make_unique<MuGraphKernel>();
  kernel->registration_ = op.registration;
  kernel->api_ = api;
  kernel->number_ = op.number;
  std::string node;
  if (auto* s = node_name(api, info, &node)) return s;
  kernel->label_ = "node '" + node + "' (" + op.name + ")";
  if (auto* s = kernel->load(info)) return s;
  kernel->counter_ = new_counter(op.registration->session, node, op.name);
  *out = kernel.release();
  return nullptr;
}

ort::Status* MuGraphKernel::load(const ort::KernelInfo* info) {
  int is_constant = 0;
  const ort::Value* bundle = nullptr;
  size_t inputs = 0;
  size_t outputs = 0;
  if (auto* s = ort::KernelInfo_GetInputCount(api_)(info, &inputs)) return s;
  if (auto* s = ort::KernelInfo_GetOutputCount(api_)(info, &outputs)) return s;
  if (inputs > 0) {
    if (auto* s = ort::KernelInfoGetConstantInput_tensor(api_)(info, 0, &is_constant, &bundle)) {
      return s;
    }
  }
  if (is_constant == 0 || bundle == nullptr) {
    return fail(ort::kInvalidGraph, "input 0 must be the bundle, a constant uint8 initializer");
  }
  TensorInfo shape;
  if (auto* s = shape.read(api_, bundle)) return s;
  if (shape.type != ort::kUint8 || shape.rank != 1) {
    return fail(ort::kInvalidGraph, "the bundle (input 0) must be a uint8 tensor of rank 1");
  }
  void* data = nullptr;
  if (auto* s = ort::GetTensorMutableData(api_)(const_cast<ort::Value*>(bundle), &data)) return s;
  cu::Device device = 0;
  std::string why = find_device(&device);
  if (why.empty()) why = load_plan(data, size_t(shape.dims[0]), stated_digest(api_, info), device);
  if (!why.empty()) return fail(ort::kInvalidGraph, why);
  most_bytes_ = memory_bytes(*registration_->driver, registration_->mode, device);
  const size_t wanted = plan_.outputs.size() + (plan_.has_workspace ? 1 : 0);
  if (inputs - 1 != plan_.inputs.size() || outputs != wanted) {
    return fail(ort::kInvalidGraph,
        "it has " + std::to_string(inputs - 1) + " tensor inputs and " + std::to_string(outputs) +
            " outputs, the plan " + std::to_string(plan_.inputs.size()) + " and " +
            std::to_string(wanted));
  }
  if (auto* s = check_declared(api_, info, plan_, &why)) return s;
  return why.empty() ? nullptr : fail(ort::kInvalidGraph, why);
}

// The session's device must be of the kind that the domain was registered for, which looked at
// device 0 only.
std::string MuGraphKernel::find_device(cu::Device* out) const {
  const cu::Driver& driver = *registration_->driver;
  const bool on_host = registration_->mode == Mode::kHost;
  const cu::Result r = on_host ? driver.DeviceGet(out, 0) : driver.CtxGetDevice(out);
  if (r != cu::kSuccess) return "there is no current CUDA device: " + driver.describe(r);
  int major = 0;
  int minor = 0;
  std::string why;
  if (!cu::compute_capability(driver, *out, &major, &minor, &why)) return why;
  if (major == registration_->major && minor == registration_->minor) return is_ours(*out);
  return "MIRAGE_DEVICE_MISMATCH: the session runs on CUDA device " + std::to_string(*out) +
      " of compute capability " + std::to_string(major) + "." + std::to_string(minor) + ", but " +
      registered_for_first();
}

// Kernels for one GPU of an architecture run on no other, though they could.
std::string MuGraphKernel::is_ours(cu::Device device) const {
  const size_t chip = registration_->domain.rfind('_');
  if (chip == std::string::npos) return "";
  std::string name;
  int multiprocessors = 0;
  cu::which_device(*registration_->driver, device, &name, &multiprocessors);
  for (const std::string& word : chip_words(name, multiprocessors)) {
    if (registration_->domain.compare(chip + 1, std::string::npos, word) == 0) return "";
  }
  return "MIRAGE_DEVICE_MISMATCH: the session runs on CUDA device " + std::to_string(device) + ", " +
      name + ", but " + registered_for_first();
}

std::string MuGraphKernel::registered_for_first() const {
  return registration_->domain + " was registered for device 0: put this one first in CUDA_VISIBLE_DEVICES";
}

std::string MuGraphKernel::load_plan(
    const void* data, size_t size, const std::string& digest, cu::Device device) {
  std::string why;
  bundle_ = open_shared_bundle(data, size, &why);
  if (bundle_ == nullptr) return why;
  PlannedNode node;
  why = read_node(*bundle_, number_, &node);
  if (why.empty()) why = check_digest(node, digest);
  if (!why.empty()) return why;
  plan_ = std::move(node.plan);
  auto image = node.images.begin();
  for (const Variant& variant : plan_.variants) {
    std::vector<cu::Kernel>& kernels = kernels_.emplace_back();
    for (const Launch& launch : variant.launches) {
      const Section& cubin = **image++;
      why = prepare_kernel(*registration_->driver, device, cubin, launch, &kernels.emplace_back());
      if (!why.empty()) return why;
    }
  }
  return "";
}

}  // namespace mirage
