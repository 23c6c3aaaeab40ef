#include "../params/gates.h"

#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {
namespace {

// A sigmoid or tanh takes about as many instructions as this number of multiply-adds.
constexpr int64_t kFunctionWork = 20;

}  // namespace

void launch_glu(const GluParams& params) {
    const GluRow glu_row = kernels().glu_row;
    for_rows(params.num_rows, kFunctionWork * params.size, params.num_threads,
             [&](int64_t row) { glu_row(params, row); });
}

void launch_lstm_cell(const LstmCellParams& params) {
    const LstmRow lstm_row = kernels().lstm_row;
    for_rows(params.num_rows, 5 * kFunctionWork * params.size, params.num_threads,
             [&](int64_t row) { lstm_row(params, row); });
}

}  // namespace pybeam
