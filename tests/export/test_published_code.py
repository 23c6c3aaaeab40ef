"""The published code itself, where a clone of FireRedASR is on PYTHONPATH: states, tokens and texts."""

import json

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.export import convert_fireredasr
from support.fireredasr_files import recordings, save_published
from support.seed_beam_search import OPTIONS

published = pytest.importorskip(
    "fireredasr.models.fireredasr_aed", reason="needs a clone of FireRedASR on PYTHONPATH"
)
SOURCES = [source for source in recordings(14, seed=3) if len(source) >= 7]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Their network and our folder."""
    directory = tmp_path_factory.mktemp("fireredasr")
    plain = save_published(directory / "published", seed=14, eos_nats=3.0, pe_maxlen=5000)
    network = published.FireRedAsrAed.from_args(plain.sizes).eval()
    network.load_state_dict(plain.weights, strict=True)
    convert_fireredasr(directory / "published", directory / "model")
    [length] = network.encoder(SOURCES[0][None], torch.tensor([len(SOURCES[0])]))[1]
    if length < pybeam.load_model(directory / "model").source_length(SOURCES[0]):
        # the revision that drops the last positions
        path = directory / "model" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"right_padding": 0}))
    return network, directory


@torch.inference_mode()
def test_states(pair):
    network, directory = pair
    model = pybeam.load_model(directory / "model", device="cpu")
    session = model.session(backends.resolve("auto", model.device))
    for source in SOURCES:
        states, length, _ = network.encoder(source[None], torch.tensor([len(source)]))
        found = session.encoder_states([source])
        torch.testing.assert_close(found, states[0, : int(length)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.inference_mode()
def test_tokens(pair, options):
    network, directory = pair
    # without one it is the length of their longest recording
    options = {"decode_max_len": 25, **options}
    search = pybeam.compat.fireredasr.beam_search(**options)
    model = pybeam.load_model(directory / "model")
    for source, result in zip(SOURCES, pybeam.Decoder(model, search).decode(SOURCES), strict=True):
        [expected] = network.transcribe(source[None], torch.tensor([len(source)]), **options)
        tokens = [one["yseq"].tolist() for one in expected]
        assert [one.tokens for one in result.hypotheses] == tokens


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_texts(pair):
    from fireredasr.tokenizer.aed_tokenizer import ChineseCharEnglishSpmTokenizer

    files = [str(pair[1] / "published" / name) for name in ("dict.txt", "train_bpe1000.model")]
    original, ours = (
        ChineseCharEnglishSpmTokenizer(*files),
        pybeam.load_tokenizer(pair[1] / "model"),
    )
    for text in ("one two", "一二, one 三。two!", "noon 们 x y", "", "wet十toe"):
        _, ids = original.tokenize(text)
        assert ours.encode_target(text) == ids
        assert ours.decode(ids) == original.detokenize(ids)
