// The table of one instruction set. Included inside a namespace, last.

// constexpr: a table filled at load time would run this file's instructions on every CPU
constexpr Kernels make_kernels(const char* name) {
    return Kernels{name,
                   kWidth,
                   {&scan_row<float>, &scan_row<BFloat16>, &scan_row<Half>},
                   {&collect_row<float>, &collect_row<BFloat16>, &collect_row<Half>},
                   {&attend<float>, &attend<BFloat16>, &attend<Half>},
                   {&multiply_rows<float>, &multiply_rows<Pair>, &multiply_rows<Half>},
                   &round_row,
                   &normalise_row,
                   &glu_row,
                   &lstm_row,
                   &mix_row};
}
