"""Networks in Marian's form: the example model with an SSRU decoder, and random ones with attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.corpus import EOS, MODEL, processor, vocabulary
from benchmarks.tools.ssru import LEARNED
from pybeam.models.marian.checkpoint import names_of
from tests.support.marian_folders import (
    PRE_NORM,
    SETTINGS,
    SSRU,
    Arrays,
    random_arrays,
    write_files,
)

LAYERS, VOCAB = 3, 8000
# the example's
SIZES = {
    **{"dim-emb": 256, "transformer-dim-ffn": 1024, "transformer-heads": 4},
    **{"enc-depth": LAYERS, "dec-depth": LAYERS, "dim-vocabs": [VOCAB, VOCAB]},
    "tied-embeddings-all": "true",
}
EXAMPLE = {"transformer-postprocess-emb": "d", "transformer-ffn-activation": "relu"}


def write_ssru(directory: Path) -> None:
    """Write the example model with the SSRU that has learned from it (`benchmarks.tools.ssru`)."""
    weights = load_file(MODEL / "model.safetensors")
    weights = {name.removeprefix("model."): weight for name, weight in weights.items()}
    weights |= load_file(LEARNED)
    arrays: Arrays = {
        "Wemb": weights["shared.weight"].astype(np.float32),
        "decoder_ff_logit_out_b": np.zeros((1, VOCAB), np.float32),
    }
    for stack, absent in (("encoder", "_rnn"), ("decoder", "_self")):
        for name, own in names_of(stack, LAYERS, "_pre"):
            if own in weights and absent not in name:
                weight = weights[own].astype(np.float32)
                turned = weight.T if weight.ndim == 2 else weight[None]
                arrays[name] = np.ascontiguousarray(turned)
    _write(directory, arrays, {**SETTINGS, **PRE_NORM, **EXAMPLE, **SSRU, **SIZES})


def write_attention(directory: Path) -> None:
    """Write a random network of the example's shape whose outputs never end."""
    settings = {**SETTINGS, **SIZES}
    arrays = random_arrays(2, settings)
    arrays["decoder_ff_logit_out_b"][:] = 0
    # a finite number that no logit outweighs, so that both programs read an ordinary bias
    arrays["decoder_ff_logit_out_b"][0, EOS] = -10_000
    # so that a step says more than the token before it
    arrays["Wemb"] *= 0.25
    _write(directory, arrays, settings)


def _write(directory: Path, arrays: Arrays, settings: dict[str, Any]) -> None:
    pieces = vocabulary(processor())
    write_files(directory, arrays, settings, (pieces, pieces))
