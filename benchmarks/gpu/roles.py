"""The most microseconds of kernels of a step, and the most code of those that compute rather than wait."""

from __future__ import annotations

# of one kernel in a step of up to 64 beams of 5, 6 layers of 1,024, on an H200; `kernels_of_a_step` fails
# above
BUDGETS_US = {
    "read_kernel": 3.0,
    "commit_kernel": 6.0,
    "embed_norm_kernel": 3.0,
    "add_norm_kernel": 3.0,
    "product_kernel": 8.0,
    "tree_attention_kernel": 11.0,
    "pybeam::cuda::select_kernel": 28.0,
}
# a kernel of few numbers takes the time of its start, and of the loads that wait for one another: on an H200
# within two fifths of what planned and read apart, commit (then in two kernels) and the norms
START_US, LOAD_US = 0.7, 0.5
# of a kernel of one beam of 5 in 3 layers of 256, as `code_time` estimates it: a tenth above 2026-11-28
CODE_US = {
    "read_kernel": 2.4,
    "commit_kernel": 2.9,
    "embed_norm_kernel": 2.0,
    "add_norm_kernel": 1.9,
    "product_kernel": 2.2,
    "tree_attention_kernel": 3.6,
    "pybeam::cuda::select_kernel": 9.2,
}
# the most that was wanted in each of its cases, by their estimates
SELECTIONS = "pybeam::cuda::select_kernel", "pybeam::cuda::select_peaked_kernel"
WANTED_US = {"commit_kernel": 6.0, **dict.fromkeys(SELECTIONS, 12.0)}
# the logits of 320 rows are 27 MB, 8 µs of its memory, and a beam's last block takes 9 behind
NOT_REACHED = {("widened, 64x5", SELECTIONS[0])}
# others take the time of their work: the most that each of their variants may have by a column of
# `triton_code`, for an sm_90, a tenth above what there was on 2026-11-27. Of 80 registers and 4 warps six
# programs fit into a multiprocessor, of 208 and one warp nine
CODE_BUDGETS = {
    "product_kernel": {"registers": 80, "instructions": 500, "loads in a chain": 1},
    "tree_attention_kernel": {
        "registers": 208,
        "instructions": 1230,
        "in the longest loop": 440,
        "loads in a chain": 2,
    },
    "select_kernel": {
        "registers": 128,
        "instructions": 7600,
        "in the longest loop": 2960,
        "loads in a chain": 7,
    },
}
