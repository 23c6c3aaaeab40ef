// Products of int8 rows with a panel of packed int8 weights. Included inside a namespace,
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

// The same where rows are so few that each weight is used at once.
template <int kRows, int kVecs>
__attribute__((always_inline)) inline void add_wide_group(Sums (&acc)[kRows][kVecs],
                                                          const Bytes* weight,
                                                          const Input* const (&row)[kRows],
                                                          int64_t group) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) {
        const ByteVec own = load_bytes(weight[c * kWidth].byte);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            acc[r][c] = add_products(acc[r][c], own, row[r] + 4 * group);
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

// Up to so many rows take a panel in slices of kSliceGroups groups, if that is not 0. A pass over
// some columns jumps over the weights of the others, and memory is read best in its order: so the
// passes over a slice fetch the next one, and a row or two take as many columns at a time as the
// registers hold.
constexpr int kSlicedRows = kSliceGroups > 0 ? 12 : 0;
template <int kRows>
constexpr int kByteVecs = kSlicedRows == 0 || kRows > 2 ? kSumsVecs : kPanel / kWidth / kRows;

// Groups of a panel, and the sums of rows [rows, kPanel] that wait for the groups behind them.
struct ByteSlice {
    const Bytes* panel;
    int64_t begin, end;
    int32_t* waiting;
};

// y = x W^T for kRows rows and kVecs * kWidth columns, as far as the slice goes; first(row, column)
// are the sums before. Integers are summed exactly, and what follows is the same on every
// instruction set: products and sums are rounded one by one.
template <int kRows, int kVecs, int kShares, class First>
inline void multiply_pass(const Int8Inputs& inputs, const ByteSlice& of, int64_t column,
                          const First& first, const Results& to) {
    const Int8Inputs x = inputs;  // copies, which no store can change
    const Results results = to;
    const Bytes* const panel = of.panel;
    const int64_t begin = kSlicedRows > 0 ? of.begin : 0;
    const int64_t end = kSlicedRows > 0 ? of.end : x.depth;
    int32_t* const waiting = kSlicedRows > 0 ? of.waiting + column : nullptr;
    Sums acc[kRows][kVecs];
    const Input* row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        row[r] = reinterpret_cast<const Input*>(x.rows.values + r * x.rows.stride);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            acc[r][c] = first(r, column + c * kWidth);
            if (kSlicedRows > 0 && begin > 0) {
                std::memcpy(&acc[r][c], waiting + r * kPanel + c * kWidth, sizeof(Sums));
            }
        }
    }
    for (int64_t k = begin; k < end; ++k) {
        const Bytes* from = panel + k * kPanel + column;
        if constexpr (kSlicedRows > 0 && kRows < kVecs) {
            add_wide_group<kRows, kVecs>(acc, from, row, k);
        } else {
            ByteVec weight[kVecs];
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) weight[c] = load_bytes(from[c * kWidth].byte);
            add_group<kRows, kVecs>(acc, weight, row, k);
        }
        fetch_share<Bytes, kVecs, kShares>(x.next, k - begin);
    }
    if (kSlicedRows > 0 && end < x.depth) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) {
                std::memcpy(waiting + r * kPanel + c * kWidth, &acc[r][c], sizeof(Sums));
            }
        }
        return;
    }
    if (x.rows.large != nullptr) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int c = 0; c < kVecs; ++c) {
                acc[r][c] =
                    add_large(acc[r][c], x.rows.large + r * kNumLarge, panel, column + c * kWidth);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        const Vec scale = broadcast(x.rows.scale[r]);
#pragma GCC unroll 8
        for (int c = 0; c < kVecs; ++c) {
            const Vec scales = mul(scale, load(x.column_scale + column + c * kWidth));
            results.put(r, c * kWidth, mul(to_floats(acc[r][c]), scales));
        }
    }
}

// The same, never inlined: inside of a larger function GCC 12 has no register for one of the sums.
template <int kRows, int kVecs, int kShares, class First>
__attribute__((noinline)) void multiply_pass_apart(const Int8Inputs& inputs, const ByteSlice& slice,
                                                   int64_t column, const First& first,
                                                   const Results& to) {
    multiply_pass<kRows, kVecs, kShares>(inputs, slice, column, first, to);
}

// The same for all columns of a panel and one of the blocks of rows.
template <int kRows, class SumsBefore>
inline void multiply_block(const SumsBefore& sums, const Int8Inputs& x, const ByteSlice& slice,
                           int64_t row, int64_t block, int64_t num_blocks, PanelResults& results) {
    constexpr int kVecs = kByteVecs<kRows>;
    const auto bytes = static_cast<int64_t>((slice.end - slice.begin) * kPanel * sizeof(Bytes));
    const auto run = [&](auto shares) {
        constexpr int kShares = shares();
        for (int64_t c = 0; c < kPanel; c += kVecs * kWidth) {
            Int8Inputs own = x.from(row);
            if constexpr (kShares > 0) own.next += (block * bytes + c * bytes / kPanel) / kShares;
            const auto first = [&](int r, int64_t place) { return sums(row + r, place); };
            const Results to = results.of(row).from(c);
            if constexpr (kSlicedRows > 0) {
                multiply_pass_apart<kRows, kVecs, kShares>(own, slice, c, first, to);
            } else {
                multiply_pass<kRows, kVecs, kShares>(own, slice, c, first, to);
            }
        }
    };
    if constexpr (kSlicedRows > 0) {
        if (x.next != nullptr && num_blocks == 1) return run(std::integral_constant<int, 1>());
    }
    with_shares(block, x.next == nullptr ? 1 : num_blocks, run);
}

// The same for the rows `first .. last`; sums(row, column) come before.
template <class SumsBefore>
inline void multiply_after(const SumsBefore& sums, const Int8Inputs& x, const Bytes* panel,
                           int64_t first, int64_t last, PanelResults& results) {
    static_assert(kPanel % (kSumsVecs * kWidth) == 0);
    const RowBlocks<kSumsRows> blocks(last - first);
    const auto multiply_part = [&](const ByteSlice& part, const Int8Inputs& own, bool is_last) {
        int64_t block = 0;
        blocks.for_each([&](auto rows, int64_t begin) {
            const int64_t row = first + begin;
            const ByteSlice slice{part.panel, part.begin, part.end, part.waiting + begin * kPanel};
            multiply_block<rows()>(sums, own, slice, row, block++, blocks.size(), results);
            if (is_last) results.finish(row, rows());
        });
    };
    alignas(64) int32_t waiting[kSlicedRows * kPanel + 1];
    if (last - first > kSlicedRows) return multiply_part({panel, 0, x.depth, waiting}, x, true);
    Int8Inputs own = x;
    int64_t begin = 0;
    for (; x.depth - begin > kSliceGroups && kSliceGroups > 0; begin += kSliceGroups) {
        const int64_t end = begin + kSliceGroups;
        own.next = reinterpret_cast<const char*>(panel + end * kPanel);
        multiply_part({panel, begin, end, waiting}, own, false);
    }
    multiply_part({panel, begin, x.depth, waiting}, x, true);
}
