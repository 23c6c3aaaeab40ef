// A product of a layer: a block has some columns of all rows, and each warp a part of the depth.
#pragma once

#include "layers_choice.cuh"
#include "layers_embedding.cuh"
#include "layers_norm.cuh"

namespace pybeam::cuda {

// f(x), f an activation.
__device__ inline float activated(float x, Activation activation) {
    switch (activation) {
        case Activation::kRelu:
            return isnan(x) ? x : fmaxf(x, 0.0f);
        case Activation::kGelu:
            return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case Activation::kTanhGelu:
            return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        case Activation::kSilu:
            return x / (1.0f + expf(-x));
        case Activation::kTanh:
            return tanhf(x);
        case Activation::kNone:
            break;
    }
    return x;
}

// y = residual + f(norm(x) W^T + b)
struct ProductCall {
    int product;
    const uint16_t* x;  // [rows, depth]; null: embeddings
    bool is_awaited;    // whether x are places
    uint16_t* y;        // [rows, columns]
    Activation activation;
    bool has_norm, adds;
    int first_group;  // of this block's; behind those that were computed before
};

template <class Number, int kPacks>
class Products {
  public:
    using Ring = WeightRing<kPacks>;

    __device__ Products(const LayersParams& p, const Memory& memory, Ring& ring,
                        Choice<Number>& choice, int num_rows)
        : p_(p), memory_(memory), ring_(ring), choice_(choice), num_rows_(num_rows) {}

    // The states of this block's columns, in floats.
    __device__ void keep_states() {
        for (int group = own_warp(); group < p_.plan.state_groups; group += kWarps) {
            const int column = column_of(p_, group) + 2 * (lane() / kLines);
            if (column >= p_.width) continue;
            for (int row = lane() % kLines; row < num_rows_; row += kLines) {
                const float2 x = floats_of<Number>(state_pair(row, column));
                float* kept = state_of(group, row, column);
                kept[0] = x.x, kept[1] = x.y;
            }
        }
    }

    // A call takes at most `kMaxGroups` groups, of logits those from `first_group` on.
    __device__ void operator()(const LinearAt& linear, const ProductCall& call) {
        ProductSize size(p_, *memory_.shares, call.product);
        size.num_groups = min(size.num_groups - call.first_group, kMaxGroups);
        const bool has_norm = call.has_norm && linear.scale != nullptr;
        const bool keeps = has_norm && !p_.is_pre_norm && num_state_groups() > 0;
        if (size.num_groups == 0 && !keeps) return;
        // while the rows are on their way
        Norm norm;
        if (has_norm) norm.load(linear, size.depth, depth_of(0, 0));
        Own own = own_of(linear, call, size);
        const int num_chunks = Ring::num_chunks(size.depth);
#pragma unroll 1
        for (int first = 0; first < num_rows_; first += kLines) {
            Rows rows,
                next = call.x == nullptr ? embedded(first) : load(call, size.depth, first, 0);
            const int place = place_of_sums(size, first), left = place_of_left();
            const float2 before = before_of(call, own, place);
            // once, too, where this block has no column but keeps the norm
            int group = 0;
#pragma unroll 1
            do {
                float sum[2][4] = {};
#pragma unroll 1
                for (int chunk = 0; chunk < num_chunks; ++chunk) {
                    // before the rows, because these have come long ago
                    Weights weights;
                    if (group < size.num_groups) weights = weights_of(size, chunk, group);
                    if (group == 0 || num_chunks > 1) {
                        rows = next;
                        // that of the next groups behind the last one
                        const int other = chunk + 1 < num_chunks ? chunk + 1 : 0;
                        if (num_chunks > 1) next = load(call, size.depth, first, other);
                        await_all(rows, call, size.depth, first, chunk);
                        if (has_norm) norm.normalise(rows, moments(), size.depth, p_.epsilon);
                        if (keeps) keep_normed(rows, size.depth, first);
                    }
                    if (depth_of(chunk, 0) < size.depth) add_products(sum, rows, weights);
                }
                leave_partial(sum, size.num_groups, group, left);
                group += 2;
            } while (group < size.num_groups);
            __syncthreads();
            const uint32_t pair = place < 0 ? 0 : finish(call, size, own, place, before);
            if (call.product == kLogits && p_.has_choice) {
                choice_.leave_logits(size, call.first_group, first, pair, own.ends);
            }
            own.y += kLines * own.stride, own.kept += kLines * kLines;
            parity_ ^= 1;
        }
        ring_.leave(num_chunks * size.num_groups);
    }

  private:
    using Rows = WarpRows<kPacks>;
    using Norm = RowNorm<Number, kPacks>;

