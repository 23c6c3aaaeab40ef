#include "../params/soft_cap.h"

#include <algorithm>

#include "../dispatch.h"
#include "parallel.h"

namespace pybeam {

void launch_soft_cap(const SoftCapParams& p) {
    constexpr int64_t kColumns = 1024;  // of one task
    const SoftCap soft_cap = kernels().soft_cap;
    const int64_t tasks = (p.size + kColumns - 1) / kColumns;
    parallel_for(threads_for(p.size, tasks, p.num_threads), tasks, [&](int64_t task) {
        const int64_t first = task * kColumns;
        soft_cap(p.cap, std::min(kColumns, p.size - first), p.x + first);
    });
}

}  // namespace pybeam
