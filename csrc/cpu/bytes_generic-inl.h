// Products of groups of four int8, for any CPU. Included inside a namespace, after the vectors.

// One `Sums` has kWidth columns.
constexpr int kSumsRows = 2, kSumsVecs = 4;  // rows and sums that fit the registers
constexpr int kSliceGroups = 0;              // a panel is not cut into slices

using Input = int8_t;
// Where input k stands among the integers of its row.
constexpr int64_t place_of(int64_t k) { return k; }
typedef int32_t Sums __attribute__((vector_size(16)));

// Weights of kWidth columns.
struct ByteVec {
    uint8_t byte[4 * kWidth];
};

inline ByteVec load_bytes(const uint8_t* weight) {
    ByteVec bytes;
    std::memcpy(bytes.byte, weight, sizeof bytes);
    return bytes;
}

// The weights of the low or the high halves, each as 16 times weight + 128.
template <bool kHigh>
inline ByteVec load_halves(const uint8_t* weight) {
    ByteVec bytes = load_bytes(weight);
    for (uint8_t& byte : bytes.byte) byte = static_cast<uint8_t>(kHigh ? byte & 0xf0 : byte << 4);
    return bytes;
}

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, const Input* x) {
    for (int c = 0; c < kWidth; ++c) {
        int32_t sum = 0;
        for (int k = 0; k < 4; ++k) sum += (int32_t{weight.byte[4 * c + k]} - 128) * x[k];
        acc[c] += sum;
    }
    return acc;
}

inline Sums broadcast_sums(int32_t x) { return Sums{x, x, x, x}; }
// a + 128 b.
inline Sums add_high(Sums a, Sums b) { return a + b * 128; }
inline Vec to_floats(Sums a) { return __builtin_convertvector(a, Vec); }

// Sums begin at zero.
inline int32_t offset_of(const Input* /*x*/, int64_t /*size*/) { return 0; }
