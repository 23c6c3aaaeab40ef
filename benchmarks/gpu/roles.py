"""The roles of the kernels of a step, told by their names, and the most microseconds that they may take."""

from __future__ import annotations

import re

# the first that fits counts; names are ATen's, CUDA's libraries' or ours
_ROLE_OF = {
    "product": r"\b_?(scaled_|add)?mm\b|_addmm|linear|product|gemm|nvjet|cutlass|splitK|Memset",
    "attention": r"attention",
    "norm": r"_norm",
    "select": r"\bselect_kernel",
    "books": r"\b(plan|read|inherit|inherit_paths|commit|append|release|report|accept)_\w*kernel",
    "other": r"",
}
ROLES = tuple(_ROLE_OF)

# of one kernel in a step of up to 64 beams of 5, 6 layers of 1,024, on an H200; `kernels_of_a_step` fails
# above
BUDGETS_US = {
    "plan_kernel": 2.0,
    "read_kernel": 3.0,
    "inherit_kernel": 3.5,
    "commit_kernel": 5.0,
    "embed_norm_kernel": 3.0,
    "add_norm_kernel": 3.0,
    "product_kernel": 8.0,
    "tree_attention_kernel": 11.0,
    "pybeam::cuda::select_kernel": 28.0,
}
# a kernel of few numbers takes the time of its start, and of the loads that wait for one another: on an H200
# within two fifths of plan, read, inherit, commit and the norms
START_US, LOAD_US = 0.7, 0.5


def role_of(kernel: str) -> str:
    """Which of `ROLES` a kernel has; `kernel` is its name in a trace, or the operator that launches it."""
    return next(role for role, pattern in _ROLE_OF.items() if re.search(pattern, kernel))


def short_name(kernel: str) -> str:
    """The name without types and templates, which have hundreds of letters."""
    return re.sub(r"^void |<.*|\(.*", "", kernel.replace("(anonymous namespace)::", ""))
