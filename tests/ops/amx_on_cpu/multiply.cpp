// AMX's product of int8, with its tiles played by plain C++: the instructions it uses behave as
// Intel's manual says, and find fault where they would raise an exception or touch memory of
// others.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace {

struct Machine {
    uint8_t config[64] = {};  // as `ldtilecfg` takes it; zeros: released
    uint8_t tile[8][16][64];
    std::vector<std::pair<const void*, const void*>> readable;
    bool has_fault = false;
    int64_t products = 0;

    int row_bytes(int t) const { return config[16 + 2 * t] + 256 * config[17 + 2 * t]; }
    int rows(int t) const { return config[48 + t]; }
    void check(bool is_right) { has_fault = has_fault || !is_right; }
    void use(int t) { check(config[0] == 1 && rows(t) > 0 && row_bytes(t) > 0); }

    void configure(const void* from) {
        std::memcpy(config, from, sizeof config);
        check(config[0] == 1 && reinterpret_cast<uintptr_t>(from) % 64 == 0);
        for (int i = 1; i < 16; ++i) check(config[i] == 0);
        for (int t = 0; t < 8; ++t) check(rows(t) <= 16 && row_bytes(t) <= 64);
        std::memset(tile, 0, sizeof tile);
    }
    void release() { std::memset(config, 0, sizeof config); }
    void zero(int t) {
        use(t);
        std::memset(tile[t], 0, sizeof tile[t]);
    }
    void load(int t, const void* base, int64_t stride) {
        use(t);
        for (int r = 0; r < rows(t); ++r) {
            const char* row = static_cast<const char*>(base) + r * stride;
            check(std::any_of(readable.begin(), readable.end(), [&](auto memory) {
                return row >= memory.first && row + row_bytes(t) <= memory.second;
            }));
            if (!has_fault) std::memcpy(tile[t][r], row, row_bytes(t));
        }
    }
    void store(int t, void* base, int64_t stride) {
        use(t);
        for (int r = 0; r < rows(t); ++r) {
            std::memcpy(static_cast<char*>(base) + r * stride, tile[t][r], row_bytes(t));
        }
    }
    // Signed bytes of a times unsigned bytes of b.
    void multiply(int to, int a, int b) {
        for (int t : {to, a, b}) use(t);
        check(rows(to) == rows(a) && row_bytes(to) == row_bytes(b) && row_bytes(a) == 4 * rows(b));
        check(to != a && to != b && a != b);
        ++products;
        for (int m = 0; m < rows(to); ++m) {
            for (int n = 0; n < row_bytes(to) / 4; ++n) {
                int32_t sum;
                std::memcpy(&sum, tile[to][m] + 4 * n, 4);
                for (int k = 0; k < row_bytes(a); ++k) {
                    sum += static_cast<int8_t>(tile[a][m][k]) * tile[b][k / 4][4 * n + k % 4];
                }
                std::memcpy(tile[to][m] + 4 * n, &sum, 4);
            }
        }
    }
};

Machine machine;

}  // namespace

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig(from) machine.configure(from)
#define _tile_release() machine.release()
#define _tile_zero(t) machine.zero(t)
#define _tile_loadd(t, base, stride) machine.load(t, base, stride)
#define _tile_stored(t, base, stride) machine.store(t, base, stride)
#define _tile_dpbsud(to, a, b) machine.multiply(to, a, b)

#include "cpu/amx_int8.cpp"

// of select.cpp, and never called here
float pybeam::keep_largest(Key*, int64_t, int64_t) { return 0.0f; }

// The rows `first .. last` of y = x W^T, or of y += x W^T, where every scale is 1. Returns how many
// products tiles did, or -1 after a fault or if tiles are left behind.
extern "C" int64_t multiply(int8_t* x, int32_t* offset, pybeam::LargeInput* large,
                            const uint8_t* weight, float* y, bool adds, int64_t depth,
                            int64_t num_columns, int64_t first, int64_t last) {
    using namespace pybeam;
    const int64_t stride = (depth + 3) / 4 * 4, panels = (num_columns + kPanel - 1) / kPanel;
    std::vector<float> ones(std::max(last, num_columns), 1.0f);
    LinearParams params{};
    params.int8_x = {x, stride, ones.data(), offset, 1, large};
    params.weight = weight;
    params.weight_type = WeightType::kInt8;
    params.scale = ones.data();
    params.y = y;
    params.num_rows = last;
    params.depth = depth;
    params.num_columns = num_columns;
    params.adds = adds;
    machine = Machine();
    machine.readable = {{x, x + last * stride}, {weight, weight + panels * kPanel * stride}};
    for (int64_t panel = 0; panel < panels; ++panel) {
        kAmxInt8Kernels.multiply_rows[static_cast<int>(WeightType::kInt8)](params, panel, first,
                                                                           last);
    }
    return machine.has_fault || machine.config[0] != 0 ? -1 : machine.products;
}
