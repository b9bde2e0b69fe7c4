#include "mugraph_op.h"

#include <cstdio>
#include <limits>

#include "mugraph_kernel.h"

namespace mirage {
namespace {

constexpr size_t kBundleFormal = 0;  // formal 1 is the variadic rest

const MuGraphOp* self(const ort::CustomOp* op) { return static_cast<const MuGraphOp*>(op); }

const char* get_name(const ort::CustomOp* op) {
  return self(op)->registration->hidden.load() ? self(op)->hidden_name : self(op)->name;
}

const char* get_provider(const ort::CustomOp* op) {
  return self(op)->registration->mode == Mode::kHost ? "CPUExecutionProvider"
                                                     : "CUDAExecutionProvider";
}

ort::Status* create_kernel(
    const ort::CustomOp* op, const ort::Api* api, const ort::KernelInfo* info, void** out) {
  *out = nullptr;
  try {
    MuGraphKernel* kernel = nullptr;
    ort::Status* status = MuGraphKernel::create(*self(op), api, info, &kernel);
    *out = kernel;
    return status;
  } catch (...) {  // only memory exhaustion throws; nothing may cross the C boundary
    return ort::CreateStatus(api)(ort::kFail, "mirage-onnx: out of memory in kernel creation");
  }
}

ort::Status* compute(void* kernel, ort::KernelContext* context) {
  return static_cast<const MuGraphKernel*>(kernel)->compute(context);
}

}  // namespace

void make_ops(Registration* registration) {
  for (uint32_t k = 0; k < kOps; ++k) {
    MuGraphOp& op = registration->ops[k];
    static_cast<ort::CustomOp&>(op) = ort::CustomOp{};
    op.registration = registration;
    op.number = k;
    std::snprintf(op.name, sizeof op.name, "MuGraph_%u", k);
    std::snprintf(op.hidden_name, sizeof op.hidden_name, "Hidden_%u", k);
    op.version = ort::kApiVersion;
    op.GetName = get_name;
    op.GetExecutionProviderType = get_provider;
    op.GetInputTypeCount = [](const ort::CustomOp*) -> size_t { return 2; };
    op.GetInputType = [](const ort::CustomOp*, size_t i) -> int {
      return i == kBundleFormal ? ort::kUint8 : ort::kUndefined;
    };
    op.GetInputCharacteristic = [](const ort::CustomOp*, size_t i) -> int {
      return i == kBundleFormal ? ort::kOptional : ort::kVariadic;
    };
    op.GetInputMemoryType = [](const ort::CustomOp*, size_t i) -> int {
      return i == kBundleFormal ? ort::kMemCpuInput : ort::kMemDefault;
    };
    op.GetOutputTypeCount = [](const ort::CustomOp*) -> size_t { return 1; };
    op.GetOutputType = [](const ort::CustomOp*, size_t) -> int { return ort::kUndefined; };
    op.GetOutputCharacteristic = [](const ort::CustomOp*, size_t) -> int { return ort::kVariadic; };
    op.GetVariadicInputMinArity = [](const ort::CustomOp*) { return 1; };
    op.GetVariadicInputHomogeneity = [](const ort::CustomOp*) { return 0; };
    op.GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 1; };
    op.GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
    op.GetStartVersion = [](const ort::CustomOp*) { return 1; };
    op.GetEndVersion = [](const ort::CustomOp*) { return std::numeric_limits<int>::max(); };
    op.CreateKernelV2 = create_kernel;
    op.KernelComputeV2 = compute;
    op.KernelDestroy = [](void* kernel) { delete static_cast<MuGraphKernel*>(kernel); };
    // InferOutputShapeFn stays null: value_info is written by the rewriter, and ORT before 1.24
    // crashes on an inference function together with a skipped optional input.
  }
}

}  // namespace mirage
