// Rows in blocks whose height the compiler knows. Included inside a namespace.

template <int kRows, class Body>
inline void with_rows(int64_t rows, const Body& body) {
    if constexpr (kRows > 1) {
        if (rows < kRows) return with_rows<kRows - 1>(rows, body);
    }
    body(std::integral_constant<int, kRows>());
}

// Splits rows into blocks of similar height, at most kMost: 7 rows become 4 and 3 if kMost is 6,
// not 6 and 1.
template <int kMost>
struct RowBlocks {
    explicit RowBlocks(int64_t rows) : num_rows(rows) {
        const int64_t blocks = (rows + kMost - 1) / kMost;
        height = blocks == 0 ? 0 : (rows + blocks - 1) / blocks;
        num_higher = rows - blocks * (height - 1);
    }

    // Calls body(rows, first) for every block, with `rows` a std::integral_constant.
    template <class Body>
    void for_each(const Body& body) const {
        int64_t left = num_higher;
        for (int64_t first = 0; first < num_rows; --left) {
            const int64_t rows = left > 0 ? height : height - 1;
            with_rows<kMost>(rows, [&](auto constant) { body(constant, first); });
            first += rows;
        }
    }

    int64_t size() const { return height == 0 ? 0 : (num_rows + height - 1) / height; }

    int64_t num_rows;
    int64_t height;  // rows in each of the first `num_higher` blocks; the others have one row less
    int64_t num_higher;
};

// While one block of rows reads weights from memory, the others read them from a cache, and memory
// would idle. So the first blocks fetch a share each of the weights that come next. Calls
// body(shares) with the number of shares as a std::integral_constant, 0 for a block that fetches
// nothing. A block alone reads all the time.
template <class Body>
inline void with_shares(int64_t block, int64_t num_blocks, const Body& body) {
    if (num_blocks >= 4 && block < 4) return body(std::integral_constant<int, 4>());
    if (num_blocks > 1 && num_blocks < 4 && block < 2) {
        return body(std::integral_constant<int, 2>());
    }
    body(std::integral_constant<int, 0>());
}
