// The CUDA implementations of the operators: check, allocate, launch. Nothing here waits for the
// device, so nothing here can check values that serve as addresses.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "../ops/select.h"
#include "select_call.h"
#include "stream.h"

namespace pybeam::cuda {
namespace {

Tensor new_zeros(int64_t num_words, const Stream& stream) {
    Tensor words = empty({num_words}, ScalarType::kInt32, {Device::kCuda, stream.device});
    check_cuda(cudaMemsetAsync(words.data_ptr(), 0, num_words * sizeof(uint32_t), stream.stream));
    return words;
}

constexpr int64_t kSlabWords = int64_t{1} << 20;
constexpr int64_t kLeastPiece = 1024;

// Words that are zero whenever no launch uses them. A launch leaves them zero, so that no launch
// has to clear them first. All launches of a stream share a piece, because they run one after
// another. Each captured launch has a piece of its own, because its graph may be replayed on any
// stream. Pieces live as long as the process.
class ZeroedWords {
  public:
    // Returns nullptr if there are no more words and a capture forbids allocating some.
    uint32_t* piece(const Stream& stream, int64_t num_words, bool is_captured) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (is_captured) return take(stream, num_words, true);
        Piece& own = by_stream_[{stream.device, stream.stream}];
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

    uint32_t* take(const Stream& stream, int64_t num_words, bool is_captured) {
        num_words = (num_words + 31) / 32 * 32;  // whole cache lines
        Piece& free = free_[stream.device];
        if (free.num_words < num_words) {
            if (is_captured) return nullptr;
            free = new_slab(stream, std::max(num_words, kSlabWords));
        }
        uint32_t* words = free.words;
        free.words += num_words;
        free.num_words -= num_words;
        return words;
    }

    static Piece new_slab(const Stream& stream, int64_t num_words) {
        // never freed: at exit the device may be gone before static objects are
        const Tensor* slab = new Tensor(new_zeros(num_words, stream));
        // wait, so that other streams find zeros too
        check_cuda(cudaStreamSynchronize(stream.stream));
        return {static_cast<uint32_t*>(slab->data_ptr()), num_words};
    }

    std::mutex mutex_;
    std::map<int, Piece> free_;
    std::map<std::pair<int, cudaStream_t>, Piece> by_stream_;
};

ZeroedWords& zeroed_words() {
    static auto* words = new ZeroedWords;
    return *words;
}

SelectResults select(const Tensor& logits, const Tensor& score, const Tensor& offset,
                     const Tensor& width, const OptionalTensor& is_ended,
                     const OptionalTensor& max_candidates, const OptionalTensor& margin,
                     const OptionalTensor& local_margin, const OptionalTensor& best_finished,
                     const OptionalTensor& forced, const OptionalTensor& ban_eos, IntList eos_ids,
                     int64_t finishing, int64_t capacity, bool normalise) {
    const int device = logits.device().index;
    const DeviceGuard guard(device);
    const SelectCall call(logits, score, offset, width, is_ended, max_candidates, margin,
                          local_margin, best_finished, forced, ban_eos, eos_ids, finishing,
                          capacity, normalise);
    check_sizes(call.params, logits.size(1));
    SelectParams params{call.params, call.num_entries};
    params.plan = plan_select(params, attribute(cudaDevAttrMultiProcessorCount, device));

    const Stream stream = Stream::current(device);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream.stream, &capture));
    const bool is_captured = capture != cudaStreamCaptureStatusNone;
    const int64_t num_words = select_counters(params);
    Tensor zeros;
    params.counter = zeroed_words().piece(stream, num_words, is_captured);
    if (params.counter == nullptr) {
        zeros = new_zeros(num_words, stream);
        params.counter = static_cast<uint32_t*>(zeros.data_ptr());
    }
    const Tensor scratch =
        empty({select_scratch_bytes(params)}, ScalarType::kUInt8, logits.device());
    params.scratch = data<char>(scratch);
    check_cuda(launch_select(params, stream.stream));
    return call.results;
}

}  // namespace
}  // namespace pybeam::cuda

STABLE_TORCH_LIBRARY_IMPL(pybeam, CUDA, m) {
    pybeam::implement<&pybeam::cuda::select>(m, "select");
}
