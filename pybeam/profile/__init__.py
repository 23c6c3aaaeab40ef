"""Find where the time of a decode goes; the command is `pybeam profile`.

`measure` decodes with and without `torch.profiler`, `trace` reads what the profiler recorded, and `table`
prints it.
"""
