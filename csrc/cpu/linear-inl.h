// Rows times a panel of packed weights. Included inside a namespace, after the products.

// Numbers of one column that stand together.
template <class W>
constexpr int64_t kTogether = std::is_same_v<W, Int4Group> ? kGroup
                              : std::is_same_v<W, Bytes>   ? 4
                              : std::is_same_v<W, Pair>    ? 2
                                                           : 1;

// Rows `first .. last` times one whole panel.
template <class X, class W>
inline void multiply_rows(const LinearParams& params, int64_t panel, int64_t first, int64_t last) {
    const int64_t depth = (params.depth + kTogether<W> - 1) / kTogether<W>;
    const W* weight = static_cast<const W*>(params.weight) + panel * depth * kPanel;
    PanelResults results(params, panel);
    if constexpr (std::is_same_v<W, Bytes> || std::is_same_v<W, Int4Group>) {
        // the next panel is this thread's, unless another task begins there
        const bool is_last = params.panels_of_task == 0 || (panel + 1) % params.panels_of_task == 0;
        const char* next =
            is_last ? nullptr : reinterpret_cast<const char*>(weight + depth * kPanel);
        multiply({params.int8_x, results.scale(), depth, next}, weight, first, last, results);
    } else if constexpr (std::is_same_v<W, Pair>) {
        const Inputs<X> x{static_cast<const X*>(params.rounded_x), depth * kInputs<X, W>};
        multiply(x, weight, depth, first, last, results);
    } else {
        multiply(Inputs<X>{params.x, params.x_stride}, weight, depth, first, last, results);
    }
}

// The same with float32 weights that are kept as pairs of bfloat16, and float32 rows.
inline void multiply_narrow(const LinearParams& params, int64_t panel, int64_t first,
                            int64_t last) {
    const int64_t depth = params.depth / 2;
    const Pair* weight = static_cast<const Pair*>(params.weight) + panel * depth * kPanel;
    PanelResults results(params, panel);
    multiply(Inputs<float>{params.x, params.x_stride}, weight, depth, first, last, results);
}
