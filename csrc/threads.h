// The threads on which kernels run: torch's own, so that a process has one pool.
#pragma once

#include <cstdint>

namespace pybeam {

// As many as `torch.set_num_threads` said.
int num_threads();

// Splits 0..parts into ranges, calls body(begin, end, context) on all of them at once, each on its
// own thread, and waits. All ranges but the last have one length. There is one range if only one
// thread is free, such as within another call.
void run_on_threads(int parts, void (*body)(int64_t begin, int64_t end, void* context),
                    void* context);

}  // namespace pybeam
