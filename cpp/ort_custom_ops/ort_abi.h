// The part of the ONNX Runtime C ABI that this library touches, declared by ourselves.
//
// Facts it rests on: OrtApi is an append-only table of function pointers, so a slot index never
// changes once released; OrtCustomOp (here as of API 18) is the only structure that we fill in.
// A wrong index would be silent, therefore tests/custom_op/abi_check.cc compares every slot and
// offset with an official header wherever one is installed (ORT_INCLUDE_DIR).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mirage::ort {

constexpr uint32_t kApiVersion = 18;  // ORT 1.18; every later runtime accepts it

// Opaque handles: we only pass them around.
struct Status;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct TensorInfo;
struct TypeInfo;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2, kInvalidGraph = 10 };
enum ElementType : int { kUndefined = 0, kUint8 = 2 };
enum MemType : int { kMemCpuInput = -2, kMemDefault = 0 };
enum Characteristic : int { kRequired = 0, kOptional = 1, kVariadic = 2 };

struct Api {
  void* slot[280];  // what API 18 guarantees
};

// Of a later version, and null before it: type and shape of a tensor where they are, not as a copy on
// the heap, which takes a quarter of a microsecond for each tensor of a run.
using ShapeReference = Status* (*)(const Value*, int* type, const int64_t** dims, size_t* rank);
constexpr uint32_t kShapeReferenceVersion = 24;
constexpr size_t kShapeReferenceSlot = 414;

struct ApiBase {
  const Api* (*get_api)(uint32_t version);
  const char* (*get_version_string)();
};

// Slot indices and signatures, one line each: X(name, index, return type, (parameters)).
#define MIRAGE_ORT_SLOTS(X) \
  X(CreateStatus, 0, Status*, (int code, const char* message)) \
  X(GetErrorMessage, 2, const char*, (const Status*)) \
  X(CreateCustomOpDomain, 26, Status*, (const char* name, CustomOpDomain** out)) \
  X(CustomOpDomain_Add, 27, Status*, (CustomOpDomain*, const CustomOp*)) \
  X(AddCustomOpDomain, 28, Status*, (SessionOptions*, CustomOpDomain*)) \
  X(GetTensorMutableData, 51, Status*, (Value*, void** out)) \
  X(CastTypeInfoToTensorInfo, 55, Status*, (const TypeInfo*, const TensorInfo** out)) \
  X(GetTensorElementType, 60, Status*, (const TensorInfo*, int* out)) \
  X(GetDimensionsCount, 61, Status*, (const TensorInfo*, size_t* out)) \
  X(GetDimensions, 62, Status*, (const TensorInfo*, int64_t* dims, size_t count)) \
  X(GetTensorTypeAndShape, 65, Status*, (const Value*, TensorInfo** out)) \
  X(KernelInfoGetAttribute_string, 87, Status*, \
      (const KernelInfo*, const char* name, char* out, size_t* size)) \
  X(KernelContext_GetInput, 90, Status*, (const KernelContext*, size_t, const Value** out)) \
  X(KernelContext_GetOutput, 91, Status*, \
      (KernelContext*, size_t, const int64_t* dims, size_t rank, Value** out)) \
  X(ReleaseStatus, 93, void, (Status*)) \
  X(ReleaseTypeInfo, 98, void, (TypeInfo*)) \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (TensorInfo*)) \
  X(GetAvailableProviders, 125, Status*, (char*** names, int* count)) \
  X(ReleaseAvailableProviders, 126, Status*, (char** names, int count)) \
  X(AddSessionConfigEntry, 130, Status*, (SessionOptions*, const char* key, const char* value)) \
  X(KernelContext_GetGPUComputeStream, 193, Status*, (const KernelContext*, void** out)) \
  X(KernelInfo_GetInputCount, 230, Status*, (const KernelInfo*, size_t* out)) \
  X(KernelInfo_GetOutputCount, 231, Status*, (const KernelInfo*, size_t* out)) \
  X(KernelInfo_GetInputTypeInfo, 234, Status*, (const KernelInfo*, size_t index, TypeInfo** out)) \
  X(KernelInfo_GetOutputTypeInfo, 235, Status*, (const KernelInfo*, size_t index, TypeInfo** out)) \
  X(HasSessionConfigEntry, 237, Status*, (const SessionOptions*, const char* key, int* out)) \
  X(GetSessionConfigEntry, 238, Status*, \
      (const SessionOptions*, const char* key, char* value, size_t* size)) \
  X(KernelInfo_GetNodeName, 244, Status*, (const KernelInfo*, char* name, size_t* size)) \
  X(KernelInfoGetConstantInput_tensor, 249, Status*, \
      (const KernelInfo*, size_t index, int* is_constant, const Value** out))

// Callbacks of a custom op, in the order of the C struct.
struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  int (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  int (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const CustomOp*, size_t);
  int (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int (*GetInputMemoryType)(const CustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void** kernel);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, void*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

#define MIRAGE_ORT_CALL(name, index, result, parameters) \
  constexpr size_t kSlot_##name = index; \
  static_assert(kSlot_##name < sizeof(Api) / sizeof(void*), "beyond API 18"); \
  using Fn_##name = result(*) parameters; \
  inline Fn_##name name(const Api* api) { return reinterpret_cast<Fn_##name>(api->slot[index]); }
MIRAGE_ORT_SLOTS(MIRAGE_ORT_CALL)
#undef MIRAGE_ORT_CALL

}  // namespace mirage::ort
