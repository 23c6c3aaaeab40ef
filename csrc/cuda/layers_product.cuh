// A product of a layer: a block has some columns of all rows, and each warp a part of the depth.
#pragma once

#include "layers_choice.cuh"
#include "layers_embedding.cuh"
#include "layers_norm.cuh"
#include "layers_sums.cuh"

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
    int layer, product;
    uint16_t* places;  // of the layer
    int round;         // of logits
};

template <class Number, int kPacks>
class Products {
  public:
    using Ring = WeightRing<kPacks>;

    __device__ Products(const LayersParams& p, const Memory& memory, Ring& ring,
                        Choice<Number>& choice, int num_rows)
        : p_(p), memory_(memory), ring_(ring), choice_(choice), num_rows_(num_rows) {}

    // A call takes at most `kMaxGroups` groups, of logits those of a round.
    __device__ void operator()(const ProductCall& call) {
        const ProductAt at = memory_.products[call.product];
        const bool are_logits = call.product == kLogits;
        // that of logits stands behind the layers
        const LinearAt* kept = memory_.layers[call.layer].linear + (are_logits ? 0 : call.product);
        const LinearAt linear = *static_cast<const LinearAt*>(__builtin_assume_aligned(kept, 16));
        const int first_group = call.round * kMaxGroups;
        const int num_groups = min(at.num_groups - first_group, kMaxGroups);
        const bool has_norm = at.has_norm && linear.scale != nullptr;
        const bool keeps = has_norm && !p_.is_pre_norm && num_state_groups() > 0;
        const bool is_shared = at.num_chunks > 1;
        const int num_finished = is_shared ? num_state_groups() : num_groups;
        if (num_groups <= 0 && num_finished <= 0 && !keeps) return;
        const bool is_first = call.layer == 0 && call.product == kQkv;
        const bool is_one_tile = num_rows_ <= kLines, leaves_early = are_logits && is_one_tile;
        Own own = own_of(linear, call, at, first_group, num_finished);
        // while the rows are on their way
        Norm norm;
        if (has_norm) norm.load(linear, at.depth, Rows::depth_of(0, 0));
#pragma unroll 1
        for (int first = 0; first < num_rows_; first += kLines) {
            const bool is_there = first + own_line() < num_rows_;
            const bool has_sums = is_there && own_warp() < num_groups;
            const bool finishes = is_there && own_warp() < num_finished;
            const int place = place_of_sums(), left = place_of_left();
            const float2 before = before_of(at, own, finishes);
            if (num_groups > 0 || keeps) {
                const PlacedRows<kPacks> placed(call.places + at.x, at.depth, first, num_rows_);
                // all rounds of a tile multiply the same rows
                const bool has_rows = call.round > 0 && is_one_tile;
                if (!has_rows) rows_ = is_first ? first_rows(first) : placed.load(at.chunk);
                Weights weights;
                if (num_groups > 0) weights = weights_of(at, 0, num_groups > 1);
                if (!has_rows) {
                    if (!is_first) placed.await_all(rows_, at.chunk);
                    if (has_norm) norm.normalise(rows_, moments(), at.share, p_.epsilon);
                    if (keeps) keep_normed(rows_, at.depth, first);
                }
#pragma unroll 1
                for (int group = 0; group < num_groups; group += 2) {
                    if (group > 0) weights = next_weights(at, group, num_groups, leaves_early);
                    float sum[2][4] = {};
                    const bool has_depth = Rows::depth_of(at.chunk, 0) < at.depth;
                    if (has_depth) add_products(sum, rows_, weights);
                    leave_partial(sum, num_groups, group, left);
                }
            }
            __syncthreads();
            // those of warps without a group are nobody's
            float2 sum = sum_of_warps(place);
            if (is_shared) {
                const SharedSums shared(p_, at, call.places, first + own_line(), own_even());
                if (has_sums) shared.leave_share(at.first + own_warp() * at.step, sum);
                if (finishes) sum = shared.await_shares(column_of(p_, own_warp()) / kLines);
            }
            const uint32_t pair = finishes ? finish(call, at, own, sum, before) : 0;
            if (first + kLines >= num_rows_) {
                ring_.leave(num_groups - (leaves_early ? (num_groups - 1) / 2 * 2 : 0));
            }
            if (are_logits && p_.has_choice) {
                choice_.leave_logits(num_groups, first_group, first, pair, own.ends);
            }
            own.y += kLines * own.stride, own.kept += kLines * kLines;
            parity_ ^= 1;
        }
        // others wait for these products meanwhile
        if (is_first) keep_states();
    }

