// The inner kernels of one instruction set and their table. Included inside a namespace, after the
// vectors, the pairs and the bytes.

// clang-format off: each needs those above it
#include "exp-inl.h"
#include "activations-inl.h"
#include "columns-inl.h"
#include "gates-inl.h"
#include "rotary-inl.h"
#include "soft_cap-inl.h"
#include "select-inl.h"
#include "row_blocks-inl.h"
#include "scores-inl.h"
#include "turned_keys-inl.h"
#include "tree_attention-inl.h"
#include "path_attention-inl.h"
#include "linear_results-inl.h"
#include "linear_int8-inl.h"
#include "linear_int4-inl.h"
#include "linear_float-inl.h"
#include "linear-inl.h"
#include "pair_attention-inl.h"
#include "layer_norm-inl.h"
#include "rms_norm-inl.h"
#include "log-inl.h"
#include "mixture-inl.h"
// clang-format on

// constexpr: a table filled at load time would run this file's instructions on every CPU
constexpr Kernels make_kernels(const char* name) {
    return Kernels{
        name,
        kWidth,
        {&scan_row<float, true>, &scan_row<BFloat16, true>, &scan_row<Half, true>},
        {&scan_row<float, false>, &scan_row<BFloat16, false>, &scan_row<Half, false>},
        {&collect_row<float>, &collect_row<BFloat16>, &collect_row<Half>},
        {&attend<float, float>, &attend<BFloat16, BFloat16>, &attend<Half, Half>},
        &attend<float, BFloat16>,
        {&attend_paths<float, float>, &attend_paths<BFloat16, BFloat16>, &attend_paths<Half, Half>},
        &attend_paths<float, BFloat16>,
        &attend_pairs,
        &round_cell,
        {&multiply_rows<float, float>, &multiply_rows<RoundedX, Pair>, &multiply_rows<float, Half>,
         &multiply_rows<float, Bytes>, &multiply_narrow, &multiply_rows<float, Int4Group>},
        &round_row,
        kInputs<RoundedX, Pair> * sizeof(RoundedX),
        &quantise_row,
        sizeof(Input),
        &normalise_row,
        &rms_norm_row,
        &rotate_head,
        &gate_row,
        &soft_cap,
        &glu_row,
        &lstm_row,
        &mix_row};
}
