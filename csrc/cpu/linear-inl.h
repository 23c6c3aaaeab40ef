// Rows times a panel of packed weights, and what follows a product. Included inside a namespace,
// after the products.

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

// y = f(sums + bias), or y += sums + bias, in the columns of one panel. The sums are lost.
struct Epilogue {
    Epilogue(const LinearParams& params, int64_t panel)
        : params(params),
          column(panel * kPanel),
          num_columns(params.num_columns - column < kPanel ? params.num_columns - column : kPanel),
          bias(params.bias, column, num_columns) {}

    void operator()(int64_t first, int64_t num_rows, float* sums) const {
        if (bias.data != nullptr) {
            for (int64_t i = 0; i < num_rows * kPanel; i += kWidth) {
                store(sums + i, add(load(sums + i), load(bias.data + i % kPanel)));
            }
        }
        activate(params.activation, num_rows, sums, kPanel);
        for (int64_t r = 0; r < num_rows; ++r) {
            float* y = params.y + (first + r) * params.num_columns + column;
            const float* sum = sums + r * kPanel;
            if (num_columns < kPanel) {
                for (int64_t c = 0; c < num_columns; ++c)
                    y[c] = sum[c] + (params.adds ? y[c] : 0.0f);
                continue;
            }
            for (int64_t c = 0; c < kPanel; c += kWidth) {
                store(y + c, params.adds ? add(load(sum + c), load(y + c)) : load(sum + c));
            }
        }
    }

    const LinearParams& params;
    int64_t column, num_columns;
    PanelColumns bias;
};

// Rows `first .. last` times one whole panel.
template <class X, class W>
inline void multiply_rows(const LinearParams& params, int64_t panel, int64_t first, int64_t last) {
    const Epilogue epilogue(params, panel);
    // one W holds as many numbers of a column
    constexpr int64_t kNumbers = std::is_same_v<W, Bytes> ? 4 : std::is_same_v<W, Pair> ? 2 : 1;
    const int64_t depth = (params.depth + kNumbers - 1) / kNumbers;
    const W* weight = static_cast<const W*>(params.weight) + panel * depth * kPanel;
    const auto finish = [&](int64_t row, int64_t rows, float* sums) {
        epilogue(first + row, rows, sums);
    };
    if constexpr (std::is_same_v<W, Bytes>) {
        const PanelColumns scale(params.scale, epilogue.column, epilogue.num_columns);
        const Int8Inputs x{params.int8_x, scale.data, depth};
        multiply(x.from(first), last - first, weight, finish);
    } else {
        Inputs<X> x{static_cast<const X*>(params.rounded_x), depth * kInputs<X, W>};
        if constexpr (!std::is_same_v<W, Pair>) x = {params.x, params.x_stride};
        multiply(x.from(first, 0), last - first, weight, depth, finish);
    }
}