    __device__ static int lane() { return threadIdx.x % kWarpSize; }
    __device__ static int own_warp() { return threadIdx.x / kWarpSize; }

    __device__ int num_state_groups() const { return memory_.shares->num_groups[kOwnOut]; }

    __device__ float* state_of(int group, int row, int column) const {
        return memory_.states + (group * p_.place_rows + row) * kLines + column % kLines;
    }

    // The sums of all warps; those of the tile before may be read still.
    __device__ Moments* moments() const { return memory_.moments + parity_ * kWarps * kLines; }

    // The row that a lane finishes, in a tile, and the first of its two columns, in a group.
    __device__ static int own_line() { return lane() % kLines; }
    __device__ static int own_even() { return 2 * (lane() / kLines); }

    __device__ uint32_t state_pair(int row, int column) const {
        if (p_.states == nullptr) return EmbeddedRow<Number>(p_, row).pair(column);
        const uint16_t* states = p_.states + int64_t{row} * p_.width;
        return *reinterpret_cast<const uint32_t*>(states + column);
    }

    // Where a lane's numbers of pack i begin along the depth.
    __device__ static int depth_of(int chunk, int i) {
        return chunk * Ring::kChunk + (own_warp() + i * kWarps) * kPack + lane() % 4 * 8;
    }

    __device__ static const uint16_t* place_of(const ProductCall& call, int depth, int row,
                                               int o_depth) {
        return call.x + int64_t{row} * depth + o_depth;
    }

    __device__ Rows load(const ProductCall& call, int depth, int first, int chunk) const {
        Rows rows;
        const int row = first + lane() / 4;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int o_depth = depth_of(chunk, i);
            rows.pack[i] = row < num_rows_ && o_depth < depth
                               ? load_place(place_of(call, depth, row, o_depth))
                               : Vector{};
        }
        return rows;
    }

