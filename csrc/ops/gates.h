// The operators `glu`, `gated` and `lstm_cell`.
#pragma once

#include <tuple>

#include "../params/gates.h"
#include "check.h"
#include "linear.h"

namespace pybeam {

// Checks that there are `parts` times as many columns as the result has.
inline void check_gates(const char* name, const Tensor& x, int64_t parts) {
    check_dim(name, x, 2);
    check_tensor(name, x, ScalarType::kFloat32, x.sizes());
    check_unit_stride(name, x);
    PYBEAM_CHECK_VALUE(x.size(1) % parts == 0, "`", name, "` must have a multiple of ", parts,
                       " columns, but has ", x.size(1));
}

// Fills in x [rows, 2 size], whose halves become one. Returns the memory of the result.
template <class Params>
Tensor set_halves(const Tensor& x, Params* params) {
    check_gates("x", x, 2);
    Tensor y = empty({x.size(0), x.size(1) / 2}, x.scalar_type(), x.device());
    params->x = data<float>(x);
    params->x_stride = x.stride(0);
    params->y = data<float>(y);
    params->num_rows = y.size(0);
    params->size = y.size(1);
    params->num_threads = num_threads();
    return y;
}

inline Tensor glu(const Tensor& x) {
    GluParams params{};
    Tensor y = set_halves(x, &params);
    launch_glu(params);
    return y;
}

inline Tensor gated(const Tensor& x, int64_t activation) {
    check_activation(activation);
    GatedParams params{};
    Tensor y = set_halves(x, &params);
    params.activation = static_cast<Activation>(activation);
    launch_gated(params);
    return y;
}

inline std::tuple<Tensor, Tensor> lstm_cell(const Tensor& gates, const Tensor& cell) {
    check_gates("gates", gates, 4);
    check_tensor("cell", cell, ScalarType::kFloat32, {gates.size(0), gates.size(1) / 4});
    check_unit_stride("cell", cell);
    Tensor hidden_out = empty(cell.sizes(), gates.scalar_type(), gates.device());
    Tensor cell_out = empty(cell.sizes(), gates.scalar_type(), gates.device());
    LstmCellParams params{};
    params.gates = data<float>(gates);
    params.gates_stride = gates.stride(0);
    params.cell = data<float>(cell);
    params.cell_stride = cell.stride(0);
    params.hidden_out = data<float>(hidden_out);
    params.cell_out = data<float>(cell_out);
    params.num_rows = cell.size(0);
    params.size = cell.size(1);
    params.num_threads = num_threads();
    launch_lstm_cell(params);
    return {hidden_out, cell_out};
}

}  // namespace pybeam
