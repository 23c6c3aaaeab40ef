// A step of a decoder in one launch, for few rows: a block on each multiprocessor, which waits
// for numbers of the others eight times in a layer.
#include <algorithm>

#include "decoder_layers.cuh"
#include "layers_attention.cuh"
#include "layers_choice.cuh"
#include "layers_product.cuh"

namespace pybeam::cuda {
namespace {

// Numbers of rows that other blocks leave in a layer, one behind another.
struct Places {
    int64_t size;  // of numbers as wide as states
    uint16_t* begin;

    __device__ Places(const LayersParams& p, uint16_t* begin)
        : size(int64_t{p.place_rows} * p.width), begin(begin) {}

    // in the order of products, with what follows two of them
    __device__ uint16_t* of(int product) const {
        // 0, 4, 5, 7, 9 and 8
        return begin + (0x897540 >> 4 * product & 15) * size;
    }
    __device__ uint16_t* attended(bool is_source) const {
        return begin + (is_source ? 6 : 3) * size;
    }
};

// A product of a layer, or the `round`-th of logits behind the last layer.
__device__ ProductCall product_of(const LayersParams& p, const Places& places, int layer,
                                  int product, int round) {
    const bool is_last = product == kInnerOut && layer + 1 == p.num_layers && p.num_logits == 0;
    const bool is_first = product == kQkv || product == kLogits;
    ProductCall call{product, places.begin, true, places.of(product), Activation::kNone};
    if (is_last || product == kLogits) call.y = p.out;
    if (product == kInner) call.activation = p.activation;
    call.has_norm = is_first || product == kQuery || product == kInner;
    call.adds = !call.has_norm;
    call.first_group = product == kLogits ? round * kMaxGroups : 0;
    if (is_first) {
        call.is_awaited = layer > 0;
        call.x = layer > 0 ? Places(p, places.begin - p.num_places).of(kInnerOut) : p.states;
    } else if (product == kOwnOut || product == kCrossOut) {
        call.x = places.attended(product == kCrossOut);
    } else {
        call.x = places.of(product - 1);
    }
    return call;
}

// The tiles of rows, in order.
__device__ void find_tiles(const LayersParams& p, const Memory& memory) {
    const SeenCells& seen = p.seen;
    const int source = threadIdx.x;
    if (source >= seen.num_sources) return;
    int first = 0;
    for (int i = 0; i < source; ++i) {
        first += (seen.offset[i + 1] - seen.offset[i] + kLines - 1) / kLines;
    }
    const int begin = seen.offset[source], end = seen.offset[source + 1];
    const int number = (end - begin + kLines - 1) / kLines;
    for (int i = 0; i < number; ++i) {
        const int own = begin + i * kLines;
        memory.tiles[first + i] = {own, min(own + kLines, end), begin, end, seen.slot[source]};
    }
    if (source == seen.num_sources - 1) *memory.num_tiles = first + number;
}

// Counts this block. The last one to leave counts the launch.
__device__ void leave(const LayersParams& p) {
    __syncthreads();
    const uint32_t last = p.plan.num_blocks - 1;
    if (threadIdx.x == 0 && count_arrival(p.books, last) == last) {
        p.books[1] += 1;
        p.books[2] = 0;
    }
}

// All layers, and the logits behind them, of at least one row.
template <class Number, int kPacks>
__device__ void make_layers(const LayersParams& p, const Memory& memory, Choice<Number>& choice,
                            int num_rows) {
    auto* words = reinterpret_cast<uint64_t*>(memory.layers);
    const auto* table = reinterpret_cast<const uint64_t*>(p.layers);
    for (int i = threadIdx.x; i < p.num_layers * int(sizeof(LayerAt) / 8); i += kThreads) {
        words[i] = table[i];
    }
    WeightRing<kPacks> ring(p, memory.layers, *memory.shares, memory.words, memory.stages);
    ring.begin();
    find_tiles(p, memory);
    if (threadIdx.x == 0) {
        memory.shares->find(p);
        begin_copies(memory.node_word);
        show_to_copies();
        for (NodeList& list : memory.nodes->list) list.unit = -1;
    }
    __syncthreads();
    if (threadIdx.x / kWarpSize == kWarps - 1) ring.ask(p.plan.num_stages);

    const int num_rounds = (memory.shares->num_groups[kLogits] + kMaxGroups - 1) / kMaxGroups;
    choice.begin(num_rounds);
    Products<Number, kPacks> multiply(p, memory, ring, choice, num_rows);
    Attention<Number> attend(p, memory);
    attend.begin();
    multiply.keep_states();
    const int64_t num_places = p.num_layers * p.num_places;
    const int own_set = p.books[1] % 2;
    uint16_t* own = p.places + own_set * num_places;
    uint16_t* other = p.places + (1 - own_set) * num_places;
#pragma unroll 1
    for (int i = 0; i <= p.num_layers; ++i) {
        const bool is_behind = i == p.num_layers;
        const LayerAt& layer = memory.layers[i];
        const Places places(p, own + i * p.num_places);
#pragma unroll 1
        for (int round = 0; round < (is_behind ? num_rounds : kNumProducts); ++round) {
            const int product = is_behind ? kLogits : round;
            const AttentionKind kind = product == kQkv ? kOwn : kSource;
            const bool has_attention = product == kQkv || product == kQuery;
            uint16_t* const* pool = kind == kOwn ? &layer.own_pool : &layer.source_pool;
            if (has_attention) attend.ask(kind, *pool);
            const LinearAt& linear = is_behind ? p.logits : layer.linear[product];
            multiply(linear, product_of(p, places, i, product, round));
            if (has_attention) {
                attend({kind, *pool, places.of(product), places.attended(kind == kSource)});
            }
        }
        if (!is_behind) {
            empty_places(other + i * p.num_places, p.num_places, p.plan.num_blocks);
        }
    }
}

template <class Number, int kPacks>
__global__ void __launch_bounds__(kThreads, 1)
    decoder_layers_kernel(const __grid_constant__ LayersParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    const int num_rows = p.seen.offset[p.seen.num_sources];
    const Memory memory(shared_memory(), p);
    Choice<Number> choice(p, memory, num_rows);
    // where all rows are padding, nothing comes, and the places stay as they are
    if (num_rows > 0) make_layers<Number, kPacks>(p, memory, choice, num_rows);
    choice.finish_beams();
    if (num_rows > 0) leave(p);
#endif
}

template <int kPacks>
auto kernel_of(const LayersParams& p) {
    return p.is_float16 ? decoder_layers_kernel<Float16Numbers, kPacks>
                        : decoder_layers_kernel<BFloat16Numbers, kPacks>;
}

template <int kPacks>
cudaError_t launch_packs(const LayersParams& p, cudaStream_t stream) {
    return launch_together(kernel_of<kPacks>(p), p.plan.num_blocks, kThreads, p.plan.num_bytes,
                           stream, p);
}

template <int kPacks>
LayersPlan plan_packs(const LayersParams& p, int num_blocks, int shared_bytes) {
    const auto groups_of = [&](int num_columns) {
        return ((num_columns + kLines - 1) / kLines + num_blocks - 1) / num_blocks;
    };
    const int states = groups_of(p.width), inner = groups_of(p.inner_width);
    const int logits = std::min(groups_of(p.num_logits), kMaxGroups);
    const int most = std::max({groups_of(3 * p.width), states, inner, logits});
    const int chunks =
        (p.inner_width + WeightRing<kPacks>::kChunk - 1) / WeightRing<kPacks>::kChunk;
    LayersPlan plan{num_blocks, kPacks, states};
    int begin[Memory::kParts];
    const int before = Memory::offsets(plan, p.num_layers, p.place_rows, begin);
    const int room = (shared_bytes - before) / WeightRing<kPacks>::kStageBytes;
    plan.num_stages = std::min(room, kMaxStages);
    plan.num_bytes = before + plan.num_stages * WeightRing<kPacks>::kStageBytes;
    const int choice = (sizeof(BeamMemory) - 1) / WeightRing<kPacks>::kStageBytes + 1;
    const bool fits =
        most <= kMaxGroups && plan.num_stages >= std::max({most, chunks * states, choice});
    return fits && has_late_code(kernel_of<kPacks>(p)) ? plan : LayersPlan{};
}

}  // namespace

LayersPlan plan_layers(const LayersParams& p, int num_multiprocessors, int shared_bytes) {
    const bool is_whole = p.width % kPack == 0 && p.inner_width % kPack == 0;
    const bool has_heads = p.num_heads * kHeadSize == p.width;
    const bool are_few = p.place_rows <= kMaxRows && p.num_layers <= kMaxLayers;
    if (!is_whole || !has_heads || !are_few) return {};
    const int num_blocks = num_multiprocessors;
    if (p.width <= WeightRing<1>::kChunk) return plan_packs<1>(p, num_blocks, shared_bytes);
    if (p.width <= WeightRing<2>::kChunk) return plan_packs<2>(p, num_blocks, shared_bytes);
    if (p.width <= WeightRing<4>::kChunk) return plan_packs<4>(p, num_blocks, shared_bytes);
    return {};
}

cudaError_t launch_layers(const LayersParams& p, cudaStream_t stream) {
    switch (p.plan.packs) {
        case 1:
            return launch_packs<1>(p, stream);
        case 2:
            return launch_packs<2>(p, stream);
        default:
            return launch_packs<4>(p, stream);
    }
}

}  // namespace pybeam::cuda