    // Embeddings in place of rows, as wide as states.
    __device__ Rows embedded(int first) const {
        Rows rows{};
        const int row = first + lane() / 4;
        if (row >= num_rows_) return rows;
        const EmbeddedRow<Number> own(p_, row);
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int column = depth_of(0, i);
            if (column < p_.width) rows.pack[i] = own.eight(column);
        }
        return rows;
    }

    __device__ void await_all(Rows& rows, const ProductCall& call, int depth, int first,
                              int chunk) const {
        if (!call.is_awaited) return;
        const int row = first + lane() / 4;
        await(rows.pack, [&](int i) { return place_of(call, depth, row, depth_of(chunk, i)); });
        __syncwarp();
    }

    // Two columns of the group that a warp finishes, in the row of a lane: their biases, where
    // their results go, and which of the kept states they are added to.
    struct Own {
        int column;
        uint32_t bias;
        int64_t stride;  // of results
        uint16_t* y;
        int kept, ends;
    };

    __device__ Own own_of(const LinearAt& linear, const ProductCall& call,
                          const ProductSize& size) const {
        const int group = own_warp(), column = column_of(p_, call.first_group + group) + own_even();
        const int64_t stride = call.product == kLogits ? p_.out_stride : size.num_columns;
        const int kept = (group * p_.place_rows + own_line()) * kLines + own_even();
        uint32_t bias = 0;
        if (group < size.num_groups && linear.bias != nullptr) {
            const int num_left = size.num_columns - column;
            bias = num_left > 0 ? __ldg(linear.bias + column) : 0;
            bias |= (num_left > 1 ? __ldg(linear.bias + column + 1) : 0u) << 16;
        }
        const int ends = call.product == kLogits ? choice_.ends_of(column) : 0;
        return {column, bias, stride, call.y + own_line() * stride + column, kept, ends};
    }

    // Keeps what a later sum is added to, where norms stand behind sums.
    __device__ void keep_normed(const Rows& rows, int depth, int first) const {
        const int row = first + lane() / 4;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int column = depth_of(0, i), group = column / kLines;
            const bool is_own = group % p_.plan.num_blocks == static_cast<int>(blockIdx.x);
            if (!is_own || row >= num_rows_ || column >= depth) continue;
            float* kept = state_of(group / p_.plan.num_blocks, row, column);
#pragma unroll
            for (int j = 0; j < 8; ++j) kept[j] = Number::at(rows.pack[i], j);
        }
    }

    // The weights of two groups, as tensor cores want them beside the rows.
    struct Weights {
        Vector even[kPacks], odd[kPacks];
    };

    __device__ Weights weights_of(const ProductSize& size, int chunk, int group) const {
        const char* even = ring_.await_stage(chunk, group, size.num_groups);
        // lines that there are not have any sums
        const bool is_whole = group + 1 < size.num_groups;
        const char* odd = is_whole ? ring_.await_stage(chunk, group + 1, size.num_groups) : even;
        const int begin = depth_of(chunk, 0) - chunk * Ring::kChunk;
        const int first = lane() / 4 * Ring::kColumnBytes + begin * 2;
        Weights weights;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            // rows that there are not are 0, whatever they meet
            const bool is_there = depth_of(chunk, i) < size.depth;
            const int place = first + (is_there ? i * kWarps * kPack * 2 : 0);
            weights.even[i] = vector_at(even + place), weights.odd[i] = vector_at(odd + place);
        }
        return weights;
    }

    // Two groups are 16 lines for the tensor cores. Two sums take turns, so that a product does not
    // wait for the one before it.
    __device__ static void add_products(float (&sum)[2][4], const Rows& rows,
                                        const Weights& weights) {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const uint32_t (&a)[4] = weights.even[i].word, (&b)[4] = weights.odd[i].word;
            const uint32_t (&x)[4] = rows.pack[i].word;
            Number::multiply(sum[0], {a[0], b[0], a[1], b[1]}, {x[0], x[1]});
            Number::multiply(sum[1], {a[2], b[2], a[3], b[3]}, {x[2], x[3]});
        }
    }

    // Where a lane leaves its sums, [parity, warps, rows, columns].
    __device__ int place_of_left() const {
        const int line = lane() / 4, row = lane() % 4 * 2, warp = parity_ * kWarps + own_warp();
        return known_now(warp * Memory::kPartialFloats + row * Memory::kPartialColumns + line);
    }

    // The sums of a warp's part of the depth.
    __device__ void leave_partial(const float (&sum)[2][4], int num_groups, int group,
                                  int left) const {
        float* place = memory_.partial + left;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (group + half >= num_groups) continue;
            float* own = place + (group + half) * kLines;
            own[0] = sum[0][2 * half] + sum[1][2 * half];
            own[Memory::kPartialColumns] = sum[0][2 * half + 1] + sum[1][2 * half + 1];
        }
    }

    // Where the sums lie of what a lane finishes; -1: it finishes nothing.
    __device__ int place_of_sums(const ProductSize& size, int first) const {
        const bool finishes = own_warp() < size.num_groups && first + own_line() < num_rows_;
        const int column = own_warp() * kLines + own_even();
        const int place = parity_ * kWarps * Memory::kPartialFloats +
                          own_line() * Memory::kPartialColumns + column;
        return known_now(finishes ? place : -1);
    }

    // The numbers that results are added to.
    __device__ float2 before_of(const ProductCall& call, const Own& own, int place) const {
        if (!call.adds || place < 0) return {0, 0};
        const float* kept = memory_.states + own.kept;
        return {kept[0], kept[1]};
    }

    // A warp finishes a group: a lane has a row and two columns, whose numbers it returns.
    __device__ uint32_t finish(const ProductCall& call, const ProductSize& size, const Own& own,
                               int place, float2 before) const {
        const float* sums = memory_.partial + place;
        float2 sum[kWarps];
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            sum[warp] = *reinterpret_cast<const float2*>(sums + warp * Memory::kPartialFloats);
        }
        // in pairs, so that few sums wait for one another
#pragma unroll
        for (int step = 1; step < kWarps; step *= 2) {
#pragma unroll
            for (int warp = 0; warp < kWarps; warp += 2 * step) {
                sum[warp].x += sum[warp + step].x, sum[warp].y += sum[warp + step].y;
            }
        }
        const float2 shift = floats_of<Number>(own.bias);
        float2 y{sum[0].x + shift.x, sum[0].y + shift.y};
        if (call.activation != Activation::kNone) {
            y = {activated(y.x, call.activation), activated(y.y, call.activation)};
        }
        const uint32_t pair = Number::pair(y.x + before.x, y.y + before.y);
        if (call.product == kLogits) {
            // their number may be odd
            if (own.column < size.num_columns) own.y[0] = static_cast<uint16_t>(pair);
            if (own.column + 1 < size.num_columns) own.y[1] = static_cast<uint16_t>(pair >> 16);
            return pair;
        }
        leave_pair(own.y, pair);
        if (call.adds) {
            const float2 rounded = floats_of<Number>(pair);
            float* kept = memory_.states + own.kept;
            kept[0] = rounded.x, kept[1] = rounded.y;
        }
        return pair;
    }

    const LayersParams& p_;
    const Memory& memory_;
    Ring& ring_;
    Choice<Number>& choice_;
    int num_rows_;
    int parity_ = 0;
};

}  // namespace pybeam::cuda
