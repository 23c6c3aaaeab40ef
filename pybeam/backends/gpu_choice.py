"""The faster backend of `select` on a GPU, by shape; `make gpu-bench` writes this file."""

MEASURED_ON = "nothing yet: the cost model says CUDA C++"

# the first rule that a shape fits decides
SELECT = [
    {"backend": "native"},
]
