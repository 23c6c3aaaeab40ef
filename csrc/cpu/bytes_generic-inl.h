// Products of groups of four int8, for any CPU. Included inside a namespace, after the vectors.

constexpr int kSumsWidth = 4;                // columns of one `Sums`
constexpr int kSumsRows = 2, kSumsVecs = 4;  // rows and sums that fit the registers

typedef int32_t Sums __attribute__((vector_size(16)));

// Weights of kSumsWidth columns.
struct ByteVec {
    const uint8_t* byte;
};

inline ByteVec load_bytes(const uint8_t* weight) { return {weight}; }

// acc + the sums of the four products of every column.
inline Sums add_products(Sums acc, ByteVec weight, const int8_t* x) {
    for (int c = 0; c < kSumsWidth; ++c) {
        int32_t sum = 0;
        for (int k = 0; k < 4; ++k) sum += (int32_t{weight.byte[4 * c + k]} - 128) * x[k];
        acc[c] += sum;
    }
    return acc;
}

inline Sums no_sums() { return Sums{0, 0, 0, 0}; }
inline void store_sums(int32_t* out, Sums a) { std::memcpy(out, &a, sizeof a); }

// Whether products are those of weights + 128, so that 128 times the sum of x must be taken away.
constexpr bool kIsBiased = false;
