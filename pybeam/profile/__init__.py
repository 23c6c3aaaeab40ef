"""Where the time of a decode goes: ``pybeam profile --help``.

`measure` decodes with and without `torch.profiler`, `trace` reads what it recorded, `report` prints it.
"""
