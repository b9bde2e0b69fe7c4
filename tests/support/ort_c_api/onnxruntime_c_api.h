// Stands in for ONNX Runtime's own header, which no Python wheel has, so that examples/cpp can be built here.
//
// Declared by ourselves: the functions that the sample calls, each at its place in the append-only table of
// OrtApi (version 18). A wrong place would end the sample, which the test runs on the real library.
#pragma once

#include <cstddef>
#include <cstdint>

#define ORT_OPAQUE(X) struct Ort##X; typedef struct Ort##X Ort##X;
ORT_OPAQUE(Status)
ORT_OPAQUE(Env)
ORT_OPAQUE(Session)
ORT_OPAQUE(SessionOptions)
ORT_OPAQUE(RunOptions)
ORT_OPAQUE(Value)
ORT_OPAQUE(TypeInfo)
ORT_OPAQUE(TensorTypeAndShapeInfo)
ORT_OPAQUE(MemoryInfo)
ORT_OPAQUE(Allocator)
ORT_OPAQUE(CUDAProviderOptionsV2)

enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
};
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

// X(name, place in the table, return type, (parameters))
#define ORT_FUNCTIONS(X) \
  X(GetErrorMessage, 2, const char*, (const OrtStatus*)) \
  X(CreateEnv, 3, OrtStatus*, (OrtLoggingLevel, const char*, OrtEnv**)) \
  X(CreateSession, 7, OrtStatus*, (const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**)) \
  X(Run, 9, OrtStatus*, \
      (OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*, size_t, \
       const char* const*, size_t, OrtValue**)) \
  X(CreateSessionOptions, 10, OrtStatus*, (OrtSessionOptions**)) \
  X(SessionGetInputCount, 30, OrtStatus*, (const OrtSession*, size_t*)) \
  X(SessionGetOutputCount, 31, OrtStatus*, (const OrtSession*, size_t*)) \
  X(SessionGetInputTypeInfo, 33, OrtStatus*, (const OrtSession*, size_t, OrtTypeInfo**)) \
  X(SessionGetInputName, 36, OrtStatus*, (const OrtSession*, size_t, OrtAllocator*, char**)) \
  X(SessionGetOutputName, 37, OrtStatus*, (const OrtSession*, size_t, OrtAllocator*, char**)) \
  X(CreateTensorWithDataAsOrtValue, 49, OrtStatus*, \
      (const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, ONNXTensorElementDataType, OrtValue**)) \
  X(GetTensorMutableData, 51, OrtStatus*, (OrtValue*, void**)) \
  X(CastTypeInfoToTensorInfo, 55, OrtStatus*, (const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**)) \
  X(GetTensorElementType, 60, OrtStatus*, \
      (const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*)) \
  X(GetDimensionsCount, 61, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, size_t*)) \
  X(GetDimensions, 62, OrtStatus*, (const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)) \
  X(GetTensorTypeAndShape, 65, OrtStatus*, (const OrtValue*, OrtTensorTypeAndShapeInfo**)) \
  X(CreateCpuMemoryInfo, 69, OrtStatus*, (OrtAllocatorType, OrtMemType, OrtMemoryInfo**)) \
  X(AllocatorFree, 76, OrtStatus*, (OrtAllocator*, void*)) \
  X(GetAllocatorWithDefaultOptions, 78, OrtStatus*, (OrtAllocator**)) \
  X(ReleaseEnv, 92, void, (OrtEnv*)) \
  X(ReleaseStatus, 93, void, (OrtStatus*)) \
  X(ReleaseMemoryInfo, 94, void, (OrtMemoryInfo*)) \
  X(ReleaseSession, 95, void, (OrtSession*)) \
  X(ReleaseValue, 96, void, (OrtValue*)) \
  X(ReleaseTypeInfo, 98, void, (OrtTypeInfo*)) \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo*)) \
  X(ReleaseSessionOptions, 100, void, (OrtSessionOptions*)) \
  X(AddSessionConfigEntry, 130, OrtStatus*, (OrtSessionOptions*, const char*, const char*)) \
  X(SessionOptionsAppendExecutionProvider_CUDA_V2, 204, OrtStatus*, \
      (OrtSessionOptions*, const OrtCUDAProviderOptionsV2*)) \
  X(CreateCUDAProviderOptions, 205, OrtStatus*, (OrtCUDAProviderOptionsV2**)) \
  X(ReleaseCUDAProviderOptions, 208, void, (OrtCUDAProviderOptionsV2*)) \
  X(RegisterCustomOpsLibrary_V2, 228, OrtStatus*, (OrtSessionOptions*, const char*))

#define ORT_FIELD(name, index, result, parameters) \
  struct { \
    void* before_##name[index]; \
    result(*name) parameters; \
  };
union OrtApi {
  void* all[284];
  ORT_FUNCTIONS(ORT_FIELD)
};
struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
extern "C" const OrtApiBase* OrtGetApiBase();
