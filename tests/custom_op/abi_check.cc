// Compares ort_abi.h with an official onnxruntime_c_api.h.
// It only has to compile; each failure names the slot or field.
#include <onnxruntime_c_api.h>

#include "ort_abi.h"

#define CHECK_SLOT(name, index, result, parameters) \
  static_assert(offsetof(OrtApi, name) / sizeof(void*) == index, "slot of OrtApi::" #name);
MIRAGE_ORT_SLOTS(CHECK_SLOT)
#if ORT_API_VERSION >= 24
static_assert(offsetof(OrtApi, GetTensorElementTypeAndShapeDataReference) / sizeof(void*) ==
        mirage::ort::kShapeReferenceSlot,
    "slot of OrtApi::GetTensorElementTypeAndShapeDataReference");
#endif

#define CHECK_FIELD(name) \
  static_assert(offsetof(OrtCustomOp, name) == offsetof(mirage::ort::CustomOp, name), \
      "offset of OrtCustomOp::" #name);
CHECK_FIELD(version)
CHECK_FIELD(CreateKernel)
CHECK_FIELD(GetName)
CHECK_FIELD(GetExecutionProviderType)
CHECK_FIELD(GetInputType)
CHECK_FIELD(GetInputTypeCount)
CHECK_FIELD(GetOutputType)
CHECK_FIELD(GetOutputTypeCount)
CHECK_FIELD(KernelCompute)
CHECK_FIELD(KernelDestroy)
CHECK_FIELD(GetInputCharacteristic)
CHECK_FIELD(GetOutputCharacteristic)
CHECK_FIELD(GetInputMemoryType)
CHECK_FIELD(GetVariadicInputMinArity)
CHECK_FIELD(GetVariadicInputHomogeneity)
CHECK_FIELD(GetVariadicOutputMinArity)
CHECK_FIELD(GetVariadicOutputHomogeneity)
CHECK_FIELD(CreateKernelV2)
CHECK_FIELD(KernelComputeV2)
CHECK_FIELD(InferOutputShapeFn)
CHECK_FIELD(GetStartVersion)
CHECK_FIELD(GetEndVersion)
CHECK_FIELD(GetMayInplace)
CHECK_FIELD(ReleaseMayInplace)
CHECK_FIELD(GetAliasMap)
CHECK_FIELD(ReleaseAliasMap)

static_assert(ORT_API_VERSION >= mirage::ort::kApiVersion, "header older than the API we use");
static_assert(offsetof(OrtApiBase, GetApi) == offsetof(mirage::ort::ApiBase, get_api), "");
static_assert(ORT_FAIL == int(mirage::ort::kFail), "");
static_assert(ORT_INVALID_ARGUMENT == int(mirage::ort::kInvalidArgument), "");
static_assert(ORT_INVALID_GRAPH == int(mirage::ort::kInvalidGraph), "");
static_assert(OrtMemTypeCPUInput == int(mirage::ort::kMemCpuInput), "");
static_assert(OrtMemTypeDefault == int(mirage::ort::kMemDefault), "");
static_assert(INPUT_OUTPUT_OPTIONAL == int(mirage::ort::kOptional), "");
static_assert(INPUT_OUTPUT_VARIADIC == int(mirage::ort::kVariadic), "");
static_assert(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 == int(mirage::ort::kUint8), "");
static_assert(ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED == int(mirage::ort::kUndefined), "");
