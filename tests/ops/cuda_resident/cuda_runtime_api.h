// Stands in for the CUDA header of this name where blocks of a launch wait for one another: all
// threads of all blocks are there at once, as fibers, or with THREADS as threads of the CPU.
// LOST_BARRIER, LOST_WAIT, EARLY_PLACES, FULL_PLACES and WEAK_MEETING are mistakes that tests must
// find.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "../cuda_on_cpu/intrinsics.h"

struct float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

#ifdef THREADS
#include "threads.h"
#else
#include "fibers.h"
#endif

namespace cuda_resident {

// Bytes that a copy engine has not brought yet.
struct Copy {
    char* to;
    const char* from;
    uint32_t num_bytes;
    uint64_t* word;
};

// A word of shared memory that counts threads, and bytes of copies.
struct Word {
    uint8_t num_turns;
    bool has_all;  // threads
    uint8_t num_threads, num_missing;  // both less one
    int32_t num_bytes;
};
static_assert(sizeof(Word) == sizeof(uint64_t));

struct Block {
    Barrier all{kThreads};
    std::unique_ptr<Barrier> warp[kThreads / kWarpSize];
    std::atomic<int> count[2]{};
    uint64_t value[kThreads];
    uint32_t operand[kThreads][6];
    std::vector<char> memory;
    std::mutex engine;
    std::vector<Copy> copies;
    std::mt19937 random;

    Block(int num_bytes, unsigned seed) : memory(num_bytes + 128, char(0x7f)), random(seed) {
        for (auto& barrier : warp) barrier = std::make_unique<Barrier>(kWarpSize);
    }
};

inline unsigned seed = 0;

inline Block& own_block() { return *static_cast<Block*>(self().block); }

inline void meet_warp() { own_block().warp[threadIdx.x / kWarpSize]->arrive_and_wait(); }

}  // namespace cuda_resident

inline void __syncthreads() {
#ifdef LOST_BARRIER
    if (++cuda_resident::self().num_barriers % LOST_BARRIER == 0) return;
#endif
    cuda_resident::own_block().all.arrive_and_wait();
}

inline void __syncwarp() { cuda_resident::meet_warp(); }

inline int __syncthreads_count(bool flag) {
    using namespace cuda_resident;
    Block& block = own_block();
    auto& count = block.count[self().num_counts++ % 2];
    if (flag) count.fetch_add(1, std::memory_order_relaxed);
    block.all.arrive_and_wait();
    const int total = count.load(std::memory_order_relaxed);
    block.all.arrive_and_wait();
    if (threadIdx.x == 0) count.store(0, std::memory_order_relaxed);
    return total;
}

inline int __syncthreads_or(bool flag) { return __syncthreads_count(flag) != 0; }

template <class T>
T __shfl_sync(unsigned, T x, int lane) {
    using namespace cuda_resident;
    uint64_t* value = own_block().value;
    std::memcpy(value + threadIdx.x, &x, sizeof x);
    meet_warp();
    std::memcpy(&x, value + threadIdx.x / kWarpSize * kWarpSize + lane % kWarpSize, sizeof x);
    meet_warp();
    return x;
}

template <class T>
T __shfl_xor_sync(unsigned all, T x, int step) {
    return __shfl_sync(all, x, threadIdx.x % cuda_resident::kWarpSize ^ step);
}

inline unsigned __ballot_sync(unsigned all, bool flag) {
    unsigned ballot = 0;
    for (int lane = 0; lane < cuda_resident::kWarpSize; ++lane)
        ballot |= unsigned(__shfl_sync(all, flag, lane)) << lane;
    return ballot;
}

