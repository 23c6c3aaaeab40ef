#include "../params/gates.h"

#include "../counters.h"
#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {
namespace {

// A sigmoid or tanh takes about as many instructions as this number of multiply-adds.
constexpr int64_t kFunctionWork = 20;

}  // namespace

void launch_glu(const GluParams& params) {
    const Counted counted(Kernel::kGate,
                          [&] { return KernelWork{4 * 3 * params.num_rows * params.size, 0}; });
    const GluRow glu_row = kernels().glu_row;
    for_rows(params.num_rows, kFunctionWork * params.size, params.num_threads,
             [&](int64_t row) { glu_row(params, row); });
}

void launch_gated(const GatedParams& p) {
    const Counted counted(Kernel::kGate,
                          [&] { return KernelWork{4 * 3 * p.num_rows * p.size, 0}; });
    const GateRow gate_row = kernels().gate_row;
    for_rows(p.num_rows, kFunctionWork * p.size, p.num_threads, [&](int64_t row) {
        const float* x = p.x + row * p.x_stride;
        gate_row(p.activation, x, x + p.size, p.size, p.y + row * p.size);
    });
}

void launch_lstm_cell(const LstmCellParams& params) {
    const Counted counted(Kernel::kLstmCell,
                          [&] { return KernelWork{4 * 7 * params.num_rows * params.size, 0}; });
    const LstmRow lstm_row = kernels().lstm_row;
    for_rows(params.num_rows, 5 * kFunctionWork * params.size, params.num_threads,
             [&](int64_t row) { lstm_row(params, row); });
}

}  // namespace pybeam
