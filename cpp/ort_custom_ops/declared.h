// What the model declares of a node's inputs and outputs, against its plan.
#pragma once

#include <string>

#include "ort_abi.h"
#include "plan.h"

namespace mirage {

// Compares element types, ranks and static dims of the plan with those that the graph gives the
// node's inputs (after the bundle) and outputs; the workspace must be uint8. ONNX Runtime allocates
// by the declared type, so a plan that disagrees would write beyond a buffer, or bytes over objects.
// Sets `why` to "" or the reason of a refusal; returns what ORT failed with.
ort::Status* check_declared(
    const ort::Api*, const ort::KernelInfo*, const Plan&, std::string* why);

// "f16", or "type 8" for one that no plan can name (8: strings).
std::string type_text(int element_type);

}  // namespace mirage
