// Numbers that blocks of one launch leave for one another, each of which says itself that it is
// there.
//
// A place holds `kAbsent`, a NaN that no conversion makes, until its number is written. So a block
// that reads a place until it holds something else needs no counter and no fence. Each layer has
// places of its own, so a place is written once in a launch. There are two sets of them: a launch
// fills one and empties the other, which the launch before has filled.
#pragma once

#include "block.cuh"
#include "decoder_layers.cuh"
#include "layers_intrinsics.cuh"

namespace pybeam::cuda {

// Two numbers that are not there.
constexpr uint32_t kAbsent = 0xffffffffu;

// Where a number stands behind the first place of rows whose width is a multiple of `kPack`.
__device__ inline int spread(int number) { return number + (number & -kPack); }

// `kAbsent` if a word is not there: numbers come in pairs, and no pair is above it.
__device__ inline uint32_t absence(const Vector& v) {
    return max(max(v.word[0], v.word[1]), max(v.word[2], v.word[3]));
}

// Whether a word of these is not there, with one comparison.
template <int kNumber>
__device__ bool is_any_absent(const Vector (&numbers)[kNumber]) {
    uint32_t most = 0;
#pragma unroll
    for (const Vector& v : numbers) most = max(most, absence(v));
    return most == kAbsent;
}

__device__ inline Vector load_place(const uint16_t* place) {
    const uint4 x = load_relaxed(reinterpret_cast<const uint4*>(place));
    return {{x.x, x.y, x.z, x.w}};
}

// Asks again for numbers that were not there when they were loaded; `place_of(i)` is where they
// are.
template <int kNumber, class PlaceOf>
__device__ void await(Vector (&numbers)[kNumber], PlaceOf place_of) {
    bool is_short;
    do {
        is_short = false;
#pragma unroll
        for (int i = 0; i < kNumber; ++i) {
            if (absence(numbers[i]) != kAbsent) continue;
            numbers[i] = load_place(place_of(i));
            is_short = true;
        }
    } while (is_short);
}

__device__ inline void leave_pair(uint16_t* place, uint32_t pair) {
    store_relaxed(reinterpret_cast<uint32_t*>(place), pair);
}

// Empties this block's share of so many places, those between packs included.
__device__ inline void empty_places(uint16_t* places, int num_places, int num_blocks) {
    for (int i = (blockIdx.x * kThreads + threadIdx.x) * 8; i < num_places / kSpread;
         i += num_blocks * kThreads * 8) {
        store_relaxed(reinterpret_cast<uint4*>(places + spread(i)),
                      uint4{kAbsent, kAbsent, kAbsent, kAbsent});
    }
}

}  // namespace pybeam::cuda
