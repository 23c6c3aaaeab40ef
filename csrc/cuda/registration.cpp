// The CUDA implementations of the operators: check, allocate, launch. Nothing here waits for the
// device, so values used as addresses are not looked at.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

#include "../check.h"
#include "params.cuh"

namespace pybeam::cuda {
namespace {

using at::Tensor;
using c10::cuda::CUDAStream;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kSlabWords = int64_t{1} << 20;
constexpr int64_t kLeastPiece = 1024;

// Words that are zero whenever no launch uses them: a launch leaves them as it found them, so no
// launch has to clear them first. Each stream has a piece for its launches, which run one after
// another; each captured launch has a piece for itself, because its graph may be replayed on any
// stream. Pieces live as long as the process.
class ZeroedWords {
  public:
    // nullptr if there are no more words and a capture forbids getting some.
    uint32_t* piece(const CUDAStream& stream, int64_t num_words, bool is_captured) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (is_captured) return take(stream, num_words, true);
        Piece& own = by_stream_[{stream.device_index(), stream.stream()}];
        if (own.num_words < num_words) {
            const auto size =
                std::bit_ceil(static_cast<uint64_t>(std::max(num_words, kLeastPiece)));
            own = {take(stream, static_cast<int64_t>(size), false), static_cast<int64_t>(size)};
        }
        return own.words;
    }

  private:
    struct Piece {
        uint32_t* words = nullptr;
        int64_t num_words = 0;
    };

    uint32_t* take(const CUDAStream& stream, int64_t num_words, bool is_captured) {
        num_words = (num_words + 31) / 32 * 32;  // whole cache lines
        Piece& free = free_[stream.device_index()];
        if (free.num_words < num_words) {
            if (is_captured) return nullptr;
            free = new_slab(stream, std::max(num_words, kSlabWords));
        }
        uint32_t* words = free.words;
        free.words += num_words;
        free.num_words -= num_words;
        return words;
    }

    static Piece new_slab(const CUDAStream& stream, int64_t num_words) {
        const auto options = at::TensorOptions().dtype(at::kInt).device(stream.device());
        // never freed: at exit the device may be gone before static objects are
        const Tensor* slab = new Tensor(at::zeros({num_words}, options));
        // other streams must find zeros too
        C10_CUDA_CHECK(cudaStreamSynchronize(stream));
        return {static_cast<uint32_t*>(slab->data_ptr()), num_words};
    }