namespace pybeam::cuda {

inline float inverse_root(float x) { return 1.0f / std::sqrt(x); }

inline char* shared_memory() {
    char* begin = cuda_resident::own_block().memory.data();
    return begin + (128 - reinterpret_cast<uintptr_t>(begin) % 128);
}

inline uint32_t load_relaxed(const uint32_t* address) {
    cuda_resident::pause();
    const uint32_t x = __atomic_load_n(address, __ATOMIC_RELAXED);
#ifdef EARLY_PLACES
    return x == 0xffffffffu ? 0 : x;
#endif
    return x;
}

inline uint32_t load_acquire(const uint32_t* address) {
    cuda_resident::pause();
#ifdef WEAK_MEETING
    return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

inline uint4 load_relaxed(const uint4* address) {
    const auto* word = reinterpret_cast<const uint32_t*>(address);
    return {load_relaxed(word), load_relaxed(word + 1), load_relaxed(word + 2),
            load_relaxed(word + 3)};
}

inline uint2 load_relaxed(const uint2* address) {
    const auto* word = reinterpret_cast<const uint32_t*>(address);
    return {load_relaxed(word), load_relaxed(word + 1)};
}

inline void store_relaxed(uint32_t* address, uint32_t x) {
    cuda_resident::dawdle();
    __atomic_store_n(address, x, __ATOMIC_RELAXED);
    cuda_resident::note_progress();
}

inline void store_relaxed(uint4* address, uint4 x) {
#ifdef FULL_PLACES
    return;
#endif
    auto* word = reinterpret_cast<uint32_t*>(address);
    store_relaxed(word, x.x), store_relaxed(word + 1, x.y), store_relaxed(word + 2, x.z),
        store_relaxed(word + 3, x.w);
}

inline uint32_t count_arrival(uint32_t* address, uint32_t last) {
#ifdef WEAK_MEETING
    constexpr int kOrder = __ATOMIC_RELEASE;
#else
    constexpr int kOrder = __ATOMIC_ACQ_REL;
#endif
    uint32_t old = __atomic_load_n(address, __ATOMIC_RELAXED), next;
    do next = old >= last ? 0 : old + 1;
    while (!__atomic_compare_exchange_n(address, &old, next, false, kOrder, __ATOMIC_RELAXED));
    cuda_resident::note_progress();
    return old;
}

// Lanes hold numbers of both matrices as those of a tensor core do.
template <class Convert>
void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Convert to_number) {
    using namespace cuda_resident;
    auto* operand = own_block().operand;
    uint32_t* own = operand[threadIdx.x];
    std::copy(a, a + 4, own), std::copy(b, b + 2, own + 4);
    meet_warp();
    const int first = threadIdx.x / kWarpSize * kWarpSize, lane = threadIdx.x % kWarpSize;
    const auto number = [&](int line, int depth, int word) {
        const uint32_t pair = operand[first + line * 4 + depth % 8 / 2][word];
        return to_number(static_cast<uint16_t>(pair >> depth % 2 * 16));
    };
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 16; ++k) {
            sum[i] +=
                number(lane / 4, k, k / 8 * 2 + i / 2) * number(lane % 4 * 2 + i % 2, k, 4 + k / 8);
        }
    }
    meet_warp();
}

inline void multiply_bfloat16(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    multiply(sum, a, b, [](uint16_t bits) { return float_from_bits(uint32_t{bits} << 16); });
}

inline void multiply_float16(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    multiply(sum, a, b, float_from_half);
}

inline void load_transposed(uint32_t (&words)[4], const void* line) {
    using namespace cuda_resident;
    uint64_t* value = own_block().value;
    value[threadIdx.x] = reinterpret_cast<uintptr_t>(line);
    meet_warp();
    const int first = threadIdx.x / kWarpSize * kWarpSize, lane = threadIdx.x % kWarpSize;
    for (int i = 0; i < 4; ++i) {
        const auto number = [&](int depth) {
            return uint32_t{
                reinterpret_cast<const uint16_t*>(value[first + i * 8 + depth])[lane / 4]};
        };
        words[i] = number(lane % 4 * 2) | number(lane % 4 * 2 + 1) << 16;
    }
    meet_warp();
}

inline float reciprocal_fast(float x) { return 1.0f / x; }

template <class T>
uint32_t pair_of(float first, float second) {
    T low, high;
    from_float(first, &low), from_float(second, &high);
    return uint32_t{high.bits} << 16 | low.bits;
}

