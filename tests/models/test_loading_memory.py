"""Loading occupies little more memory than the weights that stay, whatever the file holds.

Nothing stays when the model is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import pybeam
from pybeam.models.linear import can_pack
from support.paths import MODEL, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux"),
]
# 91 million weights: 363 MB in float32
SIZES = dict(
    vocab_size=32000,
    d_model=768,
    encoder_layers=4,
    decoder_layers=4,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    max_position_embeddings=256,
    decoder_start_token_id=2,
)
# what a process occupies at most while it loads, beyond what it occupied before, the bytes of weights, and
# what it occupies when the model is gone
MEASURE = """
import gc, sys
from pathlib import Path
import pybeam
from support.built_in_models import bytes_of

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

directory, dtype, small = sys.argv[1:]
pybeam.load_model(small, device="cpu", dtype=dtype)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS:")
model = pybeam.load_model(directory, device="cpu", dtype=dtype)
peak, weights = status("VmHWM:") - before, bytes_of(model)
del model
gc.collect()
print(peak, weights, status("VmRSS:") - before)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    torch.manual_seed(0)
    config = transformers.M2M100Config(**SIZES)
    transformers.M2M100ForConditionalGeneration(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def quantised(directory, tmp_path_factory):
    path = tmp_path_factory.mktemp("quantised") / "large"
    pybeam.quantize(directory, path)
    return path


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ("directory", "int8"),
        ("quantised", "int8"),
        ("directory", "int4"),
        ("directory", "float32"),
        ("directory", "float16"),
        ("directory", "bfloat16"),
    ],
)
def test_the_peak_is_the_weights_and_a_tenth(source, dtype, request, tmp_path):
    if not can_pack(torch.device("cpu"), getattr(torch, dtype)):
        pytest.skip("weights are not packed on this CPU")
    large, small = request.getfixturevalue(source), MODEL
    if source == "quantised":
        small = tmp_path / "small"
        pybeam.quantize(MODEL, small)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(large), dtype, str(small)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak, weights, left = map(int, done.stdout.split())
    # tables are int8 beside int4
    assert weights > 90e6 * (0.6 if dtype == "int4" else getattr(torch, dtype).itemsize)
    assert peak <= 1.1 * weights
    assert left <= 0.1 * weights
