#include "declared.h"

#include <algorithm>

#include "tensor_info.h"

namespace mirage {
namespace {

constexpr int64_t kUnknown = -1;

// Sizes of the plan's inputs as far as plan and graph tell them.
struct Known {
  Dims dims;

  bool holds(const Expr& expr) const {
    return std::none_of(expr.tokens.begin(), expr.tokens.end(), [&](const Token& token) {
      return token.op == Op::kDim && dims.dim[token.input][token.axis] == kUnknown;
    });
  }
};

enum class Side { kInput, kOutput };

// `is_tensor` stays false for a sequence, a map or an optional.
ort::Status* read_declared(const ort::Api* api, const ort::KernelInfo* node, Side side,
    size_t index, bool* is_tensor, TensorInfo* out) {
  ort::TypeInfo* declared = nullptr;
  ort::Status* status = side == Side::kInput
      ? ort::KernelInfo_GetInputTypeInfo(api)(node, index, &declared)
      : ort::KernelInfo_GetOutputTypeInfo(api)(node, index, &declared);
  if (status != nullptr) return status;
  const ort::TensorInfo* tensor = nullptr;
  status = ort::CastTypeInfoToTensorInfo(api)(declared, &tensor);
  *is_tensor = tensor != nullptr;
  if (status == nullptr && tensor != nullptr) status = out->read(api, tensor);
  ort::ReleaseTypeInfo(api)(declared);
  return status;
}

std::string disagree(const std::string& what, const std::string& declared, const std::string& plan) {
  return what + " is declared " + declared + ", the plan has " + plan;
}

std::string type_differs(const std::string& what, bool is_tensor, int declared, int planned) {
  if (is_tensor && declared == planned) return "";
  return disagree(what, is_tensor ? type_text(declared) : "as no tensor", type_text(planned));
}

// ORT gives the rank 0 for a scalar and for a shape that is not declared, so 0 tells nothing.
std::string rank_differs(const std::string& what, size_t declared, size_t planned) {
  if (declared == 0 || declared == planned) return "";
  return disagree(what, "with rank " + std::to_string(declared), "rank " + std::to_string(planned));
}

std::string dim_differs(const std::string& what, size_t axis, int64_t declared, int64_t planned) {
  if (declared < 0 || declared == planned) return "";
  return disagree("dim " + std::to_string(axis) + " of " + what, std::to_string(declared),
      std::to_string(planned));
}

std::string check_input(const std::string& what, const InputSpec& spec, bool is_tensor,
    const TensorInfo& declared, int64_t* known) {
  std::string why = type_differs(what, is_tensor, declared.type, spec.element_type);
  if (why.empty()) why = rank_differs(what, declared.rank, spec.dims.size());
  for (size_t i = 0; why.empty() && i < spec.dims.size(); ++i) {
    const int64_t told = declared.rank == 0 ? kUnknown : declared.dims[i];
    if (spec.dims[i] == kAnyDim) {
      known[i] = told < 0 ? kUnknown : told;
    } else {
      known[i] = spec.dims[i];
      why = dim_differs(what, i, told, spec.dims[i]);
    }
  }
  return why;
}

// Dims that cannot be computed yet, or at all, are left to the run.
std::string check_dims(const std::string& what, const Expr* dims, size_t rank,
    const TensorInfo& declared, const Known& known) {
  std::string why = rank_differs(what, declared.rank, rank);
  for (size_t i = 0; why.empty() && i < declared.rank; ++i) {
    int64_t planned = 0;
    const char* reason = nullptr;
    if (!known.holds(dims[i]) || !dims[i].eval(known.dims, &planned, &reason)) continue;
    why = dim_differs(what, i, declared.dims[i], planned);
  }
  return why;
}

}  // namespace

std::string type_text(int element_type) {
  const std::string name = element_type_name(element_type);
  return name == "?" ? "type " + std::to_string(element_type) : name;
}

ort::Status* check_declared(
    const ort::Api* api, const ort::KernelInfo* node, const Plan& plan, std::string* why) {
  Known known{};
  why->clear();
  for (size_t i = 0; why->empty() && i < plan.inputs.size(); ++i) {
    TensorInfo declared;
    bool is_tensor = false;
    if (auto* s = read_declared(api, node, Side::kInput, i + 1, &is_tensor, &declared)) return s;
    const std::string what = "input " + std::to_string(i + 1);  // as counted in the model
    *why = check_input(what, plan.inputs[i], is_tensor, declared, known.dims.dim[i]);
  }
  const size_t outputs = plan.outputs.size() + (plan.has_workspace ? 1 : 0);
  for (size_t i = 0; why->empty() && i < outputs; ++i) {
    TensorInfo declared;
    bool is_tensor = false;
    if (auto* s = read_declared(api, node, Side::kOutput, i, &is_tensor, &declared)) return s;
    const bool is_workspace = i == plan.outputs.size();
    const std::string what =
        (is_workspace ? "the workspace, output " : "output ") + std::to_string(i);
    const int type = is_workspace ? ort::kUint8 : plan.outputs[i].element_type;
    *why = type_differs(what, is_tensor, declared.type, type);
    if (!why->empty()) break;
    *why = is_workspace
        ? check_dims(what, &plan.workspace_bytes, 1, declared, known)
        : check_dims(what, plan.outputs[i].dims.data(), plan.outputs[i].dims.size(), declared, known);
  }
  return nullptr;
}

}  // namespace mirage
