// Checks of what comes through the dispatcher. Values used as addresses are checked by the
// launches.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "params.h"

namespace pybeam {

inline void check_tensor(const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                         at::IntArrayRef shape) {
    TORCH_CHECK_VALUE(tensor.device().is_cpu(), "`", name, "` must be on the CPU, but is on ",
                      tensor.device());
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "`", name, "` must be ", dtype, ", but is ",
                      tensor.scalar_type());
    TORCH_CHECK_VALUE(tensor.sizes() == shape, "`", name, "` must be ", shape, ", but is ",
                      tensor.sizes());
}

inline void check_contiguous(const char* name, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.is_contiguous(), "`", name, "` must be contiguous");
}

inline void check_dim(const char* name, const at::Tensor& tensor, int64_t dim) {
    TORCH_CHECK_VALUE(tensor.dim() == dim, "`", name, "` must have ", dim, " dimensions, but has ",
                      tensor.dim());
}

// The elements of a row must be neighbours in memory.
inline void check_unit_stride(const char* name, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.size(-1) <= 1 || tensor.stride(-1) == 1, "the last stride of `", name,
                      "` must be 1, but is ", tensor.stride(-1));
}

template <class T>
T* data(const at::Tensor& tensor) {
    return static_cast<T*>(tensor.data_ptr());
}

// A checked, contiguous argument, kept alive while the kernel runs.
template <class T>
class Argument {
  public:
    Argument(const char* name, const std::optional<at::Tensor>& tensor, at::ScalarType dtype,
             at::IntArrayRef shape) {
        if (!tensor.has_value()) return;
        check_tensor(name, *tensor, dtype, shape);
        tensor_ = tensor->contiguous();
        data_ = data<T>(tensor_);
    }
    operator const T*() const { return data_; }

  private:
    at::Tensor tensor_;
    const T* data_ = nullptr;
};

inline EosIds eos_of(at::IntArrayRef ids) {
    TORCH_CHECK_VALUE(!ids.empty() && ids.size() <= kMaxEos, "there must be 1 to ", kMaxEos,
                      " EOS ids, but there are ", ids.size());
    EosIds eos{};
    for (const int64_t id : ids) eos.id[eos.count++] = static_cast<int32_t>(id);
    return eos;
}

inline DType float_type(const char* name, const at::Tensor& tensor) {
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

// Rows of a tensor that is contiguous in all but the first dimension.
inline RowTensor rows_of(const char* name, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(tensor.dim() >= 1, "`", name, "` must have rows, but is a scalar");
    int64_t expected = 1;
    for (int64_t d = tensor.dim() - 1; d >= 1; --d) {
        TORCH_CHECK_VALUE(tensor.size(d) <= 1 || tensor.stride(d) == expected, "`", name,
                          "` must be contiguous in all but the first dimension, but has strides ",
                          tensor.strides());
        expected *= tensor.size(d);
    }
    const int64_t item = static_cast<int64_t>(tensor.element_size());
    return RowTensor{static_cast<char*>(tensor.data_ptr()), expected * item,
                     tensor.stride(0) * item};
}

}  // namespace pybeam
