"""FireRedASR-AED beside a plain-torch reading of its modules, and the laws of its encoder."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import pybeam
from pybeam import backends
from pybeam.export import convert_fireredasr
from pybeam.models.conformer import places
from pybeam.models.conformer.attention import distances
from pybeam.models.conformer.model import ConformerTransformer
from pybeam.models.conformer.parts import depthwise
from pybeam.models.linear import PackedLinear
from pybeam.models.loading import load_checkpoint
from pybeam.models.transformer.positions import interleaved_table
from support.fireredasr_files import NUM_FEATURES, recordings, save_published, sinusoids
from support.plain_fireredasr import PlainFireRed
from support.session_driver import SessionDriver, straight_line
from support.threads import every_thread_count

SOURCES = recordings(12)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fireredasr")
    plain = save_published(directory / "published", seed=14, eos_nats=3.0)
    convert_fireredasr(directory / "published", directory / "model")
    return directory / "model", plain


@pytest.fixture
def model(saved, device) -> ConformerTransformer:
    return pybeam.load_model(saved[0], device=device)


def changed(saved, directory, change: dict) -> ConformerTransformer:
    """Load the model with another config."""
    config = json.loads((saved[0] / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    (directory / "model.safetensors").symlink_to(saved[0] / "model.safetensors")
    return pybeam.load_model(directory, device="cpu")


def states_of(model, sources, backend: str) -> list[torch.Tensor]:
    """The encoder's states of each source, computed together."""
    checked = [model.check(source) for source in sources]
    states = model.session(backends.load(backend)).encoder_states(checked).cpu()
    return states.split([model.source_length(source) for source in checked])


@torch.inference_mode()
def test_states_and_logits_are_the_originals(saved, model, backend):
    assert type(model) is ConformerTransformer and model.max_positions == 60
    plain, tokens = saved[1], [model.start_id, 7, 30, 1, 0, 18]
    for source, state in zip(SOURCES, states_of(model, SOURCES, backend), strict=True):
        expected, mask = plain.encode([source])
        assert mask.all(), "every position counts"
        torch.testing.assert_close(state, expected[0], rtol=1e-5, atol=1e-5)
        logits = plain.decode(torch.tensor([tokens]), expected, mask)[0]
        ours = straight_line(model, backend, source, tokens)
        scale = float(logits.abs().max())
        torch.testing.assert_close(ours, logits, rtol=0, atol=1e-5 * scale)


@torch.inference_mode()
def test_in_float64_they_are_equal_to_nine_places(saved, monkeypatch):
    """As a GPU computes them: with torch, several at once, and one alone that is too long."""
    monkeypatch.setattr(places, "MOST_ROWS", 60)
    model, _ = load_checkpoint(saved[0], torch.device("cpu"), torch.float64)
    weights = {name: weight.double() for name, weight in saved[1].weights.items()}
    # the same roundings to float32 in both
    table = interleaved_table(5000, 24).double()
    weights["encoder.positional_encoding.pe"] = distances(table, 5000)[None]
    weights["decoder.positional_encoding.pe"] = table[None]
    plain = PlainFireRed(weights, saved[1].sizes)
    session = model.session(backends.load("reference"))
    tokens = torch.tensor([[model.start_id, 9, 12]])
    states = session.encoder_states(SOURCES).split(list(map(model.source_length, SOURCES)))
    for source, state in zip(SOURCES, states, strict=True):
        expected, mask = plain.encode([source])
        torch.testing.assert_close(state, expected[0], rtol=1e-9, atol=1e-9)
        logits = plain.decode(tokens, expected, mask)[0]
        ours = straight_line(model, "reference", source, tokens[0].tolist())
        torch.testing.assert_close(ours, logits, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_the_revision_that_counts_fewer_positions(saved, tmp_path):
    """The states of `right_padding` 0 are those of the mask that the code of December 2025 makes."""
    model = changed(saved, tmp_path, {"right_padding": 0})
    plain = PlainFireRed(saved[1].weights, saved[1].sizes, counts_starts=False)
    heard = [source for source in SOURCES if len(source) >= 7]
    for source, state in zip(heard, states_of(model, heard, "reference"), strict=True):
        expected, mask = plain.encode([source])
        torch.testing.assert_close(state, expected[0, mask[0, 0]], rtol=1e-5, atol=1e-5)
    assert model.source_length(SOURCES[3]) == 0
    results = pybeam.Decoder(model, pybeam.greedy(max_length=3)).decode([SOURCES[3], heard[0]])
    assert results[0].stop_reason == "empty_source"


@torch.inference_mode()
def test_a_batch_changes_no_bit(model, device):
    """Recordings of many lengths, together and alone, on any number of threads."""
    backend = backends.resolve("auto", device).__name__.rpartition(".")[2]
    alone = [states_of(model, [source], backend)[0] for source in SOURCES]
    for _ in every_thread_count():
        for sources in (SOURCES, SOURCES[::-1]):
            together = states_of(model, sources, backend)
            expected = alone if sources is SOURCES else alone[::-1]
            for ours, own in zip(together, expected, strict=True):
                if isinstance(model.output, PackedLinear) and backend == "native":
                    assert torch.equal(ours, own)
                else:
                    torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 9])
