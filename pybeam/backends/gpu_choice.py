"""The faster backend of `select` on a GPU, by shape; `make gpu-bench` writes this file."""

from typing import Any

MEASURED_ON = "nothing yet"

# the first rule that a shape fits decides; Triton where none does
SELECT: list[dict[str, Any]] = []
