// The operator `fill_panels`.
#pragma once

#include "../params/linear.h"
#include "../params/panels.h"
#include "check.h"

namespace pybeam {

inline void fill_panels(const Tensor& panels, const Tensor& rows) {
    check_dim("rows", rows, 2);
    check_contiguous("rows", rows);
    PanelParams params{};
    params.num_panels = rows.size(0) / kPanel;
    params.size = rows.size(1);
    params.item_bytes = rows.element_size();
    PYBEAM_CHECK_VALUE(params.item_bytes == 2 || params.item_bytes == 4,
                       "`rows` must have numbers of 2 or 4 bytes, but is ", rows.scalar_type());
    PYBEAM_CHECK_VALUE(rows.size(0) % kPanel == 0, "`rows` must be a multiple of ", kPanel,
                       ", but are ", rows.size(0));
    check_tensor("panels", panels, rows.scalar_type(), {params.num_panels, params.size, kPanel});
    check_contiguous("panels", panels);
    PYBEAM_CHECK_VALUE(panels.element_size() == params.item_bytes,
                       "`panels` and `rows` must have one dtype");
    params.rows = data<const char>(rows);
    params.panels = data<char>(panels);
    params.num_threads = num_threads();
    launch_fill_panels(params);
}

}  // namespace pybeam
