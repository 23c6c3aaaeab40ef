"""A widened model computes what the small one computes, here and in the libraries beside us."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pybeam
from benchmarks import peers
from benchmarks.tools import widen
from support.paths import MODEL
from support.tiny_models import save_tiny_model

LINES = ["Jesús lloró.", "Y dijo Dios: Sea la luz: y fué la luz."]
SIZES = dict(width=512, ffn=2048, encoder_layers=4, decoder_layers=5, vocabulary=9001)
# neither a power of two nor the same multiple everywhere
TINY_SIZES = dict(width=72, ffn=560, encoder_layers=5, decoder_layers=4, vocabulary=101)
# those of the tiny models: nothing grows but what a test names
TINY = dict(width=24, ffn=280, encoder_layers=2, decoder_layers=3, vocabulary=45)
ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=20),
    "fixed": pybeam.fixed_beam(5, n_best=5, max_length=20),
    "variable": pybeam.variable_beam(5, 1.5, 3, n_best=3, max_length=20),
}


@pytest.fixture(
    scope="module",
    params=["example", "m2m_100", "m2m_100-pad0", "m2m_100-untied", "m2m_100-unscaled"],
)
def pair(request, tmp_path_factory):
    """Directories of a small model and of the same one, larger."""
    large = tmp_path_factory.mktemp("large")
    if request.param == "example":
        widen.widen(MODEL, large, **SIZES)
        return MODEL, large
    small = tmp_path_factory.mktemp("small")
    save_tiny_model(small, request.param)
    widen.widen(small, large, **TINY_SIZES)
    return small, large


only_example = pytest.mark.parametrize("pair", ["example"], indirect=True)
only_tiny = pytest.mark.parametrize("pair", ["m2m_100"], indirect=True)


@pytest.fixture
def tiny(tmp_path):
    """A tiny model, and where a larger one may go."""
    save_tiny_model(tmp_path / "small", "m2m_100")
    return tmp_path / "small", tmp_path / "large"


def sources_for(directory: Path) -> list[list[int]]:
    """Some for that small model."""
    if directory == MODEL:
        return [pybeam.load_tokenizer(MODEL).encode(line) for line in LINES]
    return [[5, 9, 40, 3, 2], [44, 2], [7, 8, 9, 10, 11, 12, 13, 14, 2]]


def assert_same_hypotheses(small: Path, large: Path, name: str) -> None:
    of_each = []
    for directory in (small, large):
        decoder = pybeam.Decoder(pybeam.load_model(directory, device="cpu"), ALGORITHMS[name])
        results = decoder.decode(sources_for(small))
        of_each.append([h for result in results for h in result.hypotheses])
    found, wide = of_each
    assert [h.tokens for h in wide] == [h.tokens for h in found]
    assert [h.score for h in wide] == pytest.approx([h.score for h in found], abs=1e-4)


def logits_of(directory: Path, sources: list[list[int]]) -> list[torch.Tensor]:
    """The logits that transformers computes for fixed targets [T, V], one per source."""
    model = peers.transformers_model(directory)
    target = torch.tensor([[2, 9, 30, 4, 17, 11, 25]])
    with torch.inference_mode():
        return [
            model(input_ids=torch.tensor([source]), decoder_input_ids=target).logits[0]
            for source in sources
        ]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_tokens_and_scores(pair, name):
    assert_same_hypotheses(*pair, name)


@pytest.mark.slow
@pytest.mark.thinned(most=1)
def test_same_logits_in_transformers(pair):
    small, large = pair
    sources = sources_for(small)
    for logits, wide in zip(logits_of(small, sources), logits_of(large, sources), strict=True):
        assert wide.shape[1] > logits.shape[1]
        torch.testing.assert_close(wide[:, : logits.shape[1]], logits, rtol=0, atol=1e-4)


@pytest.mark.slow
@only_example
def test_same_hypotheses_in_ctranslate2(pair):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "sentencepiece.model"))
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    sources = [[pieces[token] for token in source] for source in sources_for(MODEL)]
    of_each = []
    for directory in pair:
        translator = peers.ctranslate2_translator(peers.transformers_model(directory), pieces, 1)
        options = dict(beam_size=5, num_hypotheses=5, return_scores=True, max_decoding_length=20)
        of_each.append(translator.translate_batch(sources, **options))
    for result, wide in zip(*of_each, strict=True):
        assert wide.hypotheses == result.hypotheses
        assert wide.scores == pytest.approx(result.scores, abs=1e-4)


def assert_added_tokens_never_win(directory: Path, size: int) -> None:
    """The inputs that raise an added token the most over some other one are among those tried."""
    weights = load_file(directory / "model.safetensors")
    output = weights["lm_head.weight"].double()  # [V, d]
    gain, bias = (
        weights[f"model.decoder.layer_norm.{part}"].double() for part in ("weight", "bias")
    )
    added = output[size:][:9]
    assert len(added) > 0
    picked = torch.cat((added - output[: len(added)], -output[: size : 1 + size // 99]))
    drawn = torch.randn(99, len(gain), generator=torch.Generator().manual_seed(1))
    z = torch.nn.functional.layer_norm(torch.cat((picked * gain, drawn)), gain.shape)
    logits = (z * gain + bias) @ output.T
    assert (logits[:, size:].amax(1) < logits[:, :size].amin(1) - 20).all()
    leaked = logits.logsumexp(1) - logits[:, :size].logsumexp(1)
    assert 0 <= leaked.max() < 1e-6


@pytest.mark.slow
def test_added_tokens_never_win_whatever_the_input(pair):
    assert_added_tokens_never_win(pair[1], pybeam.load_model(pair[0]).vocab_size)


@only_tiny
def test_added_layers_compute_something(pair):
    """Nothing that a library could leave out but the projections that end a branch."""
    weights = load_file(pair[1] / "model.safetensors")
    is_added = re.compile(r"model\.(encoder\.layers\.[234]|decoder\.layers\.3)\.").match
    added = [name for name in weights if is_added(name)]
    assert len(added) == 3 * 16 + 26
    for name in added:
        assert bool(weights[name].any()) != ("out_proj" in name or "fc2" in name), name


@pytest.mark.slow
@only_example
def test_the_tokenizer_comes_along(pair):
    small, large = (pybeam.load_tokenizer(directory) for directory in pair)
    assert [large.encode(line) for line in LINES] == [small.encode(line) for line in LINES]


@only_tiny
def test_tied_embeddings_stay_one_table(pair):
    model = pybeam.load_model(pair[1], device="cpu")
    assert model.encoder.token_table is model.decoder.token_table


def test_more_inner_units_alone_change_nothing(tiny):
    widen.widen(*tiny, **TINY)
    sources = sources_for(tiny[0])
    for logits, same in zip(*(logits_of(path, sources) for path in tiny), strict=True):
        torch.testing.assert_close(same, logits, rtol=0, atol=1e-5)


def test_a_widened_model_can_be_widened(tiny, tmp_path):
    widen.widen(*tiny, **TINY | dict(width=48))
    widen.widen(tiny[1], tmp_path / "larger", **TINY | dict(width=96, vocabulary=50))
    assert_same_hypotheses(tiny[0], tmp_path / "larger", "fixed")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_have_the_dtype_asked_for(tiny, dtype):
    widen.widen(*tiny, **TINY | dict(width=48, vocabulary=53), dtype=dtype)
    assert_added_tokens_never_win(tiny[1], TINY["vocabulary"])
    weights = load_file(tiny[1] / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {getattr(torch, dtype)}
    assert json.loads((tiny[1] / "config.json").read_text())["dtype"] == dtype


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 36}, "`width` must be a multiple of the model's 24, but is 36"),
        ({"width": 0}, "`width` must be a multiple of the model's 24, but is 0"),
        ({"ffn": 120}, "`ffn` must be a multiple of the model's 56, but is 120"),
        ({"encoder_layers": 1}, "`encoder_layers` must be at least the model's 2, but is 1"),
        ({"decoder_layers": 2}, "`decoder_layers` must be at least the model's 3, but is 2"),
        ({"vocabulary": 44}, "`vocabulary` must be at least the model's 45, but is 44"),
        (
            {"vocabulary": 46},
            "`vocabulary` must be the model's 45 where `width` is the model's 24, but is 46",
        ),
        ({"dtype": "int8"}, "`dtype` must be one of float32, .* but is 'int8'"),
    ],
)
def test_bad_sizes_are_refused(tiny, changes, message):
    with pytest.raises(ValueError, match=message):
        widen.widen(*tiny, **TINY | changes)
    assert not tiny[1].exists()


def test_other_architectures_are_refused(tmp_path):
    save_tiny_model(tmp_path, "bart")
    with pytest.raises(ValueError, match="must hold an m2m_100 model, but it is 'bart'"):
        widen.widen(tmp_path, tmp_path / "large", **TINY)


def test_a_directory_in_use_is_refused(tiny):
    with pytest.raises(ValueError, match="`target` must be a new or empty directory"):
        widen.widen(tiny[0], tiny[0], **TINY)


def test_command_line(tiny, monkeypatch, capsys):
    arguments = [f"--{name.replace('_', '-')}={size}" for name, size in TINY_SIZES.items()]
    arguments += ["--source", str(tiny[0]), "--output", str(tiny[1])]
    monkeypatch.setattr(sys, "argv", ["widen", *arguments])
    widen.main()
    assert f"--model {tiny[1]}" in capsys.readouterr().out
    assert repr(pybeam.load_model(tiny[1])).startswith(
        "Transformer(m2m_100, 5+4 layers, d=72, V=101,"
    )
    with pytest.raises(SystemExit):
        widen.main()
    assert "`target` must be a new or empty directory" in capsys.readouterr().err
