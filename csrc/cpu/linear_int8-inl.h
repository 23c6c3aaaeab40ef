// Products of int8 rows with a panel of packed int8 or int4 weights. Included inside a namespace,
// before the float products.

// Smaller rows count as zero: the inverse of their scale is no float.
constexpr float kLeastMagnitude = 0x1p-100f;

constexpr int kChains = 2;  // a chain of its own would wait for every maximum

// The largest |x| of each lane, NaN and infinities included.
inline void find_magnitudes(const float* x, int64_t depth, Vec (&most)[kChains]) {
    for (int i = 0; i < kChains; ++i) most[i] = broadcast(0.0f);
    int64_t k = 0;
    for (; k + kChains * kWidth <= depth; k += kChains * kWidth) {
        for (int i = 0; i < kChains; ++i) {
            most[i] = larger_magnitude(most[i], load(x + k + i * kWidth));
        }
    }
    for (; k < depth; k += kWidth) {
        most[0] = larger_magnitude(most[0], load_some(x + k, depth - k, 0.0f));
    }
}

// The largest |x| of a row, NaN if it holds NaN or infinities.
inline float magnitude_of(const Vec (&most)[kChains]) {
    const Vec of_lanes = larger_magnitude(most[0], most[1]);
    // a product with zero is NaN for NaN and infinities
    return sum(mul(of_lanes, broadcast(0.0f))) == 0.0f ? largest(of_lanes) : NAN;
}

// The largest magnitudes in descending order, and where they stand. Zeros are none.
struct Largest {
    float value[kNumLarge + 1] = {};
    int64_t place[kNumLarge + 1] = {};

    void add(float magnitude, int64_t at) {
        if (!(magnitude > value[kNumLarge])) return;
        int64_t i = kNumLarge;
        for (; i > 0 && magnitude > value[i - 1]; --i) {
            value[i] = value[i - 1];
            place[i] = place[i - 1];
        }
        value[i] = magnitude;
        place[i] = at;
    }
};

// Those of a row without NaN.
inline Largest largest_of(const float* x, int64_t depth, const Vec (&most)[kChains]) {
    float of_lanes[kChains * kWidth];
    for (int i = 0; i < kChains; ++i) store(of_lanes + i * kWidth, most[i]);
    Largest lanes, found;
    for (int i = 0; i < kChains * kWidth; ++i) lanes.add(of_lanes[i], i);
    // few numbers are as large as this one, which is none but where few lanes have others than zero
    const Vec bound = broadcast(-lanes.value[kNumLarge]);
    for (int64_t k = 0; k < depth; k += kWidth) {
        const Vec part = k + kWidth <= depth ? load(x + k) : load_some(x + k, depth - k, 0.0f);
        for (uint32_t left = greater_equal(bound, negative_abs(part)); left != 0;
             left &= left - 1) {
            const int64_t at = k + __builtin_ctz(left);
            if (at < depth) found.add(std::fabs(x[at]), at);
        }
    }
    return found;
}

// Splits the integers of inputs above a magnitude, which stands for 127, into two parts each.
inline void split_large(const float* x, float magnitude, const Largest& largest,
                        const Int8Rows& out) {
    Input* const values = reinterpret_cast<Input*>(out.values);
    for (int64_t i = 0; i < kNumLarge; ++i) {
        LargeInput& large = out.large[i];
        large = {};
        if (!(largest.value[i] > magnitude)) continue;
        const int64_t place = largest.place[i];
        const auto q = static_cast<int32_t>(std::lrint(x[place] * (127.0f / magnitude)));
        const int32_t high = (q + 64) >> 7;
        large.group = place / 4;
        Input* const four = reinterpret_cast<Input*>(large.high);
        four[place_of(place % 4)] = static_cast<Input>(high);
        values[place_of(place)] = static_cast<Input>(q - 128 * high);
    }
}

