// Checks of arguments that come through the dispatcher. The launches check values that serve as
// addresses.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "../params/types.h"

namespace pybeam {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline void check_tensor(const char* name, const Tensor& tensor, at::ScalarType dtype,
                         at::IntArrayRef shape, at::Device device = at::kCPU) {
    TORCH_CHECK_VALUE(tensor.device() == device, "`", name, "` must be on ", device, ", but is on ",
                      tensor.device());
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "`", name, "` must be ", dtype, ", but is ",
                      tensor.scalar_type());
    TORCH_CHECK_VALUE(tensor.sizes() == shape, "`", name, "` must be ", shape, ", but is ",
                      tensor.sizes());
}

inline void check_contiguous(const char* name, const Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.is_contiguous(), "`", name, "` must be contiguous");
}

inline void check_dim(const char* name, const Tensor& tensor, int64_t dim) {
    TORCH_CHECK_VALUE(tensor.dim() == dim, "`", name, "` must have ", dim, " dimensions, but has ",
                      tensor.dim());
}

// The elements of a row must be neighbours in memory.
inline void check_unit_stride(const char* name, const Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.size(-1) <= 1 || tensor.stride(-1) == 1, "the last stride of `", name,
                      "` must be 1, but is ", tensor.stride(-1));
}

template <class T>
T* data(const Tensor& tensor) {
    return static_cast<T*>(tensor.data_ptr());
}

// The memory of an array that the operator changes in place.
template <class T>
T* state(const char* name, const Tensor& tensor, at::ScalarType dtype, at::IntArrayRef shape) {
    check_tensor(name, tensor, dtype, shape);
    check_contiguous(name, tensor);
    return data<T>(tensor);
}

inline void check_size(const char* name, at::TensorList arrays, size_t size) {
    TORCH_CHECK_VALUE(arrays.size() == size, "`", name, "` must have ", size, " arrays, but has ",
                      arrays.size());
}

// A checked, contiguous argument, kept alive while the kernel runs.
template <class T>
class Argument {
  public:
    Argument(const char* name, const OptionalTensor& tensor, at::ScalarType dtype,
             at::IntArrayRef shape, at::Device device = at::kCPU) {
        if (!tensor.has_value()) return;
        check_tensor(name, *tensor, dtype, shape, device);
        tensor_ = tensor->contiguous();
        data_ = data<T>(tensor_);
    }
    operator const T*() const { return data_; }

  private:
    Tensor tensor_;
    const T* data_ = nullptr;
};

inline EosIds eos_of(at::IntArrayRef ids) {
    TORCH_CHECK_VALUE(!ids.empty() && ids.size() <= kMaxEos, "there must be 1 to ", kMaxEos,
                      " EOS ids, but there are ", ids.size());
    EosIds eos{};
    for (const int64_t id : ids) eos.id[eos.count++] = static_cast<int32_t>(id);
    return eos;
}

inline Finishing finishing_of(int64_t finishing) {
    TORCH_CHECK_VALUE(finishing >= 0 && finishing <= 3, "`finishing` must be 0 to 3, but is ",
                      finishing);
    return static_cast<Finishing>(finishing);
}

inline DType float_type(const char* name, const Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case at::kFloat:
            return DType::kFloat32;
        case at::kBFloat16:
            return DType::kBFloat16;
        case at::kHalf:
            return DType::kFloat16;
        default:
            TORCH_CHECK_VALUE(false, "`", name, "` must be float32, bfloat16 or float16 on the ",
                              "native backend, but is ", tensor.scalar_type(),
                              "; the reference backend takes float64");
    }
}

}  // namespace pybeam
