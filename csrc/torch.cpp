#include "torch.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include <algorithm>
#include <cstdlib>

#include "scratch.h"
#include "threads.h"

namespace pybeam {
namespace {

struct TorchType {
    int32_t number;
    ScalarType type;
};

// The types that kernels know, with torch's numbers for them.
const std::vector<TorchType>& torch_types() {
    static const std::vector<TorchType> types{
        {aoti_torch_dtype_float32(), ScalarType::kFloat32},
        {aoti_torch_dtype_int32(), ScalarType::kInt32},
        {aoti_torch_dtype_bool(), ScalarType::kBool},
        {aoti_torch_dtype_int64(), ScalarType::kInt64},
        {aoti_torch_dtype_bfloat16(), ScalarType::kBFloat16},
        {aoti_torch_dtype_uint8(), ScalarType::kUInt8},
        {aoti_torch_dtype_int8(), ScalarType::kInt8},
        {aoti_torch_dtype_int16(), ScalarType::kInt16},
        {aoti_torch_dtype_float16(), ScalarType::kFloat16},
        {aoti_torch_dtype_float64(), ScalarType::kFloat64},
    };
    return types;
}

}  // namespace

Tensor describe(AtenTensorHandle handle, std::shared_ptr<void> owner) {
    void* data = nullptr;
    int64_t dim = 0, *sizes = nullptr, *strides = nullptr;
    int32_t number = 0, device_type = 0, device_index = 0;
    const bool is_known = aoti_torch_get_data_ptr(handle, &data) == 0 &&
                          aoti_torch_get_dim(handle, &dim) == 0 &&
                          aoti_torch_get_sizes(handle, &sizes) == 0 &&
                          aoti_torch_get_strides(handle, &strides) == 0 &&
                          aoti_torch_get_dtype(handle, &number) == 0 &&
                          aoti_torch_get_device_type(handle, &device_type) == 0 &&
                          aoti_torch_get_device_index(handle, &device_index) == 0;
    PYBEAM_CHECK(is_known, "expected a tensor with memory of its own");
    ScalarType type = ScalarType::kOther;
    for (const TorchType& known : torch_types()) {
        if (known.number == number) type = known.type;
    }
    Device device{Device::kCpu, 0};
    if (device_type != aoti_torch_device_type_cpu()) {
        device.type = device_type == aoti_torch_device_type_cuda() ? Device::kCuda : Device::kOther;
        device.index = device_index;
    }
    const auto element_size = static_cast<int64_t>(aoti_torch_dtype_element_size(number));
    return {data, type, element_size, device, {sizes, dim}, {strides, dim}, std::move(owner)};
}

Tensor empty(IntList sizes, ScalarType type, Device device) {
    int32_t number = 0;
    for (const TorchType& known : torch_types()) {
        if (known.type == type) number = known.number;
    }
    std::vector<int64_t> strides(sizes.size(), 1);
    for (int64_t i = sizes.size() - 2; i >= 0; --i) {
        strides[i] = strides[i + 1] * std::max<int64_t>(sizes[i + 1], 1);
    }
    const int32_t device_type =
        device.type == Device::kCuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
    AtenTensorHandle handle = nullptr;
    check_torch(aoti_torch_empty_strided(sizes.size(), sizes.begin(), strides.data(), number,
                                         device_type, device.index, &handle),
                "allocate a tensor");
    const Tensor tensor =
        describe(handle, {handle, [](void* owned) {
                              aoti_torch_delete_tensor_object(static_cast<AtenTensorHandle>(owned));
                          }});
    if (device.type == Device::kCpu) {
        poison(tensor.data_ptr(), tensor.numel() * tensor.element_size());
    }
    return tensor;
}

int num_threads() {
    uint32_t number = 1;
    check_torch(torch_get_num_threads(&number), "say how many threads it has");
    return static_cast<int>(number);
}

void run_on_threads(int parts, void (*body)(int64_t, int64_t, void*), void* context) {
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer does not see that OpenMP starts threads and waits for them
    struct Call {
        void (*body)(int64_t, int64_t, void*);
        void* context;
    } call{body, context};
    body = [](int64_t begin, int64_t end, void* given) {
        __tsan_acquire(given);
        auto& [own_body, own_context] = *static_cast<Call*>(given);
        // a race on purpose: a test asks for it, to see that one would be found here
        static const bool seeds_race = std::getenv("PYBEAM_SEED_RACE") != nullptr;
        static int64_t num_calls = 0;
        if (seeds_race) ++num_calls;
        own_body(begin, end, own_context);
        __tsan_release(given);
    };
    context = &call;
    __tsan_release(context);
#endif
    check_torch(torch_parallel_for(0, parts, 1, body, context), "start its threads");
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(context);
#endif
}

}  // namespace pybeam