  private:
    using Rows = WarpRows<kPacks>;
    using Norm = RowNorm<Number, kPacks>;

    __device__ static int lane() { return threadIdx.x % kWarpSize; }
    __device__ static int own_warp() { return threadIdx.x / kWarpSize; }

    __device__ int num_state_groups() const { return memory_.products[kOwnOut].num_groups; }

    __device__ float* state_of(int group, int row, int column) const {
        return memory_.states + (group * p_.place_rows + row) * kLines + column % kLines;
    }

    // The sums of all warps; those of the tile before may be read still.
    __device__ Moments* moments() const { return memory_.moments + parity_ * kWarps * kLines; }

    // The row that a lane finishes, in a tile, and the first of its two columns, in a group.
    __device__ static int own_line() { return lane() % kLines; }
    __device__ static int own_even() { return 2 * (lane() / kLines); }

    // The states of this block's columns, in floats.
    __device__ void keep_states() {
        for (int group = own_warp(); group < p_.plan.state_groups; group += kWarps) {
            const int column = column_of(p_, group) + own_even();
            if (column >= p_.width) continue;
            for (int row = own_line(); row < num_rows_; row += kLines) {
                const float2 x = floats_of<Number>(state_pair(row, column));
                float* kept = state_of(group, row, column);
                kept[0] = x.x, kept[1] = x.y;
            }
        }
    }

    __device__ uint32_t state_pair(int row, int column) const {
        if (p_.states == nullptr) return EmbeddedRow<Number>(p_, row).pair(column);
        const uint16_t* states = p_.states + int64_t{row} * p_.width;
        return *reinterpret_cast<const uint32_t*>(states + column);
    }

