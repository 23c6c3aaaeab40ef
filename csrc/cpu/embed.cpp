#include "../params/embed.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "../counters.h"
#include "numbers.h"
#include "parallel.h"

namespace pybeam {
namespace {

void check_range(const char* name, int64_t value, int64_t size) {
    if (value >= 0 && value < size) return;
    throw std::runtime_error("embed: `" + std::string(name) + "` must be from 0 to " +
                             std::to_string(size - 1) + ", but is " + std::to_string(value));
}

// Calls body(d, number) for the numbers of one row of a table.
template <class Body>
void read_row(const EmbedParams& p, int64_t token, const Body& body) {
    const int64_t panel = token / kPanel, column = token % kPanel;
    // the first number, and the distance to the next one or to the next group of neighbours
    const auto floats = [&](const auto* table) {
        const auto* row =
            p.is_packed ? table + panel * p.size * kPanel + column : table + token * p.size;
        const int64_t stride = p.is_packed ? kPanel : 1;
        for (int64_t d = 0; d < p.size; ++d) body(d, to_float(row[d * stride]));
    };
    switch (p.type) {
        case WeightType::kFloat32:
            return floats(static_cast<const float*>(p.weight));
        case WeightType::kFloat16:
            return floats(static_cast<const Half*>(p.weight));
        case WeightType::kNarrow:
        case WeightType::kBFloat16: {
            if (!p.is_packed) return floats(static_cast<const BFloat16*>(p.weight));
            const int64_t depth = (p.size + 1) / 2;
            const Pair* row = static_cast<const Pair*>(p.weight) + panel * depth * kPanel + column;
            for (int64_t d = 0; d < p.size; ++d) {
                const Pair pair = row[d / 2 * kPanel];
                body(d, to_float(d % 2 == 0 ? pair.even : pair.odd));
            }
            return;
        }
        case WeightType::kInt8: {
            if (!p.is_packed) {
                const int8_t* row = static_cast<const int8_t*>(p.weight) + token * p.size;
                for (int64_t d = 0; d < p.size; ++d) {
                    body(d, static_cast<float>(row[d]) * p.scale[token]);
                }
                return;
            }
            const int64_t depth = (p.size + 3) / 4;
            const Bytes* row =
                static_cast<const Bytes*>(p.weight) + panel * depth * kPanel + column;
            for (int64_t d = 0; d < p.size; ++d) {
                const int32_t q = int32_t{row[d / 4 * kPanel].byte[d % 4]} - 128;
                body(d, static_cast<float>(q) * p.scale[token]);
            }
            return;
        }
        case WeightType::kInt4:  // no table has it
            return;
    }
}

}  // namespace

void check_embed(const EmbedParams& params) {
    for (int64_t row = 0; row < params.num_rows; ++row) {
        check_range("token", params.token[row], params.vocab_size);
        if (params.num_positions > 0) {
            check_range("position", params.place(row), params.num_positions);
        }
    }
}

void embed_row(const EmbedParams& params, int64_t row) {
    float* y = params.y + row * params.size;
    if (params.num_positions == 0) {
        return read_row(params, params.token[row],
                        [&](int64_t d, float number) { y[d] = number * params.embedding_scale; });
    }
    const float* position = params.position_table + params.place(row) * params.size;
    read_row(params, params.token[row], [&](int64_t d, float number) {
        const float scaled = number * params.embedding_scale;
        y[d] = position[d] + scaled;
    });
}

void launch_embed(const EmbedParams& params) {
    check_embed(params);
    const Counted counted(Kernel::kEmbed,
                          [&] { return KernelWork{4 * 3 * params.num_rows * params.size, 0}; });
    for_rows(params.num_rows, params.size, params.num_threads,
             [&](int64_t row) { embed_row(params, row); });
}

}  // namespace pybeam
