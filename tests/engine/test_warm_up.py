"""The requests that warm a decoder up are decoded, whatever the algorithm asks of outputs."""

from __future__ import annotations

import pybeam
from support.search_models import random_model


def test_long_outputs_do_not_keep_a_decoder_cold():
    decoder = pybeam.Decoder(random_model(7, 9), pybeam.fixed_beam(2, min_length=20, max_length=30))
    decoder.warm_up()
    assert decoder.stats.steps and "error" not in decoder.stats.stop_reasons
