"""Compile FlashInfer's kernels that the benchmarks time, where it is installed and there is no GPU.

    python -m benchmarks.gpu.flashinfer_kernels [FILE]

FlashInfer compiles a kernel when it is first called, which takes minutes, and needs more of CUDA's headers
than nvcc has. The file holds the kernels as FlashInfer finds them compiled. FlashInfer must have the same
version there. `make gpu-pack WHEELS="FILE flashinfer_python-*.whl apache_tvm_ffi-*.whl"` takes all along.
This needs nvcc, and `pip install --no-deps` of flashinfer-python, apache-tvm-ffi, einops, tabulate,
nvidia-ml-py, nvidia-cublas and nvidia-curand.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

from benchmarks.gpu.cross_build import toolkit
from benchmarks.kernels.bench_tree_attention import HEAD_SIZE
from benchmarks.tools.data import ROOT

WORK = ROOT / "build" / "flashinfer"


def prepare() -> None:
    """What FlashInfer asks for when it is imported, compiles and links: a driver's library has a stand-in."""
    packages = importlib.util.find_spec("nvidia")
    folders = packages.submodule_search_locations if packages else None
    headers = [f"{folder}/cu13/include" for folder in folders or ()]
    WORK.mkdir(parents=True, exist_ok=True)
    driver = ["-shared", "-o", str(WORK / "libcuda.so"), "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *driver, "-x", "c", os.devnull], check=True)
    os.environ |= {
        "CPATH": ":".join(headers),
        "CUDA_HOME": str(toolkit()),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(WORK),
        "LIBRARY_PATH": f"{WORK}:{os.environ.get('LIBRARY_PATH', '')}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def wanted() -> list:
    """The modules behind every `in_other` of `benchmarks/kernels`."""
    from flashinfer.activation import gen_act_and_mul_module
    from flashinfer.jit.attention import gen_batch_decode_module
    from flashinfer.jit.topk import gen_topk_module
    from flashinfer.norm import gen_norm_module
    from flashinfer.rope import gen_rope_module

    dtypes = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
    # no rotation, no window, no bound of logits
    attention = gen_batch_decode_module(*dtypes, HEAD_SIZE, HEAD_SIZE, 0, False, False)
    gates = gen_act_and_mul_module("silu")
    return [attention, gates, gen_topk_module(), gen_norm_module(), gen_rope_module()]


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else WORK / "flashinfer_kernels.zip"
    prepare()
    from flashinfer.jit import build_jit_specs

    modules = wanted()
    build_jit_specs(modules, verbose=False)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in modules:
            name = f"flashinfer/data/aot/{module.name}/{module.name}.so"
            archive.write(module.jit_library_path, name)
    print(f"{file}: {len(modules)} modules")


if __name__ == "__main__":
    main()
