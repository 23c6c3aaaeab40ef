// Products of rows with a panel of packed weights. Included inside a namespace, after the int8
// products.

// Columns of a panel that one pass over the depth computes.
constexpr int64_t kPassColumns = kPassVecs * kWidth;
static_assert(kPanel % kPassColumns == 0);

// The rows to multiply: numbers, or pairs of numbers if the weights are pairs.
template <class X>
struct Inputs {
    const X* data;
    int64_t stride;
    int64_t depth;

    Inputs from(int64_t row) const { return {data + row * stride, stride, depth}; }
};

template <class W>
inline auto inputs(const LinearParams& params, const float* column_scale) {
    if constexpr (std::is_same_v<W, Bytes>) {
        return Int8Inputs{params.int8_x, column_scale, (params.depth + 3) / 4};
    } else if constexpr (std::is_same_v<W, Pair>) {
        const int64_t depth = (params.depth + 1) / 2;
        return Inputs<Pair>{params.rounded_x, depth, depth};
    } else {
        return Inputs<float>{params.x, params.x_stride, params.depth};
    }
}

// y = x W^T for kRows rows and kPassColumns columns. Every sum runs over the depth in order,
// whatever kRows is, so a row's result does not depend on the rows beside it.
template <int kRows, class X, class W>
inline void multiply_pass(const Inputs<X>& x, const W* panel, const float* bias,
                          const float* residual, float* y, int64_t y_stride) {
    Vec acc[kRows][kPassVecs];
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kPassVecs; ++c) acc[r][c] = broadcast(0.0f);
    }
    const X* row[kRows];
    for (int r = 0; r < kRows; ++r) row[r] = x.data + r * x.stride;
    for (int64_t k = 0; k < x.depth; ++k) {
        decltype(load(panel)) weight[kPassVecs];
        for (int c = 0; c < kPassVecs; ++c) weight[c] = load(panel + k * kPanel + c * kWidth);
        for (int r = 0; r < kRows; ++r) {
            const auto value = broadcast(row[r][k]);
            for (int c = 0; c < kPassVecs; ++c) acc[r][c] = fma(value, weight[c], acc[r][c]);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kPassVecs; ++c) {
            const int64_t i = r * y_stride + c * kWidth;
            Vec sum = acc[r][c];
            if (bias != nullptr) sum = add(sum, load(bias + c * kWidth));
            if (residual != nullptr) sum = add(sum, load(residual + i));
            store(y + i, sum);
        }
    }
}

// The same for all columns of a panel.
template <int kRows, class X, class W>
inline void multiply_block(const Inputs<X>& x, const W* panel, const float* bias,
                           const float* residual, float* y, int64_t y_stride) {
    for (int64_t c = 0; c < kPanel; c += kPassColumns) {
        multiply_pass<kRows>(x, panel + c, bias == nullptr ? nullptr : bias + c,
                             residual == nullptr ? nullptr : residual + c, y + c, y_stride);
    }
}

// Numbers of the columns of one panel, with zeros behind the last column, where memory belongs to
// others. Null stays null.
struct PanelColumns {
    PanelColumns(const float* numbers, int64_t column, int64_t num_columns)
        : data(numbers == nullptr ? nullptr : numbers + column) {
        if (data == nullptr || num_columns == kPanel) return;
        for (int64_t c = 0; c < kPanel; ++c) copy[c] = c < num_columns ? data[c] : 0.0f;
        data = copy;
    }
    PanelColumns(const PanelColumns&) = delete;

    const float* data;
    float copy[kPanel];
};

// Most rows that the registers hold the sums of.
template <class W>
constexpr int kMostPassRows = std::is_same_v<W, Bytes> ? kSumsRows : kPassRows;

// Rows `first .. last` times one whole panel.
template <class W>
inline void multiply_rows(const LinearParams& params, int64_t panel, int64_t first, int64_t last) {
    constexpr int kMostRows = kMostPassRows<W>;
    const int64_t column = panel * kPanel;
    const int64_t num_columns =
        params.num_columns - column < kPanel ? params.num_columns - column : kPanel;
    const PanelColumns bias(params.bias, column, num_columns);
    const PanelColumns scale(params.scale, column, num_columns);
    const auto all = inputs<W>(params, scale.data);
    const W* weight = static_cast<const W*>(params.weight) + panel * all.depth * kPanel;
    float y_copy[kMostRows * kPanel];
    RowBlocks<kMostRows>(last - first).for_each([&](auto rows, int64_t begin) {
        const auto x = all.from(first + begin);
        float* y = params.y + (first + begin) * params.num_columns + column;
        if (num_columns == kPanel) {
            multiply_block<rows()>(x, weight, bias.data, params.adds ? y : nullptr, y,
                                   params.num_columns);
            activate(params.activation, rows(), y, params.num_columns);
            return;
        }
        multiply_block<rows()>(x, weight, bias.data, nullptr, y_copy, kPanel);
        activate(params.activation, rows(), y_copy, kPanel);
        for (int64_t r = 0; r < rows(); ++r) {
            for (int64_t c = 0; c < num_columns; ++c) {
                float& out = y[r * params.num_columns + c];
                out = y_copy[r * kPanel + c] + (params.adds ? out : 0.0f);
            }
        }
    });
}
