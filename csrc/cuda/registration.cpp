// The CUDA implementations of the operators: check, allocate, launch. Nothing here waits for the
// device, so nothing here can check values that serve as addresses.
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

#include "../ops/select.h"
#include "params.cuh"

namespace pybeam::cuda {
namespace {

using c10::cuda::CUDAStream;

constexpr int64_t kSlabWords = int64_t{1} << 20;
constexpr int64_t kLeastPiece = 1024;

// Words that are zero whenever no launch uses them. A launch leaves them zero, so that no launch
// has to clear them first. All launches of a stream share a piece, because they run one after
// another. Each captured launch has a piece of its own, because its graph may be replayed on any
// stream. Pieces live as long as the process.
class ZeroedWords {
  public:
    // Returns nullptr if there are no more words and a capture forbids allocating some.
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
        // wait, so that other streams find zeros too
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

SelectResults select(const Tensor& logits, const Tensor& score, const Tensor& offset,
                     const Tensor& width, const OptionalTensor& is_ended,
                     const OptionalTensor& max_candidates, const OptionalTensor& margin,
                     const OptionalTensor& local_margin, const OptionalTensor& best_finished,
                     const OptionalTensor& forced, const OptionalTensor& ban_eos,
                     at::IntArrayRef eos_ids, int64_t finishing, int64_t capacity, bool normalise) {
    const c10::cuda::CUDAGuard guard(logits.device());
    const SelectCall call(logits, score, offset, width, is_ended, max_candidates, margin,
                          local_margin, best_finished, forced, ban_eos, eos_ids, finishing,
                          capacity, normalise);
    TORCH_CHECK_VALUE(logits.size(1) <= kMaxVocab, "`logits` has too many columns");
    SelectParams params{call.params, call.num_entries};
    params.plan = plan_select(params, params.num_entries, num_multiprocessors(logits.get_device()));

    const CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    const bool is_captured =
        c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
    const int64_t num_words = select_counters(params);
    Tensor zeros;
    params.counter = zeroed_words().piece(stream, num_words, is_captured);
    if (params.counter == nullptr) {
        zeros = at::zeros({num_words}, width.options());
        params.counter = static_cast<uint32_t*>(zeros.data_ptr());
    }
    const Tensor scratch =
        at::empty({select_scratch_bytes(params)}, logits.options().dtype(at::kByte));
    params.scratch = data<char>(scratch);
    C10_CUDA_CHECK(launch_select(params, stream));
    return call.results;
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
