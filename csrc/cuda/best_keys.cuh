// A block collects the best of many keys. All keys differ, and none is 0.
#pragma once

#include "block.cuh"

namespace pybeam::cuda {

constexpr int kKeyRoom = 1024;  // a power of two

// Lives in shared memory.
template <class Key>
struct BestKeys {
    Key key[kKeyRoom];
    Key above;  // keys up to this one cannot be among the best
    int count;
};

template <class Key>
__device__ void sort_descending(Key* key, int count) {
    int size = 1;
    while (size < count) size *= 2;
    for (int i = count + threadIdx.x; i < size; i += kThreads) key[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < size / 2; i += kThreads) {
                const int low = 2 * i - (i & (step - 1)), high = low + step;
                const bool descends = (low & run) == 0;
                const Key a = key[low], b = key[high];
                if ((a < b) == descends) {
                    key[low] = b;
                    key[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

// Leaves the best `wanted` of `keys_of(0 .. num_keys)` in `best`, in descending order, and returns
// their number. A key of 0 is none. `wanted` is 1 to kKeyRoom / 2.
template <class Key, class KeyOf>
__device__ int collect_best(BestKeys<Key>& best, int num_keys, int wanted, KeyOf key_of) {
    if (threadIdx.x == 0) {
        best.above = 0;
        best.count = 0;
    }
    int place = -1;
    for (int begin = 0; begin < num_keys; begin += kThreads) {
        if (__syncthreads_or(place >= kKeyRoom - kThreads)) {
            sort_descending(best.key, best.count);
            if (threadIdx.x == 0) {
                best.above = best.key[wanted - 1];
                best.count = wanted;
            }
            place = -1;
            __syncthreads();
        }
        const int i = begin + static_cast<int>(threadIdx.x);
        const Key key = i < num_keys ? key_of(i) : Key{0};
        if (key > best.above) {
            place = atomicAdd(&best.count, 1);
            best.key[place] = key;
        }
    }
    __syncthreads();
    const int count = best.count;
    sort_descending(best.key, count);
    return min(count, wanted);
}

}  // namespace pybeam::cuda
