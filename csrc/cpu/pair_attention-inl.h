// Attention whose products are those of bfloat16 pairs: queries, keys, values and weights are
// rounded, sums and softmax are float32. Keys and values are packed into panels, as weights of
// products are. A score is one chain over the numbers of a head and a result one over the cells, so
// a row's results do not depend on the rows beside it. Included inside a namespace, after the
// products.

static_assert(kPassRows <= kPairRows);

// Rounds x [size] to pairs, with zeros up to `room` of them.
inline void round_pairs(const float* x, int64_t size, int64_t room, Pair* pairs) {
    if constexpr (std::is_same_v<RoundedX, Pair>) {
        round_row(x, size, pairs);
    } else {
        auto* const numbers = reinterpret_cast<BFloat16*>(pairs);
        round_cell(x, size, numbers);
        if (size % 2 != 0) numbers[size] = {};
    }
    std::memset(pairs + (size + 1) / 2, 0, (room - (size + 1) / 2) * sizeof(Pair));
}

// Packs the keys of a head: [panels of cells, pairs of numbers, kPanel]. The first cell fills the
// last vector.
inline void pack_keys(const TaskView<float, float>& view, int64_t h, Pair* rounded, Pair* panels) {
    const int64_t size = view.params.head_size, num_pairs = (size + 1) / 2;
    const int64_t room = padded(num_pairs);
    for (int64_t begin = 0; begin < view.num_cells; begin += kWidth) {
        const int32_t* cell = view.cell + begin;
        const int64_t num_cells = view.tile_size(begin, kWidth);
        for (int64_t i = 0; i < kWidth; ++i) {
            const int64_t place = int64_t{cell[i < num_cells ? i : 0]};
            round_pairs(view.key(h) + place * view.params.key_cell_stride, size, room,
                        rounded + i * room);
        }
        Pair* to = panels + begin / kPanel * num_pairs * kPanel + begin % kPanel;
        for (int64_t j = 0; j < num_pairs; j += kWidth) {
            Vec square[kWidth];
            for (int64_t i = 0; i < kWidth; ++i) {
                std::memcpy(square + i, rounded + i * room + j, sizeof(Vec));
            }
            transpose(square);
            const int64_t count = std::min<int64_t>(kWidth, num_pairs - j);
            for (int64_t i = 0; i < count; ++i) {
                std::memcpy(to + (j + i) * kPanel, square + i, sizeof(Vec));
            }
        }
    }
}

// Packs the values of a head: [panels of numbers, pairs of cells, kPanel].
inline void pack_values(const TaskView<float, float>& view, int64_t h, Pair* rounded,
                        Pair* panels) {
    const int64_t size = view.params.head_size, num_pairs = (view.num_cells + 1) / 2;
    const int64_t room = padded(size);  // numbers
    auto* const even = reinterpret_cast<BFloat16*>(rounded);
    auto* const odd = even + room;
    const auto round_value = [&](int64_t u, BFloat16* to) {
        if (u == view.num_cells) {
            std::memset(to, 0, room * sizeof(BFloat16));
            return;
        }
        const float* value = view.value(h) + view.cell[u] * view.params.value_cell_stride;
        round_pairs(value, size, room / 2, reinterpret_cast<Pair*>(to));
    };
    for (int64_t c = 0; c < num_pairs; ++c) {
        round_value(2 * c, even);
        round_value(2 * c + 1, odd);
        for (int64_t first = 0; first < room; first += kPanel) {
            Pair* to = panels + (first * num_pairs + c * kPanel);
            const int64_t count = std::min<int64_t>(kPanel, room - first);
            for (int64_t d = 0; d < count; ++d) to[d] = {even[first + d], odd[first + d]};
        }
    }
}

// y = x W^T for kRows rows and the first columns of one panel, which are whole vectors.
template <int kRows, int kVecs = pass_vecs(kRows)>
inline void multiply_columns(const Inputs<RoundedX>& x, const Pair* panel, int64_t num_pairs,
                             int64_t num_columns, float* y, int64_t stride) {
    constexpr int64_t kColumns = kVecs * kWidth;
    int64_t c = 0;
    for (; c + kColumns <= num_columns; c += kColumns) {
        const Pass<Pair> pass{panel + c, num_pairs, nullptr, y, nullptr};
        multiply_pass<kRows, kVecs, false, 0>(x, pass,
                                              Results{y + c, stride, nullptr, nullptr, false});
    }
    if constexpr (kVecs > 1) {
        if (c == num_columns) return;
        multiply_columns<kRows, kVecs / 2>(x, panel + c, num_pairs, num_columns - c, y + c, stride);
    }
}

// The same for all columns, in panels.
template <int kRows>
inline void multiply_panels(const Inputs<RoundedX>& x, const Pair* panels, int64_t num_pairs,
                            int64_t num_columns, float* y, int64_t stride) {
    for (int64_t first = 0; first < num_columns; first += kPanel) {
        multiply_columns<kRows>(x, panels + first * num_pairs, num_pairs,
                                std::min<int64_t>(kPanel, num_columns - first), y + first, stride);
    }
}

// Every row sees all cells of its source.
void attend_pairs(const TreeAttentionParams& params, const AttendTask& task, float* scratch) {
    const TaskView<float, float> view(params, task);
    const int64_t num_cells = view.num_cells, head_size = params.head_size;
    const int64_t size = padded(head_size), stride = padded(num_cells);
    const int64_t key_pairs = (head_size + 1) / 2, value_pairs = (num_cells + 1) / 2;
    const auto floats = [&](int64_t count) {
        float* const taken = scratch;
        scratch += count;
        return taken;
    };
    auto* const keys = reinterpret_cast<Pair*>(floats(num_panels(num_cells) * kPanel * key_pairs));
    auto* const values =
        reinterpret_cast<Pair*>(floats(num_panels(head_size) * kPanel * value_pairs));
    auto* const rounded = reinterpret_cast<Pair*>(floats(kWidth * size));
    auto* const query = reinterpret_cast<RoundedX*>(floats(kPairRows * size));
    auto* const weights = reinterpret_cast<RoundedX*>(floats(kPairRows * stride));
    float* const scores = floats(kPairRows * stride);
    float* const out = floats(kPairRows * size);
    auto* const cell_position = reinterpret_cast<int32_t*>(floats(num_cells));
    read_positions(view, cell_position);
    for (int64_t h = 0; h < view.num_heads; ++h) {
        pack_keys(view, h, rounded, keys);
        pack_values(view, h, rounded, values);
        RowBlocks<kPassRows>(view.num_rows).for_each([&](auto rows, int64_t first) {
            for (int64_t r = 0; r < rows(); ++r) {
                copy_query(view.query(h, first + r), head_size, params.scale, out);
                round_row(out, head_size, query + r * size);
            }
            multiply_panels<rows()>({query, size}, keys, key_pairs, stride, scores, stride);
            float inverse[rows()];
            for (int64_t r = 0; r < rows(); ++r) {
                float* const own = scores + r * stride;
                change_scores(view, h * view.num_rows + first + r, cell_position, num_cells, own);
                inverse[r] = exp_scores(own, num_cells);
                round_row(own, num_cells, weights + r * stride);
            }
            multiply_panels<rows()>({weights, stride}, values, value_pairs, size, out, size);
            for (int64_t r = 0; r < rows(); ++r) {
                float* const result = view.out(h, first + r);
                for (int64_t d = 0; d < head_size; ++d) result[d] = out[r * size + d] * inverse[r];
            }
        });
    }
}