    // The states before the first layer.
    __device__ Rows first_rows(int first) const {
        Rows rows{};
        const int row = first + lane() / 4;
        if (row >= num_rows_) return rows;
        EmbeddedRow<Number> own;
        if (p_.states == nullptr) own = EmbeddedRow<Number>(p_, row);
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int column = rows.depth_of(0, i);
            if (column >= p_.width) continue;
            rows.pack[i] = p_.states == nullptr
                               ? own.eight(column)
                               : vector_at(p_.states + int64_t{row} * p_.width + column);
        }
        return rows;
    }

    // Two columns of the group that a warp finishes, in the row of a lane: their biases, where
    // their results go, and which of the kept states they are added to.
    struct Own {
        int column;
        uint32_t bias;
        int stride;  // of results
        uint16_t* y;
        int kept, ends;
    };

    __device__ Own own_of(const LinearAt& linear, const ProductCall& call, const ProductAt& at,
                          int first_group, int num_groups) const {
        const int group = own_warp(), column = column_of(p_, first_group + group) + own_even();
        const int kept = (group * p_.place_rows + own_line()) * kLines + own_even();
        uint32_t bias = 0;
        if (group < num_groups && linear.bias != nullptr) {
            // the number of columns may be odd
            const uint16_t* own = linear.bias + column;
            if (column + 1 < at.num_columns) {
                bias = __ldg(reinterpret_cast<const uint32_t*>(own));
            } else if (column < at.num_columns) {
                bias = __ldg(own);
            }
        }
        if (call.product == kLogits) {
            uint16_t* y = p_.out + own_line() * p_.out_stride + column;
            const int ends = choice_.ends_of(column);
            return {column, bias, static_cast<int>(p_.out_stride), y, kept, ends};
        }
        const bool is_last = call.product == kInnerOut && call.layer + 1 == p_.num_layers;
        if (is_last && p_.num_logits == 0) {
            uint16_t* y = p_.out + own_line() * p_.out_stride + column;
            return {column, bias, static_cast<int>(p_.out_stride), y, kept, 0};
        }
        uint16_t* y = call.places + at.y + spread(own_line() * at.num_columns + column);
        return {column, bias, kSpread * at.num_columns, y, kept, 0};
    }

    // Keeps what a later sum is added to, where norms stand behind sums.
    __device__ void keep_normed(const Rows& rows, int depth, int first) const {
        const int row = first + lane() / 4;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const int column = rows.depth_of(0, i), group = column / kLines;
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

    __device__ Weights weights_of(const ProductAt& at, int stage, bool are_two) const {
        const char* even = ring_.await_stage(stage);
        // lines that there are not have any sums
        const char* odd = are_two ? ring_.await_stage(stage + 1) : even;
        const int begin = Rows::depth_of(0, 0);
        const int first = lane() / 4 * Ring::kColumnBytes + begin * 2;
        Weights weights;
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            // rows that there are not are 0, whatever they meet
            const bool is_there = Rows::depth_of(at.chunk, i) < at.depth;
            const int place = first + (is_there ? i * kWarps * kPack * 2 : 0);
            weights.even[i] = vector_at(even + place), weights.odd[i] = vector_at(odd + place);
        }
        return weights;
    }

    // All warps have read the weights of two groups.
    __device__ void leave_pair_of_stages() {
        __syncthreads();
        ring_.leave(2);
    }

    // The weights of the groups behind others. If those others are left early, the copy engine goes
    // on meanwhile.
    __device__ Weights next_weights(const ProductAt& at, int group, int num_groups,
                                    bool leaves_early) {
        if (leaves_early) leave_pair_of_stages();
        return weights_of(at, leaves_early ? 0 : group, group + 1 < num_groups);
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

    // Where the sums of a lane's row and its two columns lie.
    __device__ int place_of_sums() const {
        const int column = own_warp() * kLines + own_even();
        const int place = parity_ * kWarps * Memory::kPartialFloats +
                          own_line() * Memory::kPartialColumns + column;
        return known_now(place);
    }

    // The numbers that results are added to.
    __device__ float2 before_of(const ProductAt& at, const Own& own, bool finishes) const {
        if (!at.adds || !finishes) return {0, 0};
        const float* kept = memory_.states + own.kept;
        return {kept[0], kept[1]};
    }

    // The sums of all warps, for a row and two columns.
    __device__ float2 sum_of_warps(int place) const {
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
        return sum[0];
    }

    // A warp finishes a group: a lane has a row and two columns, whose numbers it returns.
    __device__ uint32_t finish(const ProductCall& call, const ProductAt& at, const Own& own,
                               float2 sum, float2 before) const {
        const float2 shift = floats_of<Number>(own.bias);
        float2 y{sum.x + shift.x, sum.y + shift.y};
        if (call.product == kInner && p_.activation != Activation::kNone) {
            y = {activated(y.x, p_.activation), activated(y.y, p_.activation)};
        }
        const uint32_t pair = Number::pair(y.x + before.x, y.y + before.y);
        if (call.product == kLogits) {
            // their number may be odd
            if (own.column < at.num_columns) own.y[0] = static_cast<uint16_t>(pair);
            if (own.column + 1 < at.num_columns) own.y[1] = static_cast<uint16_t>(pair >> 16);
            return pair;
        }
        leave_pair(own.y, pair);
        if (at.adds) {
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
    Rows rows_;
};

}  // namespace pybeam::cuda