    std::mutex mutex_;
    std::map<c10::DeviceIndex, Piece> free_;
    std::map<std::pair<c10::DeviceIndex, cudaStream_t>, Piece> by_stream_;
};

ZeroedWords& zeroed_words() {
    static auto* words = new ZeroedWords;
    return *words;
}

int num_multiprocessors(int device) {
    int count = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

void check_like(const Tensor& logits, const char* name, const Tensor& tensor, at::ScalarType dtype,
                at::IntArrayRef shape) {
    TORCH_CHECK_VALUE(tensor.device() == logits.device(), "`", name, "` must be on ",
                      logits.device(), ", but is on ", tensor.device());
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "`", name, "` must be ", dtype, ", but is ",
                      tensor.scalar_type());
    TORCH_CHECK_VALUE(tensor.sizes() == shape, "`", name, "` must be ", shape, ", but is ",
                      tensor.sizes());
    TORCH_CHECK_VALUE(tensor.is_contiguous(), "`", name, "` must be contiguous");
}

template <class T>
const T* input(const Tensor& logits, const char* name, const OptionalTensor& tensor,
               at::ScalarType dtype, int64_t size) {
    if (!tensor.has_value()) return nullptr;
    check_like(logits, name, *tensor, dtype, {size});
    return data<T>(*tensor);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> select(
    const Tensor& logits, const Tensor& score, const Tensor& offset, const Tensor& width,
    const OptionalTensor& is_ended, const OptionalTensor& max_candidates,
    const OptionalTensor& margin, const OptionalTensor& local_margin,
    const OptionalTensor& best_finished, const OptionalTensor& forced,
    const OptionalTensor& ban_eos, at::IntArrayRef eos_ids, int64_t finishing, int64_t capacity,
    bool normalise) {
    check_dim("logits", logits, 2);
    check_unit_stride("logits", logits);
    check_dim("score", score, 1);
    check_dim("width", width, 1);
    TORCH_CHECK_VALUE(finishing >= 0 && finishing <= 3, "`finishing` must be 0 to 3, but is ",
                      finishing);
    TORCH_CHECK_VALUE(capacity >= 0, "`capacity` must not be negative, but is ", capacity);
    TORCH_CHECK_VALUE(logits.size(1) <= kMaxVocab, "`logits` has too many columns");
    const int64_t num_beams = width.size(0), num_entries = score.size(0);
    const c10::cuda::CUDAGuard guard(logits.device());

    const auto ints = width.options();
    Tensor token = at::empty({num_beams, capacity}, ints);
    Tensor parent = at::empty({num_beams, capacity}, ints);
    Tensor score_out = at::empty({num_beams, capacity}, score.options());
    Tensor log_prob = at::empty({num_beams, capacity}, score.options());
    Tensor count = at::empty({num_beams}, ints);
    Tensor num_finished = at::empty({num_beams}, ints);
    Tensor has_nan = at::empty({num_beams}, ints.dtype(at::kBool));

    SelectParams params{};
    params.logits = logits.data_ptr();
    params.dtype = float_type("logits", logits);
    params.row_stride = logits.stride(0);
    params.vocab_size = logits.size(1);
    params.score = input<float>(logits, "score", score, at::kFloat, num_entries);
    params.offset = input<int32_t>(logits, "offset", offset, at::kInt, num_beams + 1);
    params.width = input<int32_t>(logits, "width", width, at::kInt, num_beams);
    params.is_ended = input<bool>(logits, "is_ended", is_ended, at::kBool, num_entries);
    params.max_candidates =
        input<int32_t>(logits, "max_candidates", max_candidates, at::kInt, num_beams);
    params.margin = input<float>(logits, "margin", margin, at::kFloat, num_beams);
    params.local_margin = input<float>(logits, "local_margin", local_margin, at::kFloat, num_beams);
    params.best_finished =
        input<float>(logits, "best_finished", best_finished, at::kFloat, num_beams);
    params.forced = input<int32_t>(logits, "forced", forced, at::kInt, num_beams);
    params.ban_eos = input<bool>(logits, "ban_eos", ban_eos, at::kBool, num_beams);
    params.eos = eos_of(eos_ids);
    params.finishing = static_cast<Finishing>(finishing);
    params.normalise = normalise;
    params.num_rows = logits.size(0);
    params.num_beams = num_beams;
    params.capacity = capacity;
    params.token_out = data<int32_t>(token);
    params.parent_out = data<int32_t>(parent);
    params.score_out = data<float>(score_out);
    params.log_prob_out = data<float>(log_prob);
    params.count_out = data<int32_t>(count);
    params.num_finished_out = data<int32_t>(num_finished);
    params.has_nan_out = data<bool>(has_nan);
    params.num_entries = num_entries;
    params.plan = plan_select(params, num_entries, num_multiprocessors(logits.get_device()));

    const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    const bool is_captured =
        c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
    const int64_t num_words = select_counters(params);
    Tensor zeros;
    params.counter = zeroed_words().piece(stream, num_words, is_captured);
    if (params.counter == nullptr) {
        zeros = at::zeros({num_words}, ints);
        params.counter = static_cast<uint32_t*>(zeros.data_ptr());
    }
    const Tensor scratch =
        at::empty({select_scratch_bytes(params)}, logits.options().dtype(at::kByte));
    params.scratch = data<char>(scratch);
    C10_CUDA_CHECK(launch_select(params, stream));
    return {token, parent, score_out, log_prob, count, num_finished, has_nan};
}

void has_no_kernel(const c10::OperatorHandle& op, torch::jit::Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                                " has no CUDA C++ kernel; call it with backend=\"triton\"");
}

}  // namespace
}  // namespace pybeam::cuda

TORCH_LIBRARY_IMPL(pybeam, CUDA, m) {
    m.impl("select", &pybeam::cuda::select);
    for (const char* name : {"tree_attention", "tree_append", "tree_release", "gather_rows",
                             "scatter_rows", "backtrace"}) {
        m.impl(name, torch::CppFunction::makeFromBoxedFunction<&pybeam::cuda::has_no_kernel>());
    }
}
