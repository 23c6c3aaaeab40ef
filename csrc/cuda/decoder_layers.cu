// A step of a decoder in one launch, for few rows: a block on each multiprocessor, which waits
// for numbers of the others eight times in a layer, and for sums of a deep product.
#include <algorithm>

#include "decoder_layers.cuh"
#include "layers_attention.cuh"
#include "layers_choice.cuh"
#include "layers_product.cuh"

namespace pybeam::cuda {
namespace {

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

// The addresses of layers and of the logits behind, in shared memory.
__device__ void read_layers(const LayersParams& p, const Memory& memory) {
    auto* words = reinterpret_cast<uint64_t*>(memory.layers);
    const auto* table = reinterpret_cast<const uint64_t*>(p.layers);
    for (int i = threadIdx.x; i < p.num_layers * int(sizeof(LayerAt) / 8); i += kThreads) {
        words[i] = table[i];
    }
    if (threadIdx.x == 0) memory.layers[p.num_layers].linear[0] = p.logits;
}

// All layers, and the logits behind them, of at least one row.
template <class Number, int kPacks>
__device__ void make_layers(const LayersParams& p, const Memory& memory, Choice<Number>& choice,
                            int num_rows) {
    read_layers(p, memory);
    WeightRing<kPacks> ring(p, memory.ring);
    ring.begin();
    if (threadIdx.x <= kLogits) {
        const int product = threadIdx.x;
        memory.products[product] = ProductAt(p, product);
    }
    find_tiles(p, memory);
    if (threadIdx.x == 0) {
        begin_copies(memory.node_word, kThreads);
        for (NodeList& list : memory.nodes->list) list.unit = -1;
    }
    __syncthreads();
    ring.list_stages();

    const int num_rounds = (memory.products[kLogits].num_groups + kMaxGroups - 1) / kMaxGroups;
    choice.begin(num_rounds);
    Products<Number, kPacks> multiply(p, memory, ring, choice, num_rows);
    Attention<Number> attend(p, memory);
    attend.begin();
    const int num_places = static_cast<int>(p.num_places);
    const int own_set = p.books[1] % 2;
    const int64_t all_places = p.num_layers * p.num_places;
    uint16_t *own = p.places + own_set * all_places, *other = p.places + (1 - own_set) * all_places;
#pragma unroll 1
    for (int i = 0; i <= p.num_layers; ++i, own += num_places, other += num_places) {
        const bool is_behind = i == p.num_layers;
        const LayerAt& layer = memory.layers[i];
#pragma unroll 1
        for (int round = 0; round < (is_behind ? num_rounds : kNumProducts); ++round) {
            const int product = is_behind ? kLogits : round;
            const AttentionKind kind = product == kQkv ? kOwn : kSource;
            const bool has_attention = product == kQkv || product == kQuery;
            uint16_t* const pool = kind == kOwn ? layer.own_pool : layer.source_pool;
            if (has_attention) attend.ask(kind, pool);
            multiply({i, product, own, is_behind ? round : 0});
            if (has_attention) {
                const ProductAt& before = memory.products[product];
                const ProductAt& behind = memory.products[product + 1];
                attend({kind, pool, own + before.y, own + behind.x});
            }
        }
        if (!is_behind) empty_places(other, num_places, p.plan.num_blocks);
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
    // blocks that have the same chunk of the last product
    const int chunks = chunks_of(p.width, p.inner_width);
    if (chunks > num_blocks) return {};
    const int step = num_blocks / chunks, shared = (p.width / kLines + step - 1) / step;
    const int most = std::max({groups_of(3 * p.width), states, inner, logits, shared});
    LayersPlan plan{num_blocks, kPacks, states};
    int begin[Memory::kParts];
    const int before = Memory::offsets(plan, p.num_layers, p.place_rows, begin);
    const int room = (shared_bytes - before) / WeightRing<kPacks>::kStageBytes;
    plan.num_stages = std::min(room, kMaxStages);
    plan.num_bytes = before + plan.num_stages * WeightRing<kPacks>::kStageBytes;
    const int choice = (sizeof(BeamMemory) - 1) / WeightRing<kPacks>::kStageBytes + 1;
    // so a layer has at most `kMaxLayerStages`
    const bool fits = most <= kMaxGroups && plan.num_stages >= std::max(most, choice);
    return fits && has_late_code(kernel_of<kPacks>(p)) ? plan : LayersPlan{};
}

}  // namespace

LayersPlan plan_layers(const LayersParams& p, int num_multiprocessors, int shared_bytes) {
    const bool is_whole = p.width % kPack == 0 && p.inner_width % kPack == 0;
    const bool has_heads = p.num_heads * kHeadSize == p.width;
    const bool are_few = p.place_rows <= kMaxRows && p.num_layers <= kMaxLayers;
    if (!is_whole || !has_heads || !are_few) return {};
    const int num_blocks = num_multiprocessors;
    if (p.width > chunk_of(packs_of(p.width))) return {};
    switch (packs_of(p.width)) {
        case 1:
            return plan_packs<1>(p, num_blocks, shared_bytes);
        case 2:
            return plan_packs<2>(p, num_blocks, shared_bytes);
        default:
            return plan_packs<4>(p, num_blocks, shared_bytes);
    }
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
