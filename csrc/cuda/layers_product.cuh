// A product of a layer: a block has some columns of all rows, and each warp a part of the depth.
#pragma once

#include "layers_block.cuh"

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
    const uint16_t* x;  // [rows, depth]
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

    __device__ Products(const LayersParams& p, const Memory& memory, Ring& ring, int num_rows)
        : p_(p), memory_(memory), ring_(ring), num_rows_(num_rows) {}

    // The states of this block's columns, in floats.
    __device__ void keep_states(const uint16_t* states) {
        for (int group = own_warp(); group < p_.plan.state_groups; group += kWarps) {
            const int column = column_of(p_, group) + 2 * (lane() / kLines);
            if (column >= p_.width) continue;
            for (int row = lane() % kLines; row < num_rows_; row += kLines) {
                const auto* pair =
                    reinterpret_cast<const uint32_t*>(states + int64_t{row} * p_.width + column);
                const float2 x = floats_of<Number>(*pair);
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
        if (has_norm) norm = norm_of(linear, size.depth);
        const uint32_t bias = bias_of(linear, size, call.first_group);
        const int num_chunks = Ring::num_chunks(size.depth);
#pragma unroll 1
        for (int first = 0; first < num_rows_; first += kLines) {
            Rows rows, next = load(call, size.depth, first, 0);
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
                        if (has_norm) normalise(rows, norm, size.depth);
                        if (keeps) keep_normed(rows, size.depth, first);
                    }
                    if (depth_of(chunk, 0) < size.depth) add_products(sum, rows, weights);
                }
                leave_partial(sum, size.num_groups, group);
                group += 2;
            } while (group < size.num_groups);
            __syncthreads();
            finish(call, size, bias, first);
            parity_ ^= 1;
        }
        ring_.leave(num_chunks * size.num_groups);
    }

  private:
    // The rows of a warp in a chunk of the depth, as tensor cores want them: a lane has a row and
    // eight numbers of each pack.
    struct Rows {
        Vector pack[kPacks];
    };

    // Weight and bias of a norm, the eight numbers of each pack.
    struct Norm {
        Vector scale[kPacks], shift[kPacks];
    };

    __device__ static int lane() { return threadIdx.x % kWarpSize; }
    __device__ static int own_warp() { return threadIdx.x / kWarpSize; }

    __device__ int num_state_groups() const { return memory_.shares->num_groups[kOwnOut]; }

    __device__ float* state_of(int group, int row, int column) const {
        return memory_.states + (group * p_.place_rows + row) * kLines + column % kLines;
    }

    __device__ float* partial_of(int warp, int column, int num_columns) const {
        const int half = parity_ * Memory::kPartialFloats * p_.plan.most_groups;
        return memory_.partial + half + (warp * num_columns + column) * kLines;
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

    __device__ void await_all(Rows& rows, const ProductCall& call, int depth, int first,
                              int chunk) const {
        if (!call.is_awaited) return;
        const int row = first + lane() / 4;
        await(rows.pack, [&](int i) { return place_of(call, depth, row, depth_of(chunk, i)); });
        __syncwarp();
    }

    __device__ static Norm norm_of(const LinearAt& linear, int depth) {
        Norm norm;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int o_depth = depth_of(0, i);
            norm.scale[i] = norm.shift[i] = {};
            if (o_depth < depth) {
                norm.scale[i] = load_vector(reinterpret_cast<const uint4*>(linear.scale + o_depth));
                norm.shift[i] = load_vector(reinterpret_cast<const uint4*>(linear.shift + o_depth));
            }
        }
        return norm;
    }

    // Two columns' biases of the group that this warp finishes.
    __device__ uint32_t bias_of(const LinearAt& linear, const ProductSize& size,
                                int first_group) const {
        if (own_warp() >= size.num_groups || linear.bias == nullptr) return 0;
        const int column = column_of(p_, first_group + own_warp()) + 2 * (lane() / kLines);
        const int num_left = size.num_columns - column;
        const uint32_t first = num_left > 0 ? __ldg(linear.bias + column) : 0;
        return first | (num_left > 1 ? __ldg(linear.bias + column + 1) : 0u) << 16;
    }

    // Adds the numbers of a warp's rows and their squares on the tensor cores, as products with
    // ones and with the rows themselves.
    __device__ void leave_moments(const Rows& rows, Moments* moments) const {
        const uint32_t ones = Number::pair(1.0f, 1.0f);
        float sum[2][4] = {}, square[2][4] = {};
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t x[2] = {rows.pack[i].word[2 * half],
                                       rows.pack[i].word[2 * half + 1]};
                Number::multiply(sum[half], {ones, 0, ones, 0}, x);
                Number::multiply(square[half], {x[0], 0, x[1], 0}, x);
            }
        }
        const int line = lane() / 4, row = lane() % 4 * 2;
        if (line == 0) {
            moments[row].sum = sum[0][0] + sum[1][0];
            moments[row + 1].sum = sum[0][1] + sum[1][1];
        }
        // of a row with itself
        if (line == row) moments[row].square = square[0][0] + square[1][0];
        if (line == row + 1) moments[row + 1].square = square[0][1] + square[1][1];
    }

    // A layer norm. The squares of distances to the mean are those of numbers less that of the
    // mean, in float32, which is exact enough unless the mean is a thousand times the deviation.
    __device__ void normalise(Rows& rows, const Norm& norm, int depth) const {
        Moments* moments = memory_.moments + parity_ * kWarps * kLines;
        leave_moments(rows, moments + own_warp() * kLines);
        __syncthreads();
        Moments all{};
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            const Moments part = moments[warp * kLines + lane() / 4];
            all.sum += part.sum, all.square += part.square;
        }
        const float share = 1.0f / depth, mean = all.sum * share;
        const float variance = fmaxf(all.square * share - mean * mean, 0.0f);
        const float factor = rsqrtf(variance + p_.epsilon), shift = -mean * factor;
        // scales that are not there are 0
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float y[2];
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    const float x = Number::at(rows.pack[i], 2 * j + k) * factor + shift;
                    y[k] = x * Number::at(norm.scale[i], 2 * j + k) +
                           Number::at(norm.shift[i], 2 * j + k);
                }
                rows.pack[i].word[j] = Number::pair(y[0], y[1]);
            }
        }
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

    // The sums of a warp's part of the depth, [columns, rows].
    __device__ void leave_partial(const float (&sum)[2][4], int num_groups, int group) const {
        const int line = lane() / 4, row = lane() % 4 * 2, num_columns = num_groups * kLines;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (group + half >= num_groups) continue;
            float* place =
                partial_of(own_warp(), (group + half) * kLines + line, num_columns) + row;
            place[0] = sum[0][2 * half] + sum[1][2 * half];
            place[1] = sum[0][2 * half + 1] + sum[1][2 * half + 1];
        }
    }

    // A warp finishes a group: a lane has a row and two columns.
    __device__ void finish(const ProductCall& call, const ProductSize& size, uint32_t bias,
                           int first) const {
        const int group = own_warp(), line = lane() % kLines, row = first + line;
        if (group >= size.num_groups || row >= num_rows_) return;
        const int even = 2 * (lane() / kLines), num_columns = size.num_groups * kLines;
        float2 sum{0, 0};
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            const float* part = partial_of(warp, group * kLines + even, num_columns) + line;
            sum.x += part[0], sum.y += part[kLines];
        }
        const float2 shift = floats_of<Number>(bias);
        sum.x += shift.x, sum.y += shift.y;
        if (call.activation != Activation::kNone) {
            sum.x = activated(sum.x, call.activation), sum.y = activated(sum.y, call.activation);
        }
        const int column = column_of(p_, call.first_group + group) + even;
        float* kept = state_of(group, row, column);
        if (call.adds) sum.x += kept[0], sum.y += kept[1];
        const uint32_t pair = Number::pair(sum.x, sum.y);
        uint16_t* y = call.y + int64_t{row} * size.num_columns + column;
        if (call.product == kLogits) {
            // for another kernel; their number may be odd
            if (column < size.num_columns) y[0] = static_cast<uint16_t>(pair);
            if (column + 1 < size.num_columns) y[1] = static_cast<uint16_t>(pair >> 16);
            return;
        }
        leave_pair(y, pair);
        if (call.adds) {
            const float2 rounded = floats_of<Number>(pair);
            kept[0] = rounded.x, kept[1] = rounded.y;
        }
    }

    const LayersParams& p_;
    const Memory& memory_;
    Ring& ring_;
    int num_rows_;
    int parity_ = 0;
};

}  // namespace pybeam::cuda
