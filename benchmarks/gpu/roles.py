"""The most microseconds that kernels of a step may take."""

from __future__ import annotations

# of one kernel in a step of up to 64 beams of 5, 6 layers of 1,024, on an H200; `kernels_of_a_step` fails
# above
BUDGETS_US = {
    "plan_kernel": 2.0,
    "read_kernel": 3.0,
    "inherit_kernel": 3.5,
    "commit_kernel": 6.0,
    "embed_norm_kernel": 3.0,
    "add_norm_kernel": 3.0,
    "product_kernel": 8.0,
    "tree_attention_kernel": 11.0,
    "pybeam::cuda::select_kernel": 28.0,
}
# a kernel of few numbers takes the time of its start, and of the loads that wait for one another: on an H200
# within two fifths of plan, read, inherit, commit and the norms
START_US, LOAD_US = 0.7, 0.5