inline uint32_t bfloat16_pair(float first, float second) {
    return pair_of<::pybeam::BFloat16>(first, second);
}

inline uint32_t float16_pair(float first, float second) {
    return pair_of<::pybeam::Half>(first, second);
}

inline void begin_copies(uint64_t* word, int num_threads) {
    const auto most = static_cast<uint8_t>(num_threads - 1);
    *reinterpret_cast<cuda_resident::Word*>(word) = {0, false, most, most, 0};
}

inline void show_to_copies() {}

// A turn ends when all threads have counted themselves, and all bytes that they expect have come.
inline void count_bytes(uint64_t* word, int32_t num_bytes, bool is_thread) {
    auto* counted = reinterpret_cast<cuda_resident::Word*>(word);
    counted->num_bytes += num_bytes;
    if (is_thread && counted->num_missing-- == 0) counted->has_all = true;
    if (!counted->has_all || counted->num_bytes != 0) return;
    counted->has_all = false, counted->num_missing = counted->num_threads;
    ++counted->num_turns;
}

inline void expect_copies(uint64_t* word, uint32_t num_bytes) {
    const std::lock_guard lock(cuda_resident::own_block().engine);
    count_bytes(word, static_cast<int32_t>(num_bytes), true);
}

// Its bytes come later, and until then nobody may rely on those before.
inline void copy_ahead(void* to, const void* from, uint32_t num_bytes, uint64_t* word) {
    cuda_resident::Block& block = cuda_resident::own_block();
    std::memset(to, 0x7f, num_bytes);
    const std::lock_guard lock(block.engine);
    block.copies.push_back(
        {static_cast<char*>(to), static_cast<const char*>(from), num_bytes, word});
}

inline void copy_or_clear(void* to, const void* from, bool is_there, uint64_t* word) {
    static const uint4 zeros{};
    constexpr int32_t kBytes = sizeof zeros;
    {
        const std::lock_guard lock(cuda_resident::own_block().engine);
        count_bytes(word, kBytes, false);
    }
    copy_ahead(to, is_there ? from : &zeros, kBytes, word);
}

inline void count_copies(uint64_t* word) {
    const std::lock_guard lock(cuda_resident::own_block().engine);
    count_bytes(word, 0, true);
}

inline void await_copies(uint64_t* word, uint32_t turn) {
    cuda_resident::Block& block = cuda_resident::own_block();
    while (true) {
        {
            const std::lock_guard lock(block.engine);
            if (reinterpret_cast<cuda_resident::Word*>(word)->num_turns % 2 != turn) return;
            if (!block.copies.empty()) {
                std::swap(block.copies[block.random() % block.copies.size()], block.copies.back());
                const cuda_resident::Copy copy = block.copies.back();
                block.copies.pop_back();
                std::memcpy(copy.to, copy.from, copy.num_bytes);
                count_bytes(copy.word, -static_cast<int32_t>(copy.num_bytes), false);
                cuda_resident::note_progress();
            }
        }
#ifdef LOST_WAIT
        return;
#endif
        cuda_resident::pause();
    }
}

template <class Params>
cudaError_t launch_together(void (*kernel)(Params), int num_blocks, int num_threads, int num_bytes,
                            cudaStream_t, const Params& params) {
    std::vector<std::unique_ptr<cuda_resident::Block>> blocks;
    for (int i = 0; i < num_blocks; ++i)
        blocks.push_back(std::make_unique<cuda_resident::Block>(num_bytes, ++cuda_resident::seed));
    const auto run = [&](int i) {
        return cuda_resident::Self{{static_cast<unsigned>(i % num_threads)},
                                   {static_cast<unsigned>(i / num_threads)},
                                   blocks[i / num_threads].get()};
    };
    cuda_resident::run_all(
        num_blocks * num_threads, run, [&] { kernel(params); }, cuda_resident::seed);
    return cudaSuccess;
}

template <class Params>
bool has_late_code(void (*)(Params)) {
    return true;
}

template <class Params>
cudaError_t launch(void (*)(Params), int64_t, int, cudaStream_t, const Params&);

}  // namespace pybeam::cuda
