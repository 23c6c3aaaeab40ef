// An exchange between all blocks of a launch, in the ways in which `decoder_layers` could make it.
//
// In a turn each block leaves some columns of some rows, and goes on when it has read all columns.
// A program of its own, so that it needs neither torch nor the extension: `exchange.py` compiles
// and runs it. A line of output is a way, the width of rows, bytes between packs of 32 numbers, and
// the time of a turn in nanoseconds.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../csrc/cuda/exchange.cuh"

namespace {

using pybeam::cuda::absence, pybeam::cuda::kAbsent, pybeam::cuda::kThreads;
using pybeam::cuda::kWarps, pybeam::cuda::leave_pair, pybeam::cuda::load_acquire;
using pybeam::cuda::load_place, pybeam::cuda::Vector;

constexpr int kRows = 5, kTurns = 200, kRepeats = 7;
// a wait of a second is a mistake of this program
constexpr int kMostLoads = 2000000;

// How a block learns that numbers are there.
enum Way {
    kPlaces,      // each place says so itself, and all are read until they do
    kFirstRow,    // as before, but a row at first, and the others when that has come
    kThroughAll,  // as before, but threads read neighbours, and share them through shared memory
    kCounter,     // warps count themselves when they have left numbers
};

struct Params {
    uint16_t* places;
    uint32_t* counters;  // [turns, 64]
    uint32_t* sums;      // [blocks]
    int numbers_of_turn;
};

__device__ void count(uint32_t* address) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(address) : "memory");
}

__device__ bool is_absent(const Vector& v) { return absence(v) == kAbsent; }

__device__ void note_load(int& num_loads) {
    if (++num_loads > kMostLoads) __trap();
}

// Until it is there.
__device__ Vector await(const uint16_t* place, int& num_loads) {
    Vector v = load_place(place);
    for (; is_absent(v); note_load(num_loads)) v = load_place(place);
    return v;
}

__device__ uint32_t sum_of(const Vector& v) {
    return v.word[0] + v.word[1] + v.word[2] + v.word[3];
}

// Where a number stands, with so many bytes from one pack to the next.
template <int kWidth, int kBytes>
__device__ int place_of(int row, int column) {
    return (row * kWidth + column) / 32 * (kBytes / 2) + column % 32;
}

// The sum of what all threads have, less than `kAbsent`.
__device__ uint32_t sum_of_block(uint32_t x, uint32_t* partial) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    uint32_t sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp];
    return sum & 0x3fffffff;
}

template <int kWidth, int kBytes, Way kWay>
__global__ void __launch_bounds__(kThreads, 1) exchange(Params p) {
    __shared__ uint32_t partial[2][kWarps];
    __shared__ Vector shared[kRows * kWidth / 8];
    constexpr int kPacks = kWidth / 32 / kWarps;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
    const int first = (warp * gridDim.x + blockIdx.x) * 8;
    const bool leaves = first < kWidth && lane % 8 < kRows;
    const int left = place_of<kWidth, kBytes>(lane % 8, first + lane / 8 * 2);
    const auto own_column = [&](int i) { return (warp + i * kWarps) * 32 + lane % 4 * 8; };
    uint32_t value = 1;
    for (int turn = 0; turn < kTurns; ++turn) {
        uint16_t* places = p.places + int64_t{turn} * p.numbers_of_turn;
        uint32_t *counter = p.counters + turn * 64, sum = 0;
        int num_loads = 0;
        if (leaves) leave_pair(places + left, value);
        if (kWay == kCounter) {
            __syncwarp();
            if (lane == 0 && first < kWidth) count(counter);
            if (lane == 0) {
                while (load_acquire(counter) < kWidth / 8) note_load(num_loads);
            }
            __syncwarp();
        }
        if (kWay == kThroughAll) {
            for (int i = threadIdx.x; i < kRows * kWidth / 8; i += kThreads) {
                const int place = place_of<kWidth, kBytes>(i * 8 / kWidth, i * 8 % kWidth);
                shared[i] = await(places + place, num_loads);
            }
            __syncthreads();
        }
        if (kWay == kFirstRow && lane < 4) {
            for (int i = 0; i < kPacks; ++i) {
                await(places + place_of<kWidth, kBytes>(0, own_column(i)), num_loads);
            }
        }
        __syncwarp();
        if (row < kRows && kWay == kThroughAll) {
            for (int i = 0; i < kPacks; ++i) {
                sum += sum_of(shared[(row * kWidth + own_column(i)) / 8]);
            }
        } else if (row < kRows) {
            Vector x[kPacks];
#pragma unroll
            for (int i = 0; i < kPacks; ++i) {
                x[i] = load_place(places + place_of<kWidth, kBytes>(row, own_column(i)));
            }
#pragma unroll
            for (int i = 0; i < kPacks; ++i) {
                const uint16_t* place = places + place_of<kWidth, kBytes>(row, own_column(i));
                sum += sum_of(is_absent(x[i]) ? await(place, num_loads) : x[i]);
            }
        }
        value = sum_of_block(sum, partial[turn % 2]);
    }
    if (threadIdx.x == 0) p.sums[blockIdx.x] = value;
}

