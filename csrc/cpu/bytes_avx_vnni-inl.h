// Products of groups of four int8 by AVX-VNNI. Included inside a namespace, after the vectors.

// One `Sums` has kWidth columns.
constexpr int kSumsRows = 6, kSumsVecs = 2;  // rows and sums that fit the registers
constexpr int kSliceGroups = 0;              // a panel is not cut into slices

using Input = int8_t;
// Where input k stands among the integers of its row.
constexpr int64_t place_of(int64_t k) { return k; }
using Sums = __m256i;
using ByteVec = __m256i;

inline ByteVec load_bytes(const uint8_t* weight) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight));
}

// The weights of the low or the high halves, each as 16 times weight + 128.
template <bool kHigh>
inline ByteVec load_halves(const uint8_t* weight) {
    const __m256i bytes = load_bytes(weight);
    return _mm256_and_si256(kHigh ? bytes : _mm256_slli_epi16(bytes, 4), _mm256_set1_epi8(-16));
}

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, __m256i x) {
    // not the intrinsic, around which GCC 12 copies the sums from register to register
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(weight), "x"(x));
    return acc;
}
inline Sums add_products(Sums acc, ByteVec weight, const Input* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return add_products(acc, weight, _mm256_set1_epi32(four));
}

inline Sums broadcast_sums(int32_t x) { return _mm256_set1_epi32(x); }
// a + 128 b.
inline Sums add_high(Sums a, Sums b) { return _mm256_add_epi32(a, _mm256_slli_epi32(b, 7)); }
inline Vec to_floats(Sums a) { return _mm256_cvtepi32_ps(a); }

// Products are those of weights + 128, so sums begin at -128 times the sum of x.
inline int32_t offset_of(const Input* x, int64_t size) {
    const ByteVec ones = _mm256_set1_epi8(1);
    Sums total = broadcast_sums(0);
    int64_t k = 0;
    for (; k + 4 * kWidth <= size; k += 4 * kWidth) {
        total =
            add_products(total, ones, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k)));
    }
    auto of_all = static_cast<int32_t>(sum(to_floats(total)));  // exact: small integers
    for (; k < size; ++k) of_all += x[k];
    return -128 * of_all;
}
