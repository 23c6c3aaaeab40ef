"""The faster backend of `select` on a GPU, by shape; `make gpu-bench` writes this file."""

from typing import Any

MEASURED_ON = "nothing yet: the cost model says CUDA C++"

# the first rule that a shape fits decides
SELECT: list[dict[str, Any]] = [
    {"backend": "native"},
]
