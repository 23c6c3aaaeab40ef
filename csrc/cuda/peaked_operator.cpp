// The operator `select_peaked`: checks, and the launch. Nothing here waits for the device, so
// nothing here can check values that serve as addresses.
#include "select_call.h"
#include "select_peaked.cuh"
#include "stream.h"

namespace pybeam::cuda {
namespace {

// An array [rows, columns] or [rows, columns, 2] of float32, beside the logits.
template <class T>
const T* floats(const char* name, const Tensor& tensor, IntList shape, Device device) {
    check_tensor(name, tensor, ScalarType::kFloat32, shape, device);
    check_contiguous(name, tensor);
    const auto* begin = data<const T>(tensor);
    PYBEAM_CHECK_VALUE(reinterpret_cast<uintptr_t>(begin) % 16 == 0, "`", name,
                       "` must begin at a multiple of 16 bytes");
    return begin;
}

SelectResults select_peaked(const Tensor& logits, const Tensor& peaks, const Tensor& totals,
                            const Tensor& score, const Tensor& offset, const Tensor& width,
                            const OptionalTensor& is_ended, const OptionalTensor& max_candidates,
                            const OptionalTensor& margin, const OptionalTensor& local_margin,
                            const OptionalTensor& best_finished, const OptionalTensor& forced,
                            const OptionalTensor& ban_eos, IntList eos_ids, int64_t finishing,
                            int64_t capacity, bool normalise) {
    const DeviceGuard guard(logits.device().index);
    const SelectCall call(logits, score, offset, width, is_ended, max_candidates, margin,
                          local_margin, best_finished, forced, ban_eos, eos_ids, finishing,
                          capacity, normalise);
    check_sizes(call.params, logits.size(1));
    const int64_t num_rows = logits.size(0), num_columns = logits.size(1);
    PYBEAM_CHECK_VALUE(call.params.dtype != DType::kFloat32,
                       "`logits` must be bfloat16 or float16, but is ", logits.scalar_type());
    PYBEAM_CHECK_VALUE(reinterpret_cast<uintptr_t>(call.params.logits) % 16 == 0 &&
                           (num_rows < 2 || logits.stride(0) % 8 == 0),
                       "each row of `logits` must begin at a multiple of 16 bytes");
    check_entries(call.num_entries, num_rows, is_ended);
    check_dim("peaks", peaks, 2), check_dim("totals", totals, 3);
    const int64_t num_groups = (num_columns + kPeakColumns - 1) / kPeakColumns;
    PYBEAM_CHECK_VALUE(peaks.size(1) % kPeaksAtOnce == 0 && peaks.size(1) >= num_groups,
                       "`peaks` must have a multiple of ", kPeaksAtOnce, " columns, and at least ",
                       num_groups, ", but has ", peaks.size(1));
    const Device device = logits.device();
    PeakedParams params{};
    params.select = SelectParams{call.params, call.num_entries};
    params.peaks = floats<float>("peaks", peaks, {{num_rows, peaks.size(1)}}, device);
    params.totals = floats<Total>("totals", totals, {{num_rows, totals.size(1), 2}}, device);
    params.num_slices = static_cast<int>(peaks.size(1) / kPeaksAtOnce);
    params.num_totals = static_cast<int>(totals.size(1));
    check_cuda(launch_peaked(params, Stream::current(device.index).stream));
    return call.results;
}

}  // namespace
}  // namespace pybeam::cuda

STABLE_TORCH_LIBRARY_FRAGMENT(pybeam, m) {
    m.def(
        "select_peaked(Tensor logits, Tensor peaks, Tensor totals, Tensor score, Tensor offset, "
        "Tensor width, Tensor? is_ended, Tensor? max_candidates, Tensor? margin, "
        "Tensor? local_margin, Tensor? best_finished, Tensor? forced, Tensor? ban_eos, "
        "int[] eos_ids, int finishing, int capacity, bool normalise) -> (Tensor, Tensor, Tensor, "
        "Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(pybeam, CUDA, m) {
    pybeam::implement<&pybeam::cuda::select_peaked>(m, "select_peaked");
}
