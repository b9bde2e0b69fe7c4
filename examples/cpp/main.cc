// Runs an optimized model once, with the library registered, and prints what came out.
//
//   run_model MODEL.onnx libmirage_onnx_ops.so [--cuda]
//
// The three lines that are about mirage-onnx are marked. Without --cuda, and on a machine without the GPU
// that the kernels are for, the model's function bodies run: the same results.
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

const OrtApi* ort = nullptr;

void check(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "error: %s\n", ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  std::exit(1);
}

size_t width(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return 8;
    default:
      std::fprintf(stderr, "error: this sample feeds float, float16, int32 and int64 only\n");
      std::exit(1);
  }
}

// Whole numbers from -3 to 3 as floats, 0 and 1 as integers.
std::vector<char> example(ONNXTensorElementDataType type, size_t count) {
  static const uint16_t halves[7] = {0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000, 0x4200};
  std::vector<char> data(count * width(type));
  for (size_t i = 0; i < count; ++i) {
    char* at = data.data() + i * width(type);
    const float real = static_cast<float>(i % 7) - 3;
    const int64_t whole = i % 2;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) std::memcpy(at, &halves[i % 7], 2);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) std::memcpy(at, &real, 4);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) std::memcpy(at, &whole, 4);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) std::memcpy(at, &whole, 8);
  }
  return data;
}

float from_half(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value = exponent == 0 ? fraction / 16777216.0f : (1024 + fraction) / 1024.0f;
  for (int e = exponent; e > 15; --e) value *= 2;
  for (int e = exponent; e != 0 && e < 15; ++e) value /= 2;
  return half >> 15 ? -value : value;
}

double at(const void* data, ONNXTensorElementDataType type, size_t i) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return from_half(static_cast<const uint16_t*>(data)[i]);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return static_cast<const float*>(data)[i];
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return static_cast<const int32_t*>(data)[i];
    default: return static_cast<double>(static_cast<const int64_t*>(data)[i]);
  }
}

struct Shape {
  ONNXTensorElementDataType type;
  std::vector<int64_t> dims;
  size_t count = 1;
};

Shape shape_of(const OrtTensorTypeAndShapeInfo* info) {
  Shape found;
  size_t rank = 0;
  check(ort->GetTensorElementType(info, &found.type));
  check(ort->GetDimensionsCount(info, &rank));
  found.dims.resize(rank);
  check(ort->GetDimensions(info, found.dims.data(), rank));
  for (int64_t& dim : found.dims) {
    if (dim < 0) dim = 8;  // a dynamic dimension: any size will do here
    found.count *= static_cast<size_t>(dim);
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: run_model MODEL.onnx libmirage_onnx_ops.so [--cuda]\n");
    return 2;
  }
  const bool cuda = argc > 3 && std::strcmp(argv[3], "--cuda") == 0;
  ort = OrtGetApiBase()->GetApi(18);  // mirage-onnx needs ONNX Runtime 1.18 or later
  if (ort == nullptr) {
    std::fprintf(stderr, "error: this ONNX Runtime is older than 1.18\n");
    return 1;
  }
  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "run_model", &env));
  check(ort->CreateSessionOptions(&options));
  if (cuda) {
    OrtCUDAProviderOptionsV2* device = nullptr;
    check(ort->CreateCUDAProviderOptions(&device));
    check(ort->SessionOptionsAppendExecutionProvider_CUDA_V2(options, device));
    ort->ReleaseCUDAProviderOptions(device);
  } else {
    check(ort->AddSessionConfigEntry(options, "ai.mirage.ep", "none"));  // mirage-onnx: run the bodies
  }
  check(ort->RegisterCustomOpsLibrary_V2(options, argv[2]));  // mirage-onnx: after the config entries
  check(ort->CreateSession(env, argv[1], options, &session));

  OrtAllocator* allocator = nullptr;
  OrtMemoryInfo* memory = nullptr;
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  size_t inputs = 0, outputs = 0;
  check(ort->SessionGetInputCount(session, &inputs));
  check(ort->SessionGetOutputCount(session, &outputs));
  std::vector<char*> input_names(inputs), output_names(outputs);
  std::vector<std::vector<char>> data;
  std::vector<OrtValue*> values(inputs), results(outputs);
  for (size_t i = 0; i < inputs; ++i) {
    OrtTypeInfo* type = nullptr;
    const OrtTensorTypeAndShapeInfo* info = nullptr;
    check(ort->SessionGetInputName(session, i, allocator, &input_names[i]));
    check(ort->SessionGetInputTypeInfo(session, i, &type));
    check(ort->CastTypeInfoToTensorInfo(type, &info));
    const Shape shape = shape_of(info);
    data.push_back(example(shape.type, shape.count));
    check(ort->CreateTensorWithDataAsOrtValue(memory, data[i].data(), data[i].size(), shape.dims.data(),
                                              shape.dims.size(), shape.type, &values[i]));
    ort->ReleaseTypeInfo(type);
  }
  for (size_t i = 0; i < outputs; ++i)
    check(ort->SessionGetOutputName(session, i, allocator, &output_names[i]));

  check(ort->Run(session, nullptr, input_names.data(), values.data(), inputs, output_names.data(), outputs,
                 results.data()));

  for (size_t i = 0; i < outputs; ++i) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    void* raw = nullptr;
    check(ort->GetTensorTypeAndShape(results[i], &info));
    check(ort->GetTensorMutableData(results[i], &raw));
    const Shape shape = shape_of(info);
    double sum = 0;
    for (size_t n = 0; n < shape.count; ++n) sum += at(raw, shape.type, n);
    std::string dims;
    for (int64_t dim : shape.dims) dims += (dims.empty() ? "" : "x") + std::to_string(dim);
    std::printf("%s %s %.9g %.9g\n", output_names[i], dims.c_str(), at(raw, shape.type, 0), sum);
    ort->ReleaseTensorTypeAndShapeInfo(info);
    ort->ReleaseValue(results[i]);
    check(ort->AllocatorFree(allocator, output_names[i]));
  }
  for (size_t i = 0; i < inputs; ++i) {
    ort->ReleaseValue(values[i]);
    check(ort->AllocatorFree(allocator, input_names[i]));
  }
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  return 0;
}
