// Vectors of 4 floats in the compiler's own vector types, for any CPU. Included inside a namespace.

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));

constexpr int kWidth = 4;
constexpr int kMaxRows = 2;     // query rows that share a load of a key; bounded by the registers
constexpr int kTurnedRows = 2;  // query rows that share a load of turned keys
constexpr int kPassRows = 2, kPassVecs = 2;  // rows and vectors of sums that fit the registers
constexpr int pass_vecs(int /*rows*/) { return kPassVecs; }

inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec load(const float* x) {
    Vec a;
    std::memcpy(&a, x, sizeof a);
    return a;
}
template <class T>
inline Vec load(const T* x) {
    return Vec{to_float(x[0]), to_float(x[1]), to_float(x[2]), to_float(x[3])};
}
inline void store(float* out, Vec a) { std::memcpy(out, &a, sizeof a); }

typedef uint32_t PairVec __attribute__((vector_size(16)));

inline PairVec broadcast(Pair x) {
    const uint32_t bits = bits_of(x);
    return PairVec{bits, bits, bits, bits};
}
inline PairVec load(const Pair* x) {
    return PairVec{bits_of(x[0]), bits_of(x[1]), bits_of(x[2]), bits_of(x[3])};
}
inline Vec even(PairVec a) { return reinterpret_cast<Vec>(a << 16); }
inline Vec odd(PairVec a) { return reinterpret_cast<Vec>(a & 0xffff0000u); }

inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec sub(Vec a, Vec b) { return a - b; }
inline Vec mul(Vec a, Vec b) { return a * b; }
inline Vec div(Vec a, Vec b) { return a / b; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
// The second argument where either is NaN.
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec round(Vec a) {
    // adding 1.5 * 2^23 leaves no bits for a fraction
    const Vec magic = broadcast(12582912.0f);
    return (a + magic) - magic;
}

// Rounds kWidth numbers between -127 and 127 to nearest, ties to even. Others give any number.
inline void store_rounded(int8_t* out, Vec a) {
    const Vec rounded = round(a);
    for (int i = 0; i < kWidth; ++i) {
        out[i] = static_cast<int8_t>(static_cast<int32_t>(rounded[i]));
    }
}

inline uint32_t lane_bits(IntVec is_set) {
    const IntVec bits = is_set & IntVec{1, 2, 4, 8};
    return static_cast<uint32_t>(bits[0] | bits[1] | bits[2] | bits[3]);
}
// Bit i: lane i of a is greater than lane i of b.
inline uint32_t greater(Vec a, Vec b) { return lane_bits(a > b); }
inline uint32_t greater_equal(Vec a, Vec b) { return lane_bits(a >= b); }

inline float sum(Vec a) { return (a[0] + a[2]) + (a[1] + a[3]); }
inline float largest(Vec a) {
    const float low = a[0] > a[1] ? a[0] : a[1];
    const float high = a[2] > a[3] ? a[2] : a[3];
    return low > high ? low : high;
}

// -|a|.
inline Vec negative_abs(Vec a) {
    return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(a) |
                                 reinterpret_cast<IntVec>(broadcast(-0.0f)));
}

// The larger of a >= 0 and |b|, NaN where either is NaN: bits compare like numbers.
inline Vec larger_magnitude(Vec a, Vec b) {
    const IntVec bits = reinterpret_cast<IntVec>(b) & 0x7fffffff;
    const IntVec most = reinterpret_cast<IntVec>(a);
    return reinterpret_cast<Vec>(bits > most ? bits : most);
}

// a where the sign bit of x is set, b elsewhere.
inline Vec where_negative(Vec x, Vec a, Vec b) {
    const IntVec is_negative = reinterpret_cast<IntVec>(x) >> 31;
    return reinterpret_cast<Vec>((reinterpret_cast<IntVec>(a) & is_negative) |
                                 (reinterpret_cast<IntVec>(b) & ~is_negative));
}

// p * 2^n for integral n >= -126; 0 where x < min_x.
inline Vec scale_by_power(Vec p, Vec n, Vec x, Vec min_x) {
    const IntVec exponent = __builtin_convertvector(n, IntVec) << 23;
    const IntVec scaled = reinterpret_cast<IntVec>(p) + exponent;
    return reinterpret_cast<Vec>(scaled & ~(x < min_x));
}

// f = x / 2^n with 3/4 <= f < 3/2, for positive, normal x.
inline Vec split_power(Vec x, Vec* n) {
    const IntVec base = reinterpret_cast<IntVec>(broadcast(0.75f));
    const IntVec bits = reinterpret_cast<IntVec>(x) - base;
    *n = __builtin_convertvector(bits >> 23, Vec);
    return reinterpret_cast<Vec>((bits & 0x7fffff) + base);
}

// The sums of four vectors.
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
}

// The sum of kWidth terms in the order in which `store_sums` adds lanes; term(i) gives the i-th.
template <class Term>
inline auto sum_lanes(const Term& term) {
    return add(add(term(0), term(2)), add(term(1), term(3)));
}

// Exchanges the rows and the columns of a square of kWidth vectors.
inline void transpose(Vec* row) {
    for (int i = 0; i < kWidth; ++i) {
        for (int j = 0; j < i; ++j) {
            const float other = row[i][j];
            row[i][j] = row[j][i];
            row[j][i] = other;
        }
    }
}
