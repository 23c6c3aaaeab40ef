// Products of int8 rows with a panel of packed int8 weights by AMX, for 16 rows and more. Included
// inside a namespace, after the kernels.
//
// 16 groups of four weights of 16 columns are a tile as they lie in the panel, and 16 groups of
// four inputs of 16 rows are one as they lie in the rows. Sums of integers are exact, so tiles and
// vectors give the same bits, and each may do the rows that it does faster.

constexpr int64_t kTile = 16;              // rows of any tile, and its groups of four bytes
constexpr int kColumnTiles = kPanel / 16;  // of a panel

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t num_rows[16] = {};
};

constexpr TileConfig whole_tiles() {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = 4 * kTile;
        config.num_rows[tile] = kTile;
    }
    return config;
}

// A thread has tiles while one of these lives. Later the kernel need not save them when it switches
// to another thread.
class Tiles {
  public:
    Tiles() {
        static constexpr TileConfig kConfig = whole_tiles();
        _tile_loadconfig(&kConfig);
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() { _tile_release(); }

    // sums [kTile, kPanel] = x W^T for kTile rows and `depth` groups, a multiple of kTile.
    void sum(const Int8Rows& x, const Bytes* panel, int64_t depth, int32_t* sums) const {
        static_assert(kColumnTiles == 4);
        constexpr int64_t kStride = 4 * kPanel;  // bytes of the panel and of the sums
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < depth; k += kTile) {
            const Bytes* weight = panel + k * kPanel;
            _tile_loadd(4, x.values + 4 * k, x.stride);
            _tile_loadd(5, weight, kStride);
            _tile_dpbsud(0, 4, 5);
            _tile_loadd(6, weight + kTile, kStride);
            _tile_dpbsud(1, 4, 6);
            _tile_loadd(7, weight + 2 * kTile, kStride);
            _tile_dpbsud(2, 4, 7);
            _tile_loadd(5, weight + 3 * kTile, kStride);
            _tile_dpbsud(3, 4, 5);
        }
        _tile_stored(0, sums, kStride);
        _tile_stored(1, sums + kTile, kStride);
        _tile_stored(2, sums + 2 * kTile, kStride);
        _tile_stored(3, sums + 3 * kTile, kStride);
    }
};

// `multiply_rows` for int8 weights. Fewer rows than a tile has are done by vectors: they wait for
// the weights to be read, and a tile would be partly empty.
void multiply_rows_in_tiles(const LinearParams& params, int64_t panel, int64_t first,
                            int64_t last) {
    if (last - first < kTile) return multiply_rows<float, Bytes>(params, panel, first, last);
    const int64_t depth = (params.depth + 3) / 4, in_tiles = depth / kTile * kTile;
    const Bytes* weight = static_cast<const Bytes*>(params.weight) + panel * depth * kPanel;
    PanelResults results(params, panel);
    Int8Inputs rest{params.int8_x, results.scale(), depth - in_tiles};
    rest.rows.values += 4 * in_tiles;
    rest.rows.large = nullptr;  // they may stand in groups of tiles
    alignas(64) int32_t sums[kTile * kPanel];
    const Tiles tiles;
    for (int64_t row = first; row < last; row += kTile) {
        // the last tile begins earlier where rows are left over, but their results are made once
        const int64_t start = row < last - kTile ? row : last - kTile;
        tiles.sum(params.int8_x.from(start), weight, in_tiles, sums);
        const auto before = [&](int64_t own, int64_t column) {
            const Sums all =
                _mm512_add_epi32(broadcast_sums(params.int8_x.offset[own]),
                                 _mm512_load_si512(sums + (own - start) * kPanel + column));
            const LargeInput* large = params.int8_x.large;
            return large == nullptr ? all : add_large(all, large + own * kNumLarge, weight, column);
        };
        multiply_after(before, rest, weight + in_tiles * kPanel, row,
                       row + kTile < last ? row + kTile : last, results);
    }
}
