"""The speech transformer beside transformers' Speech2Text, and the laws of its front end."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import pybeam
from pybeam import backends
from pybeam.cli.profile import random_sources
from pybeam.models.linear import PlainLinear
from pybeam.models.transformer.fronts import GATE, Convolution, FrontConfig
from pybeam.models.transformer.speech import SpeechTransformer, Subsampler
from support.session_driver import SessionDriver, straight_line
from support.speech_models import NUM_FEATURES, VOCAB, random_features, save_tiny_speech_model

SOURCES = random_features(7)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("speech")
    return directory, save_tiny_speech_model(directory)


@pytest.fixture
def model(saved, device) -> SpeechTransformer:
    return pybeam.load_model(saved[0], device=device)


@pytest.mark.parametrize("activation", [GATE, "gelu"])
@pytest.mark.parametrize("num", [1, 2, 3, 4, 7, 8, 9, 40])
def test_subsampler_is_a_convolution(num, activation):
    """The rows of windows against torch's convolution with the same weights."""
    generator = torch.Generator().manual_seed(num)
    is_gated = activation == GATE
    shapes = [(6, 4, 5), (8, 3 if is_gated else 6, 3)]
    strides = (2, 2) if is_gated else (1, 2)
    weights = [torch.randn(shape, generator=generator) for shape in shapes]
    biases = [torch.randn(len(weight), generator=generator) for weight in weights]
    pairs = zip(weights, biases, strict=True)
    own = None if is_gated else activation
    layers = [PlainLinear(w.transpose(1, 2).flatten(1), b, own) for w, b in pairs]
    sizes = zip((5, 3), strides, (6, 8), strict=True)
    config = FrontConfig(4, tuple(Convolution("", *size) for size in sizes), activation)
    x = torch.randn(num, 4, generator=generator)
    expected = x.t()[None]
    for weight, bias, stride in zip(weights, biases, strides, strict=True):
        expected = F.conv1d(expected, weight, bias, stride=stride, padding=weight.shape[2] // 2)
        expected = F.glu(expected, dim=1) if is_gated else F.gelu(expected)
    expected = expected[0].t()
    assert config.num_positions(num) == len(expected)
    other = torch.full((5, 4), 1e3)
    found = Subsampler(layers, config)(torch.cat((other, x, other)), [5, num, 5])
    found = found[config.num_positions(5) : config.num_positions(5) + len(expected)]
    torch.testing.assert_close(found, expected)


@torch.inference_mode()
def test_logits_are_the_originals(saved, model, backend):
    """Encoder states and logits step by step, each recording alone, as transformers has them."""
    assert type(model) is SpeechTransformer and model.max_positions == 40
    original = saved[1]
    session = model.session(backends.load(backend))
    states = session.encoder_states([model.check(source) for source in SOURCES]).cpu()
    lengths = [model.source_length(source) for source in SOURCES]
    tokens = [model.start_id, 7, 3, 18, 0, 5]
    for source, state in zip(SOURCES, states.split(lengths), strict=True):
        out = original(source[None], decoder_input_ids=torch.tensor([tokens]))
        torch.testing.assert_close(state, out.encoder_last_hidden_state[0], rtol=1e-5, atol=1e-5)
        ours = straight_line(model, backend, source, tokens)
        scale = float(out.logits.abs().max())
        torch.testing.assert_close(ours, out.logits[0], rtol=0, atol=1e-5 * scale)


@torch.inference_mode()
def test_a_batch_changes_no_bit(model, device):
    """Ragged sources, encoded together and alone, in float32 by the extension's own products."""
    backend = backends.resolve("auto", device)
    together = model.session(backend).encoder_states(SOURCES).cpu()
    alone = [model.session(backend).encoder_states([source]).cpu() for source in SOURCES]
    if device.type == "cpu" and backend.__name__.endswith("native") and backend.isa() != "generic":
        assert torch.equal(together, torch.cat(alone))
    else:
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_encoder_keys_and_values_are_written_once(model, device):
    """Steps read the cells that `encode` filled, and write none of them."""
    driver = SessionDriver(model, backends.resolve("auto", device).__name__.rpartition(".")[2], 3)
    with torch.inference_mode():
        driver.open(dict(enumerate(SOURCES[:3])))
        before = torch.stack(driver.session._cross.both)
        calls = []
        project = model.cross_key_value
        model.cross_key_value = lambda state: calls.append(1) or project(state)
        for token in (4, 5, 6):
            driver.step([0, 1, 2])
            driver.extend({slot: [(0, token), (0, token + 1)] for slot in range(3)})
        model.cross_key_value = project
    assert not calls
    held = driver.session._source.length.sum()
    assert held == sum(map(model.source_length, SOURCES[:3]))
    after = torch.stack(driver.session._cross.both)
    assert torch.equal(before.nan_to_num(), after.nan_to_num())


@pytest.mark.slow
def test_schedules_agree(model):
    """Algorithms on ragged recordings, an empty one among them, under every schedule."""
    sources = [*SOURCES, torch.zeros(0, NUM_FEATURES)]
    for search in (
        pybeam.greedy(max_length=20),
        pybeam.fixed_beam(4, n_best=3, max_length=20, scoring=pybeam.scoring.gnmt(1.0)),
        pybeam.variable_beam(6, threshold=2.0, max_candidates=3, max_length=20),
    ):
        schedules = pybeam.Batch(3), pybeam.Fifo(2), pybeam.Streaming(4, row_budget=7)
        found = [
            pybeam.Decoder(model, search, schedule=schedule).decode(sources)
            for schedule in schedules
        ]
        for results in found[1:]:
            for ours, expected in zip(results, found[0], strict=True):
                pairs = zip(ours.hypotheses, expected.hypotheses, strict=True)
                for one, other in pairs:
                    assert one.tokens == other.tokens
                    assert one.score == pytest.approx(other.score, rel=1e-5)
        assert found[0][-1].stop_reason == "empty_source"


def test_alignment_and_coverage_are_over_positions(model):
    search = pybeam.fixed_beam(3, max_length=9, scoring=pybeam.scoring.gnmt(1.0, coverage=0.2))
    results = pybeam.Decoder(model, search, alignment=True).decode(SOURCES)
    for result, source in zip(results, SOURCES, strict=True):
        best = result.hypotheses[0]
        assert best.attention.shape == (len(best.tokens), model.source_length(source))
        torch.testing.assert_close(best.attention.sum(1), torch.ones(len(best.tokens)))


def test_ensembles_and_reduced_weights(saved, model, device):
    """Two of the same are that one; bfloat16 products change little."""
    search = pybeam.fixed_beam(3, max_length=12)
    alone = pybeam.Decoder(model, search).decode(SOURCES)
    twice = pybeam.load_model([saved[0], saved[0]], device=device)
    found = pybeam.Decoder(twice, search).decode(SOURCES)
    for ours, expected in zip(found, alone, strict=True):
        assert ours.hypotheses[0].tokens == expected.hypotheses[0].tokens
    reduced = pybeam.load_model(saved[0], device=device, dtype="bfloat16")
    with torch.inference_mode():
        backend = backends.resolve("auto", device)
        states = [m.session(backend).encoder_states(SOURCES).cpu() for m in (model, reduced)]
    torch.testing.assert_close(states[1].float(), states[0], rtol=0, atol=0.2)


def test_random_recordings_to_profile(model):
    sources = random_sources(model, 5, (3, 50))
    assert all(source.shape == (len(source), NUM_FEATURES) for source in sources)
    assert all(3 <= len(model.check(source)) <= 50 for source in sources)


def test_arrays_and_half_precision_are_features_too(model):
    source = SOURCES[4].half()
    for same in (source, source.float(), source.float().numpy(), source.double().numpy()):
        assert torch.equal(model.check(same), source.float())


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ([1, 2], TypeError, r"float tensor of features \[E, 6\], but is list"),
        ("hello.wav", TypeError, "load_feature_extractor"),
        (torch.zeros(4, 6, dtype=torch.long), TypeError, "int64"),
        (torch.zeros(4, 5), ValueError, r"\[E, 6\], but is \[4, 5\]"),
        (torch.zeros(1, 4, 6), ValueError, "one recording per request"),
        (torch.zeros(241, 6), ValueError, "at most 30 positions.*241 frames become 31"),
        (np.full((4, 6), np.nan), ValueError, "NaN"),
    ],
)
def test_bad_sources_fail_alone(model, source, kind, message):
    with pytest.raises(kind, match=message):
        model.check(source)
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=3))
    bad, good = decoder.decode([source, SOURCES[1]], on_error="return")
    assert type(bad.error) is kind and good.error is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_kernel_sizes": [5, 4, 7]}, "`conv_kernel_sizes`.*odd"),
        ({"conv_kernel_sizes": [5, 3]}, "`num_conv_layers` odd"),
        ({"conv_kernel_sizes": None}, "`conv_kernel_sizes`"),
        ({"conv_channels": 11}, "`conv_channels`.*even"),
        ({"conv_channels": 12}, r"conv_layers.0.weight.* must be \[12, 6, 5\]"),
        ({"input_channels": 2}, "`input_channels`"),
        ({"input_feat_per_channel": 0}, "`input_feat_per_channel`.*positive"),
        ({"max_target_positions": None}, "`max_target_positions`"),
        ({"vocab_size": VOCAB + 1}, "decoder.embed_tokens.weight"),
    ],
)
def test_configs_that_contradict_the_weights(saved, tmp_path, change, message):
    config = json.loads((saved[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    (tmp_path / "model.safetensors").symlink_to(saved[0] / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        pybeam.load_model(tmp_path)


def test_missing_convolution_is_named(saved, tmp_path):
    weights = load_file(saved[0] / "model.safetensors")
    del weights["model.encoder.conv.conv_layers.1.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(saved[0] / "config.json")
    with pytest.raises(ValueError, match=r"encoder\.conv\.conv_layers\.1\.bias` is missing"):
        pybeam.load_model(tmp_path)
