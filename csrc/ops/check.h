// Checks of arguments. The launches check values that serve as addresses.
#pragma once

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

#include "../params/types.h"
#include "../threads.h"
#include "tensor.h"

namespace pybeam {

// A wrong type, as Python's TypeError. Wrong values are `std::invalid_argument`, its ValueError.
struct TypeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class Error, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    std::ostringstream message;
    (message << ... << parts);
    throw Error(message.str());
}

#define PYBEAM_CHECK_AS(error, condition, ...)                \
    do {                                                      \
        if (!(condition)) ::pybeam::fail<error>(__VA_ARGS__); \
    } while (false)
#define PYBEAM_CHECK(condition, ...) PYBEAM_CHECK_AS(std::runtime_error, condition, __VA_ARGS__)
#define PYBEAM_CHECK_VALUE(condition, ...) \
    PYBEAM_CHECK_AS(std::invalid_argument, condition, __VA_ARGS__)
#define PYBEAM_CHECK_TYPE(condition, ...) \
    PYBEAM_CHECK_AS(::pybeam::TypeError, condition, __VA_ARGS__)

inline void check_tensor(const char* name, const Tensor& tensor, ScalarType dtype, IntList shape,
                         Device device = {}) {
    PYBEAM_CHECK_VALUE(tensor.device() == device, "`", name, "` must be on ", device,
                       ", but is on ", tensor.device());
    PYBEAM_CHECK_VALUE(tensor.scalar_type() == dtype, "`", name, "` must be ", dtype, ", but is ",
                       tensor.scalar_type());
    PYBEAM_CHECK_VALUE(tensor.sizes() == shape, "`", name, "` must be ", shape, ", but is ",
                       tensor.sizes());
}

inline void check_contiguous(const char* name, const Tensor& tensor) {
    PYBEAM_CHECK_VALUE(tensor.is_contiguous(), "`", name, "` must be contiguous");
}

inline void check_dim(const char* name, const Tensor& tensor, int64_t dim) {
    PYBEAM_CHECK_VALUE(tensor.dim() == dim, "`", name, "` must have ", dim, " dimensions, but has ",
                       tensor.dim());
}

// The elements of a row must be neighbours in memory.
inline void check_unit_stride(const char* name, const Tensor& tensor) {
    PYBEAM_CHECK_VALUE(tensor.size(-1) <= 1 || tensor.stride(-1) == 1, "the last stride of `", name,
                       "` must be 1, but is ", tensor.stride(-1));
}

template <class T>
T* data(const Tensor& tensor) {
    return static_cast<T*>(tensor.data_ptr());
}

// The memory of an array that the operator changes in place.
template <class T>
T* state(const char* name, const Tensor& tensor, ScalarType dtype, IntList shape) {
    check_tensor(name, tensor, dtype, shape);
    check_contiguous(name, tensor);
    return data<T>(tensor);
}

inline void check_size(const char* name, TensorList arrays, size_t size) {
    PYBEAM_CHECK_VALUE(arrays.size() == size, "`", name, "` must have ", size, " arrays, but has ",
                       arrays.size());
}

// Copies what lies scattered side by side.
template <class T>
std::unique_ptr<T[]> gathered(const Tensor& tensor) {
    auto items = std::make_unique<T[]>(tensor.numel());
    std::vector<int64_t> index(tensor.dim(), 0);
    const T* from = data<T>(tensor);
    for (int64_t item = 0; item < tensor.numel(); ++item) {
        items[item] = *from;
        for (int64_t i = tensor.dim() - 1; i >= 0; --i) {
            from += tensor.stride(i);
            if (++index[i] < tensor.size(i)) break;
            from -= tensor.stride(i) * tensor.size(i);
            index[i] = 0;
        }
    }
    return items;
}

// A checked argument. Its items lie side by side: in the tensor, or in a copy.
template <class T>
class Argument {
  public:
    Argument(const char* name, const OptionalTensor& tensor, ScalarType dtype, IntList shape,
             Device device = {}) {
        if (!tensor.has_value()) return;
        check_tensor(name, *tensor, dtype, shape, device);
        if (tensor->is_contiguous()) {
            data_ = data<T>(*tensor);
            return;
        }
        PYBEAM_CHECK_VALUE(device.type == Device::kCpu, "`", name, "` must be contiguous");
        copy_ = gathered<T>(*tensor);
        data_ = copy_.get();
    }
    operator const T*() const { return data_; }

  private:
    std::unique_ptr<T[]> copy_;
    const T* data_ = nullptr;
};

inline EosIds eos_of(IntList ids) {
    PYBEAM_CHECK_VALUE(!ids.empty() && ids.size() <= kMaxEos, "there must be 1 to ", kMaxEos,
                       " EOS ids, but there are ", ids.size());
    EosIds eos{};
    for (const int64_t id : ids) eos.id[eos.count++] = static_cast<int32_t>(id);
    return eos;
}

inline Finishing finishing_of(int64_t finishing) {
    PYBEAM_CHECK_VALUE(finishing >= 0 && finishing <= 3, "`finishing` must be 0 to 3, but is ",
                       finishing);
    return static_cast<Finishing>(finishing);
}

inline DType float_type(const char* name, const Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case ScalarType::kFloat32:
            return DType::kFloat32;
        case ScalarType::kBFloat16:
            return DType::kBFloat16;
        case ScalarType::kFloat16:
            return DType::kFloat16;
        default:
            fail<std::invalid_argument>("`", name, "` must be float32, bfloat16 or float16 on the ",
                                        "native backend, but is ", tensor.scalar_type(),
                                        "; the reference backend takes float64");
    }
}

}  // namespace pybeam
