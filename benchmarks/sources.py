"""The source files that each result file measures, as paths of the checkout that git understands."""

from __future__ import annotations

# what a search runs on a CPU
SEARCH = (
    *("csrc", ":!csrc/cuda", "pybeam/backends", "pybeam/engine", "pybeam/kvcache", "pybeam/models"),
    *("pybeam/processors", "pybeam/search", "pybeam/state", "pybeam/decoder.py"),
)
# result file, without the device behind its name -> what it measures
MEASURES: dict[str, tuple[str, ...]] = {
    "admission": (*SEARCH, "pybeam/serving"),
    "bindings": ("csrc/ops/python*", "csrc/ops/dlpack_exchange.h"),
    "catalogue": (*SEARCH, "pybeam/catalogue"),
    "causal": SEARCH,
    "code-time": ("triton_kernels", "csrc/cuda", "benchmarks/gpu/sass.py"),
    "compat": (*SEARCH, "pybeam/compat", "pybeam/speech"),
    "cores": ("pybeam/serving", "benchmarks/cores.py", "benchmarks/simulated_service.py"),
    "corpus": (*SEARCH, "pybeam/corpus"),
    "e2e": SEARCH,
    "ensemble": SEARCH,
    "ctc": ("pybeam/ctc", "csrc/cpu/ctc*", "benchmarks/ctc.py"),
    "first-output": ("packages/examples", "pyproject.toml", "pybeam/models", "pybeam/__init__.py"),
    "forecast": (*SEARCH, "triton_kernels", "benchmarks/gpu"),
    "gpu-bench": (*SEARCH, "triton_kernels", "csrc/cuda"),
    "gpu-step": (*SEARCH, "triton_kernels", "csrc/cuda"),
    "huggingface": SEARCH,
    "instructions": ("csrc/cpu/*-inl.h", "csrc/cpu/avx*", "csrc/cpu/neon*", "setup.py"),
    "jacobi": SEARCH,
    "kernels": (*SEARCH, "triton_kernels"),
    "launches": (*SEARCH, "triton_kernels"),
    "layers-in-one": ("csrc/cuda", "triton_kernels"),
    "layers-time": ("csrc/cuda", "benchmarks/gpu/layers_time.py", "benchmarks/gpu/sass.py"),
    "linear": ("csrc/cpu/*linear*", "csrc/cpu/pairs*", "csrc/cpu/tiles*", "csrc/cpu/bytes*"),
    "llama": SEARCH,
    "loading": ("csrc/cpu/panels.cpp", "pybeam/backends/packing.py", "pybeam/models"),
    "makespan": ("pybeam/ray", "pybeam/corpus"),
    "marian": SEARCH,
    "one-request": SEARCH,
    "onnx": (*SEARCH, "pybeam/export"),
    "parsing": SEARCH,
    "pipelines": (*SEARCH, "pybeam/text", "pybeam/reranking"),
    "processors": ("pybeam/processors",),
    "profile": SEARCH,
    "quality": SEARCH,
    "ray-overhead": (*SEARCH, "pybeam/ray", "pybeam/corpus"),
    "service": (*SEARCH, "pybeam/server", "pybeam/serving"),
    "shortlist": (*SEARCH, "pybeam/shortlist"),
    "sound-encoders": (*SEARCH, "triton_kernels"),
    "speech": (*SEARCH, "pybeam/speech"),
    "stopping": (*SEARCH, "pybeam/stopping.py", "pybeam/scoring.py"),
    "terminology": (*SEARCH, "pybeam/automata"),
    "rules": (*SEARCH, "pybeam/study/rules.py", "pybeam/study/ruled_select.py"),
    "transcription": (*SEARCH, "pybeam/speech"),
    "translate": SEARCH,
    "triton-code": ("triton_kernels",),
    "wheel": ("csrc", "setup.py", "pyproject.toml", "release"),
    "whisper": (*SEARCH, "pybeam/speech"),
}


def measured_by(name: str) -> tuple[str, ...]:
    """Return the sources that a result file measures; `name` is the file's, without its ending."""
    return MEASURES.get(name.removesuffix("-cpu").removesuffix("-gpu"), ())
