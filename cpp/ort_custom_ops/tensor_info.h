// Element type and shape of an ORT tensor, read without a heap allocation of ours.
#pragma once

#include <algorithm>

#include "expr.h"
#include "ort_abi.h"

namespace mirage {

struct TensorInfo {
  int type = 0;
  size_t rank = 0;  // dims are read only when it is <= kMaxRank
  int64_t dims[kMaxRank];

  ort::Status* read(const ort::Api* api, const ort::Value* value) {
    ort::TensorInfo* raw = nullptr;
    if (auto* s = ort::GetTensorTypeAndShape(api)(value, &raw)) return s;
    ort::Status* status = read(api, raw);
    ort::ReleaseTensorTypeAndShapeInfo(api)(raw);
    return status;
  }

  // The same without a copy where the runtime can (`reference` is not null).
  ort::Status* read(const ort::Api* api, ort::ShapeReference reference, const ort::Value* value) {
    if (reference == nullptr) return read(api, value);
    const int64_t* there = nullptr;
    ort::Status* status = reference(value, &type, &there, &rank);
    if (status == nullptr && rank <= kMaxRank) std::copy_n(there, rank, dims);
    return status;
  }

  ort::Status* read(const ort::Api* api, const ort::TensorInfo* raw) {
    ort::Status* status = ort::GetTensorElementType(api)(raw, &type);
    if (status == nullptr) status = ort::GetDimensionsCount(api)(raw, &rank);
    if (status == nullptr && rank <= kMaxRank) {
      status = ort::GetDimensions(api)(raw, dims, rank);
    }
    return status;
  }
};

}  // namespace mirage