void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
}

template <int kWidth, int kBytes, Way kWay>
void measure(const char* name, int num_blocks) {
    Params p{};
    p.numbers_of_turn = kRows * kWidth / 32 * (kBytes / 2);
    const size_t num_places = size_t{2} * p.numbers_of_turn * kTurns,
                 num_counters = kTurns * 64 * 4;
    check(cudaMalloc(&p.places, num_places));
    check(cudaMalloc(&p.counters, num_counters));
    check(cudaMalloc(&p.sums, num_blocks * 4));
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
    std::vector<float> ms(kRepeats);
    for (float& own : ms) {
        check(cudaMemset(p.places, 0xff, num_places));
        check(cudaMemset(p.counters, 0, num_counters));
        check(cudaEventRecord(begin));
        const auto kernel = exchange<kWidth, kBytes, kWay>;
        check(pybeam::cuda::launch_together(kernel, num_blocks, kThreads, 0, nullptr, p));
        check(cudaEventRecord(end)), check(cudaEventSynchronize(end));
        check(cudaEventElapsedTime(&own, begin, end));
    }
    std::vector<uint32_t> sums(num_blocks);
    check(cudaMemcpy(sums.data(), p.sums, num_blocks * 4, cudaMemcpyDeviceToHost));
    if (std::any_of(sums.begin(), sums.end(), [&](uint32_t sum) { return sum != sums[0]; })) {
        std::fprintf(stderr, "%s of %d: blocks have read other numbers\n", name, kWidth);
        std::exit(1);
    }
    std::sort(ms.begin(), ms.end());
    std::printf("%s\t%d\t%d\t%.0f\n", name, kWidth, kBytes, ms[kRepeats / 2] * 1e6 / kTurns);
    check(cudaFree(p.places)), check(cudaFree(p.counters)), check(cudaFree(p.sums));
}

template <int kWidth>
void measure_ways(int num_blocks) {
    measure<kWidth, 64, kPlaces>("places", num_blocks);
    measure<kWidth, 128, kPlaces>("places", num_blocks);
    measure<kWidth, 256, kPlaces>("places", num_blocks);
    measure<kWidth, 64, kFirstRow>("a row first", num_blocks);
    measure<kWidth, 128, kFirstRow>("a row first", num_blocks);
    measure<kWidth, 64, kThroughAll>("through shared memory", num_blocks);
    measure<kWidth, 128, kThroughAll>("through shared memory", num_blocks);
    measure<kWidth, 64, kCounter>("a counter", num_blocks);
    measure<kWidth, 128, kCounter>("a counter", num_blocks);
}

}  // namespace

int main() {
    int num_blocks;
    check(cudaDeviceGetAttribute(&num_blocks, cudaDevAttrMultiProcessorCount, 0));
    measure_ways<256>(num_blocks);
    measure_ways<1024>(num_blocks);
    measure_ways<4096>(num_blocks);
}