// q = round(x * 127 / max |x|), or with large inputs, which are split, round(x * 127 / the largest
// of the others). A row with NaN or infinities gets the scale NaN, so that all its products are
// NaN.
inline void quantise_row(const float* x, int64_t depth, const Int8Rows& out) {
    Vec most[kChains];
    find_magnitudes(x, depth, most);
    float magnitude = magnitude_of(most);
    Largest largest;
    if (out.large != nullptr && !std::isnan(magnitude)) {
        largest = largest_of(x, depth, most);
        // a large one has 128 times the range of others
        magnitude = std::fmax(largest.value[kNumLarge], magnitude / 128.0f);
    }
    const int64_t size = out.stride / int64_t{sizeof(Input)};
    Input* const values = reinterpret_cast<Input*>(out.values);
    if (!(magnitude >= kLeastMagnitude)) {
        *out.scale = std::isnan(magnitude) ? NAN : 0.0f;
        std::memset(out.offset, 0, out.num_offsets * sizeof *out.offset);
        std::memset(values, 0, out.stride);
        if (out.large != nullptr) std::memset(out.large, 0, kNumLarge * sizeof *out.large);
        return;
    }
    *out.scale = magnitude / 127.0f;
    const Vec inverse = broadcast(127.0f / magnitude);
    int64_t k = 0;
    for (; k + kWidth <= depth; k += kWidth) {
        store_rounded(values + k, mul(load(x + k), inverse));
    }
    for (; k < size; k += kWidth) {
        Input block[kWidth];
        store_rounded(block, mul(load_some(x + k, depth - k, 0.0f), inverse));
        std::memcpy(values + k, block, (size - k < kWidth ? size - k : kWidth) * sizeof(Input));
    }
    if (out.large != nullptr) split_large(x, magnitude, largest, out);
    const int64_t span = size / out.num_offsets;
    for (int64_t i = 0; i < out.num_offsets; ++i) {
        out.offset[i] = offset_of(values + i * span, span);
    }
    for (int64_t i = 0; out.large != nullptr && i < kNumLarge; ++i) {
        *out.offset += 128 * offset_of(reinterpret_cast<const Input*>(out.large[i].high), 4);
    }
}

// Rows of int8 and what makes numbers of their products.
struct Int8Inputs {
    Int8Rows rows;
    const float* column_scale;  // of a whole panel of int8
    int64_t depth;              // groups of four, or of those that share a scale
    const char* next;           // weights that come next, or null

    Int8Inputs from(int64_t row) const { return {rows.from(row), column_scale, depth, next}; }
};

// Adds the products of a group of four of kRows rows, for kVecs * kWidth columns.
template <int kRows, int kVecs>
__attribute__((always_inline)) inline void add_group(Sums (&acc)[kRows][kVecs],
                                                     const ByteVec (&weight)[kVecs],
                                                     const Input* const (&row)[kRows],
                                                     int64_t group) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            acc[r][c] = add_products(acc[r][c], weight[c], row[r] + 4 * group);
        }
    }
}

// Fetches one share of as many bytes as kVecs * kWidth columns take.
template <class W, int kVecs, int kShares>
inline void fetch_share(const char* next, int64_t step) {
    constexpr int kBytes = kShares == 0 ? 0 : sizeof(W) * kVecs * kWidth / kShares;
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(next + step * kBytes + i, 0, 2);
}

// Adds the products of the high parts of a row's large inputs, for kWidth columns. They come behind
// the others, when a cache has the panel.
inline Sums add_large(Sums acc, const LargeInput* large, const Bytes* panel, int64_t column) {
    Sums high = broadcast_sums(0);
    for (int64_t i = 0; i < kNumLarge; ++i) {
        const ByteVec weight = load_bytes(panel[large[i].group * kPanel + column].byte);
        high = add_products(high, weight, reinterpret_cast<const Input*>(large[i].high));
    }
    return add_high(acc, high);
}

