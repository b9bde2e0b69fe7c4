// Compares driver_api.h with an official cuda.h. It only has to compile.
#include <cuda.h>

#include "driver_api.h"

namespace cu = mirage::cu;
static_assert(sizeof(CUlaunchConfig) == sizeof(cu::LaunchConfig), "");
static_assert(offsetof(CUlaunchConfig, blockDimX) == offsetof(cu::LaunchConfig, block), "");
static_assert(
    offsetof(CUlaunchConfig, sharedMemBytes) == offsetof(cu::LaunchConfig, smem_bytes), "");
static_assert(offsetof(CUlaunchConfig, hStream) == offsetof(cu::LaunchConfig, stream), "");
static_assert(offsetof(CUlaunchConfig, attrs) == offsetof(cu::LaunchConfig, attributes), "");
static_assert(
    offsetof(CUlaunchConfig, numAttrs) == offsetof(cu::LaunchConfig, attribute_count), "");
static_assert(sizeof(CUlaunchAttribute) == sizeof(cu::LaunchAttribute), "");
static_assert(offsetof(CUlaunchAttribute, value) == offsetof(cu::LaunchAttribute, value), "");
static_assert(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == cu::kAttrClusterDim, "");
static_assert(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ==
        cu::kAttrProgrammaticStreamSerialization,
    "");
static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == cu::kFuncMaxDynamicSmem, "");
static_assert(
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED == cu::kFuncNonPortableCluster, "");
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == cu::kDeviceComputeMajor, "");
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == cu::kDeviceComputeMinor, "");
static_assert(CUDA_ERROR_INVALID_VALUE == cu::kInvalidValue, "");