def test_depthwise_is_torchs_convolution(size):
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(size, 6, generator=generator)
    lengths = [4, 0, 1, 130, 3]
    sources = [torch.randn(length, 6, generator=generator) for length in lengths]
    found = depthwise(torch.cat(sources), weight, lengths).split(lengths)
    for source, ours in zip(sources, found, strict=True):
        if len(source):
            kernel = weight.t()[:, None]
            expected = F.conv1d(source.t()[None], kernel, padding=size // 2, groups=6)
            torch.testing.assert_close(ours, expected[0].t())


def test_distances_are_sinusoids_from_far_behind_to_far_ahead():
    table = interleaved_table(9, 8)
    torch.testing.assert_close(table, sinusoids(torch.arange(9), 8))
    for longest in (1, 2, 9):
        expected = sinusoids(torch.arange(longest - 1, -longest, -1), 8)
        torch.testing.assert_close(distances(table, longest), expected)


@pytest.mark.slow
def test_schedules_and_refill_change_no_bit(model):
    sources = [*SOURCES, torch.zeros(0, NUM_FEATURES)]
    for search in (
        pybeam.greedy(max_length=15),
        pybeam.fixed_beam(4, n_best=3, max_length=15, scoring=pybeam.scoring.gnmt(1.0)),
        pybeam.variable_beam(6, threshold=2.0, max_candidates=3, max_length=15),
    ):
        schedules = pybeam.Batch(3), pybeam.Fifo(2), pybeam.Streaming(4, row_budget=7)
        found = [
            [
                [(one.tokens, one.score) for one in result.hypotheses]
                for result in pybeam.Decoder(model, search, schedule=own).decode(sources)
            ]
            for own in schedules
        ]
        if isinstance(model.output, PackedLinear):
            assert found[1] == found[0] and found[2] == found[0]
        tokens = [[[one for one, _ in own] for own in results] for results in found]
        assert tokens[1] == tokens[0] and tokens[2] == tokens[0]


def test_prefixes_processors_and_alignment(model):
    """All that stands around a search works for this model, too."""
    search = pybeam.fixed_beam(
        3,
        max_length=8,
        scoring=pybeam.scoring.gnmt(1.0, coverage=0.2),
        processors=[pybeam.processors.no_repeat_ngram(2), pybeam.processors.suppress_tokens([9])],
    )
    requests = [pybeam.Request(source, prefix=[7, 8]) for source in SOURCES]
    results = pybeam.Decoder(model, search, alignment=True).decode(requests)
    for result, source in zip(results, SOURCES, strict=True):
        best = result.hypotheses[0]
        assert list(best.tokens[:2]) == [7, 8] and 9 not in best.tokens
        assert best.attention.shape == (len(best.tokens), model.source_length(source))
        torch.testing.assert_close(best.attention.sum(1), torch.ones(len(best.tokens)))


def test_an_ensemble_of_two(saved, model, device):
    """Two of the same are that one."""
    search = pybeam.fixed_beam(3, max_length=9)
    twice = pybeam.load_model([saved[0], saved[0]], device=device)
    alone, found = (pybeam.Decoder(own, search).decode(SOURCES) for own in (model, twice))
    for ours, expected in zip(found, alone, strict=True):
        assert ours.hypotheses[0].tokens == expected.hypotheses[0].tokens


def test_encoder_keys_and_values_are_written_once(model, device):
    driver = SessionDriver(model, backends.resolve("auto", device).__name__.rpartition(".")[2], 3)
    with torch.inference_mode():
        driver.open(dict(enumerate(SOURCES[:3])))
        before = torch.stack(driver.session._cross.both)
        for token in (5, 6):
            driver.step([0, 1, 2])
            driver.extend({slot: [(0, token), (0, token + 1)] for slot in range(3)})
    after = torch.stack(driver.session._cross.both)
    assert torch.equal(before.nan_to_num(), after.nan_to_num())


@pytest.mark.parametrize(("dtype", "atol"), [("bfloat16", 0.3), ("float16", 0.02), ("int8", 0.5)])
@torch.inference_mode()
def test_smaller_weights_are_near(saved, dtype, atol):
    exact = states_of(pybeam.load_model(saved[0], device="cpu"), SOURCES, "native")
    model = pybeam.load_model(saved[0], device="cpu", dtype=dtype)
    for ours, expected in zip(states_of(model, SOURCES, "native"), exact, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_depthwise_kernel_size": 4}, "must be odd, but is 4"),
        ({"conv_depthwise_kernel_size": 7}, r"depthwise.weight.* must be \[48, 7\]"),
        ({"conv_channels": 16}, r"conv1.weight.* must be \[16, 1, 3, 3\]"),
        ({"right_padding": -1}, "`right_padding`.*must be 0 to 1024 frames, but is -1"),
        ({"num_mel_bins": 6}, "`num_mel_bins`.*at least 7"),
        ({"max_source_positions": None}, "`max_source_positions`"),
        ({"encoder_layers": 1}, r"encoder\.layers\.1\..* is not part of this model"),
    ],
)
def test_configs_that_contradict_the_weights(saved, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        changed(saved, tmp_path, change)


def test_a_missing_tensor_is_named(saved, tmp_path):
    weights = load_file(saved[0] / "model.safetensors")
    del weights["encoder.layers.1.self_attn.pos_bias_u"]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(saved[0] / "config.json")
    with pytest.raises(ValueError, match=r"self_attn\.pos_bias_u` is missing"):
        pybeam.load_model(tmp_path)


def test_recordings_that_are_too_long_are_refused(saved, tmp_path):
    model = changed(saved, tmp_path, {"max_source_positions": 9})
    with pytest.raises(ValueError, match=r"at most 9 positions.*37 frames become 10; split"):
        model.check(torch.zeros(37, NUM_FEATURES))
    assert len(model.check(torch.zeros(36, NUM_FEATURES))) == 36