// y = x W^T for kRows rows and kSumsVecs * kWidth columns; first(row, column) are the sums before.
// Integers are summed exactly, and what follows is the same on every instruction set: products and
// sums are rounded one by one.
template <int kRows, int kShares, class First>
inline void multiply_pass(const Int8Inputs& inputs, const Bytes* panel, int64_t column,
                          const First& first, const Results& to) {
    const Int8Inputs x = inputs;  // copies, which no store can change
    const Results results = to;
    Sums acc[kRows][kSumsVecs];
    const Input* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        row[r] = reinterpret_cast<const Input*>(x.rows.values + r * x.rows.stride);
#pragma GCC unroll 8
        for (int c = 0; c < kSumsVecs; ++c) acc[r][c] = first(r, column + c * kWidth);
    }
    for (int64_t k = 0; k < x.depth; ++k) {
        ByteVec weight[kSumsVecs];
#pragma GCC unroll 8
        for (int c = 0; c < kSumsVecs; ++c) {
            weight[c] = load_bytes(panel[k * kPanel + column + c * kWidth].byte);
        }
        add_group<kRows, kSumsVecs>(acc, weight, row, k);
        fetch_share<Bytes, kSumsVecs, kShares>(x.next, k);
    }
    if (x.rows.large != nullptr) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < kSumsVecs; ++c) {
                acc[r][c] =
                    add_large(acc[r][c], x.rows.large + r * kNumLarge, panel, column + c * kWidth);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        const Vec scale = broadcast(x.rows.scale[r]);
#pragma GCC unroll 8
        for (int c = 0; c < kSumsVecs; ++c) {
            const Vec scales = mul(scale, load(x.column_scale + column + c * kWidth));
            results.put(r, c * kWidth, mul(to_floats(acc[r][c]), scales));
        }
    }
}

// A group of a panel's columns: their scales, and their weights as `LinearParams` says.
struct Int4Block {
    BFloat16 scale[kPanel];
    Bytes pair[kGroup / 8][kPanel];
};
static_assert(sizeof(Int4Block) == kPanel * sizeof(Int4Group) && sizeof(Int4Group) == kGroupBytes);

// Whether kRows rows have too many sums of int4 for the registers: of a group, and of all before.
// They take half as many columns at a time then.
template <int kRows>
constexpr bool kHasManySums = 2 * kRows > kSumsRows;

// Adds to the sums total [kRows, kPanel] those of the groups `begin .. end`, in kVecs * kWidth
// columns, first(row, group) before each.
template <int kRows, int kVecs, int kShares, class First>
inline void add_groups(const Int8Inputs& inputs, const Int4Block* panel, int64_t begin, int64_t end,
                       int64_t column, const First& first, float* total) {
    const Int8Inputs x = inputs;
    Vec sums[kRows][kVecs];
    const Input* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        row[r] = reinterpret_cast<const Input*>(x.rows.values + r * x.rows.stride);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            sums[r][c] = load(total + r * kPanel + column + c * kWidth);
        }
    }
    for (int64_t g = begin; g < end; ++g) {
        const Int4Block& block = panel[g];
        Sums acc[kRows][kVecs];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) acc[r][c] = first(r, g);
        }
        for (int64_t k = 0; k < kGroup / 8; ++k) {
            const Bytes* pair = block.pair[k] + column;
            const int64_t group = g * (kGroup / 4) + 2 * k;
            ByteVec weight[kVecs];
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) weight[c] = load_halves<false>(pair[c * kWidth].byte);
            add_group<kRows, kVecs>(acc, weight, row, group);
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) weight[c] = load_halves<true>(pair[c * kWidth].byte);
            add_group<kRows, kVecs>(acc, weight, row, group + 1);
        }
        fetch_share<Int4Group, kVecs, kShares>(x.next, g - begin);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            // weights were taken 16 times
            const Vec scale = mul(load(block.scale + column + c * kWidth), broadcast(0x1p-4f));
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                sums[r][c] = add(sums[r][c], mul(to_floats(acc[r][c]), scale));
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            store(total + r * kPanel + column + c * kWidth, sums[r][c]);
        }
    }
}

