// The C interface through which torch shows a tensor: DLPackExchangeAPI of DLPack 1.
#pragma once

#include <cstdint>

#include "tensor.h"

namespace pybeam {

constexpr uint32_t kDLPackMajor = 1;

struct DLVersion {
    uint32_t major, minor;
};

struct DLTensor {
    void* data;
    struct {
        int32_t type, index;
    } device;
    int32_t num_dims;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int64_t *sizes, *strides;
    uint64_t byte_offset;
};

// A table of functions. Those that nobody calls here are left as addresses.
struct DLPackExchangeApi {
    DLVersion version;
    DLPackExchangeApi* previous;
    void *allocate, *managed_from_python, *managed_to_python;
    int (*tensor_from_python)(void* object, DLTensor* out);
    void* current_stream;
};

inline ScalarType scalar_type_of(const DLTensor& tensor) {
    enum Code { kInt, kUInt, kFloat, kBFloat = 4, kBool = 6 };
    const auto is = [type = tensor.type](Code code, int bits) {
        return type.code == code && type.bits == bits && type.lanes == 1;
    };
    if (is(kFloat, 32)) return ScalarType::kFloat32;
    if (is(kInt, 32)) return ScalarType::kInt32;
    if (is(kInt, 64)) return ScalarType::kInt64;
    if (is(kBool, 8)) return ScalarType::kBool;
    if (is(kUInt, 8)) return ScalarType::kUInt8;
    if (is(kInt, 8)) return ScalarType::kInt8;
    if (is(kInt, 16)) return ScalarType::kInt16;
    if (is(kBFloat, 16)) return ScalarType::kBFloat16;
    if (is(kFloat, 16)) return ScalarType::kFloat16;
    if (is(kFloat, 64)) return ScalarType::kFloat64;
    return ScalarType::kOther;
}

inline Tensor tensor_of(const DLTensor& given) {
    constexpr int32_t kCpu = 1, kCuda = 2;
    const auto type = given.device.type == kCpu    ? Device::kCpu
                      : given.device.type == kCuda ? Device::kCuda
                                                   : Device::kOther;
    const int index = type == Device::kCpu ? 0 : given.device.index;
    return {static_cast<char*>(given.data) + given.byte_offset,
            scalar_type_of(given),
            given.type.bits * given.type.lanes / 8,
            {type, index},
            {given.sizes, given.num_dims},
            {given.strides, given.num_dims}};
}

}  // namespace pybeam
