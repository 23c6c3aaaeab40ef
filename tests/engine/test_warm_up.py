"""The requests that warm a decoder up are decoded, whatever the algorithm asks of outputs."""

from __future__ import annotations

import copy

import torch

import pybeam
from pybeam.engine.warm_up import some_requests
from support.search_models import random_model
from support.speech_models import save_tiny_speech_model


def test_long_outputs_do_not_keep_a_decoder_cold():
    decoder = pybeam.Decoder(random_model(7, 9), pybeam.fixed_beam(2, min_length=20, max_length=30))
    decoder.warm_up()
    assert decoder.stats.steps and "error" not in decoder.stats.stop_reasons


def test_on_a_gpu_whisper_hears_whole_windows(tmp_path):
    save_tiny_speech_model(tmp_path, kind="Whisper")
    model = copy.copy(pybeam.load_model(tmp_path, device="cpu"))
    assert [len(one.source) for one in some_requests(model, 3)] == [32, 8 * 32, 32 * 32]
    model.device = torch.device("cuda")
    assert [len(one.source) for one in some_requests(model, 5)] == [100] * 4
