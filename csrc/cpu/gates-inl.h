// Gated units, one row. Included inside a namespace, after the activations.

inline void glu_row(const GluParams& params, int64_t row) {
    const float* x = params.x + row * params.x_stride;
    float* y = params.y + row * params.size;
    for_columns(params.size, [&](int64_t column, int64_t count) {
        const Vec gate = load_some(x + params.size + column, count);
        store_some(y + column, count, mul(load_some(x + column, count), sigmoid(gate)));
    });
}

// y = f(gate) value; y may be one of them.
inline void gate_row(Activation activation, const float* gate, const float* value, int64_t size,
                     float* y) {
    with_function(activation, [&](auto function) {
        for_columns(size, [&](int64_t column, int64_t count) {
            const Vec of_gate = function.of(load_some(gate + column, count));
            store_some(y + column, count, mul(of_gate, load_some(value + column, count)));
        });
    });
}

inline void lstm_row(const LstmCellParams& params, int64_t row) {
    const int64_t size = params.size;
    const float* gates = params.gates + row * params.gates_stride;
    const float* cell = params.cell + row * params.cell_stride;
    for_columns(size, [&](int64_t column, int64_t count) {
        const auto gate = [&](int64_t i) { return load_some(gates + i * size + column, count); };
        const Vec kept = mul(sigmoid(gate(1)), load_some(cell + column, count));
        const Vec next = fma(sigmoid(gate(0)), tanh(gate(2)), kept);
        store_some(params.cell_out + row * size + column, count, next);
        store_some(params.hidden_out + row * size + column, count,
                   mul(sigmoid(gate(3)), tanh(next)));
    });
}
