// Arguments of the kernel `fill_panels`.
#pragma once

#include <cstdint>

namespace pybeam {

// Panels [panels, size, kPanel] get the columns of rows [panels * kPanel, size]. Numbers have
// `item_bytes`, 2 or 4.
struct PanelParams {
    const char* rows;
    char* panels;
    int64_t num_panels;
    int64_t size;
    int64_t item_bytes;
    int num_threads;
};

void launch_fill_panels(const PanelParams& params);

}  // namespace pybeam
