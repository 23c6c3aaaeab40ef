"""The most kernels that a step may have, by algorithm and decoder layers; `make launches` fails above.

Lower a budget when a change needs fewer. `TARGETS` are the limits that were wanted first.
"""

BUDGETS: dict[str, dict[int, int]] = {
    "greedy": {3: 32, 6: 59},
    "fixed_beam": {3: 38, 6: 71},
    "variable_beam": {3: 38, 6: 71},
    "optimal_beam": {3: 38, 6: 71},
    "stochastic_beam": {3: 42, 6: 75},
    "sample": {3: 35, 6: 62},
    "cuts": {3: 42, 6: 75},
    "processors": {3: 43, 6: 76},
    "constraint": {3: 40, 6: 73},
    "constraint, log_probs": {3: 40, 6: 73},
    "must_contain": {3: 42, 6: 75},
    "jacobi": {3: 43, 6: 76},
    "hybrid_jacobi": {3: 43, 6: 76},
    "fixed_beam, Qwen3-0.6B": {1: 15, 2: 24},
    "fixed_beam, Llama-3.2-1B": {1: 15, 2: 24},
}

TARGETS: dict[str, dict[int, int]] = {
    "greedy": {3: 50, 6: 85},
    "fixed_beam": {3: 50, 6: 85},
    "variable_beam": {3: 50, 6: 85},
    "optimal_beam": {3: 50, 6: 85},
    "stochastic_beam": {3: 60},
    "sample": {},
    "cuts": {},
    "processors": {},
    "constraint": {},
    "constraint, log_probs": {},
    "must_contain": {},
    "jacobi": {3: 60},
    "hybrid_jacobi": {3: 60},
    "fixed_beam, Qwen3-0.6B": {},
    "fixed_beam, Llama-3.2-1B": {},
}
