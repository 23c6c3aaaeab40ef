// The device and the stream of a launch, as torch has them.
#pragma once

#include <cuda_runtime_api.h>

#include "../torch.h"

namespace pybeam::cuda {

inline void check_cuda(cudaError_t error) {
    PYBEAM_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error));
}

// A stream of a device.
struct Stream {
    int device;
    cudaStream_t stream;

    static Stream current(int device) {
        void* stream = nullptr;
        check_torch(aoti_torch_get_current_cuda_stream(device, &stream), "name its CUDA stream");
        return {device, static_cast<cudaStream_t>(stream)};
    }
};

// Makes a device the current one while it lives.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device) {
        check_torch(aoti_torch_create_cuda_guard(device, &guard_), "choose a CUDA device");
    }
    ~DeviceGuard() { aoti_torch_delete_cuda_guard(guard_); }
    DeviceGuard(const DeviceGuard&) = delete;

  private:
    CUDAGuardHandle guard_ = nullptr;
};

inline int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

}  // namespace pybeam::cuda