// The same for all columns of a panel and one of the blocks of rows.
template <int kRows, class SumsBefore>
inline void multiply_block(const SumsBefore& sums, const Int8Inputs& x, const Bytes* panel,
                           int64_t row, int64_t block, int64_t num_blocks, PanelResults& results) {
    const auto bytes = static_cast<int64_t>(x.depth * kPanel * sizeof *panel);
    with_shares(block, x.next == nullptr ? 1 : num_blocks, [&](auto shares) {
        constexpr int kShares = shares();
        for (int64_t c = 0; c < kPanel; c += kSumsVecs * kWidth) {
            Int8Inputs own = x.from(row);
            if constexpr (kShares > 0) own.next += (block * bytes + c * bytes / kPanel) / kShares;
            multiply_pass<kRows, kShares>(
                own, panel, c, [&](int r, int64_t place) { return sums(row + r, place); },
                results.of(row).from(c));
        }
    });
}

// The same with int4 weights; sums(row, group) come before.
template <int kRows, class SumsBefore>
inline void multiply_block(const SumsBefore& sums, const Int8Inputs& x, const Int4Group* panel,
                           int64_t row, int64_t block, int64_t num_blocks, PanelResults& results) {
    constexpr int kVecs = kHasManySums<kRows> ? kSumsVecs / 2 : kSumsVecs;
    // groups whose weights stay in the cache while half of the columns after the other is
    // multiplied
    constexpr int64_t kNear = 8;
    const auto* const weight = reinterpret_cast<const Int4Block*>(panel);
    alignas(64) float total[kRows * kPanel] = {};
    const auto first = [&](int r, int64_t group) { return sums(row + r, group); };
    const auto add = [&](int64_t begin, int64_t end, const char* next, auto shares) {
        constexpr int kShares = shares();
        const auto bytes = static_cast<int64_t>((end - begin) * sizeof *weight);
        for (int64_t c = 0; c < kPanel; c += kVecs * kWidth) {
            Int8Inputs own = x.from(row);
            if constexpr (kShares > 0)
                own.next = next + (block * bytes + c * bytes / kPanel) / kShares;
            add_groups<kRows, kVecs, kShares>(own, weight, begin, end, c, first, total);
        }
    };
    if (kHasManySums<kRows> && num_blocks == 1) {
        for (int64_t begin = 0; begin < x.depth; begin += kNear) {
            const int64_t end = begin + kNear < x.depth ? begin + kNear : x.depth;
            // it does not read memory in its order
            const char* next = reinterpret_cast<const char*>(weight + end);
            add(begin, end, next, std::integral_constant<int, kHasManySums<kRows>>());
        }
    } else {
        with_shares(block, x.next == nullptr ? 1 : num_blocks,
                    [&](auto shares) { add(0, x.depth, x.next, shares); });
    }
    const Results to = results.of(row);
    for (int r = 0; r < kRows; ++r) {
        const Vec scale = broadcast(x.rows.scale[row + r]);
        for (int64_t c = 0; c < kPanel; c += kWidth) {
            to.put(r, c, mul(load(total + r * kPanel + c), scale));
        }
    }
}

// The same for the rows `first .. last`; sums(row, column), or sums(row, group), come before.
template <class W, class SumsBefore>
inline void multiply_after(const SumsBefore& sums, const Int8Inputs& x, const W* panel,
                           int64_t first, int64_t last, PanelResults& results) {
    static_assert(kPanel % (kSumsVecs * kWidth) == 0);
    const RowBlocks<kSumsRows> blocks(last - first);
    int64_t block = 0;
    blocks.for_each([&](auto rows, int64_t begin) {
        const int64_t row = first + begin;
        multiply_block<rows()>(sums, x, panel, row, block++, blocks.size(), results);
        results.finish(row, rows());
    });
}

// The same for a whole product.
template <class W>
inline void multiply(const Int8Inputs& x, const W* panel, int64_t first, int64_t last,
                     PanelResults& results) {
    const auto offset = [&](int64_t row, int64_t place) {
        const int64_t group = std::is_same_v<W, Int4Group> ? place : 0;
        return broadcast_sums(x.rows.offset[row * x.rows.num_offsets + group]);
    };
    multiply_after(offset, x, panel, first, last, results);
}
