"""Folders as they are published: read with the outputs of `generate`, or refused with the reason."""

import json
import logging
import re

import pytest
import torch
import transformers

import pybeam
from pybeam import compat
from support.folder_layouts import NO_TOKENIZERS, READ, REFUSED, TOKENIZERS, shards
from support.paths import MODEL, ROOT
from support.tiny_models import favour_eos, save_tiny_model, tiny_model

SOURCES = [[11, 30, 17, 2], [25, 14, 33, 20, 12, 2]]
LENGTH = 9


def assert_generates(directory, network) -> None:
    """Compare beams of a folder with those of the network."""
    search = compat.huggingface.beam_search(3, max_new_tokens=LENGTH)
    results = pybeam.Decoder(pybeam.load_model(directory, device="cpu"), search).decode(SOURCES)
    for source, result in zip(SOURCES, results, strict=True):
        [line] = network.generate(
            torch.tensor([source]), num_beams=3, do_sample=False, max_new_tokens=LENGTH
        ).tolist()
        eos = network.generation_config.eos_token_id
        line = line[1 : line.index(eos, 1)] if eos in line[1:] else line[1:]
        assert result.hypotheses[0].tokens == line


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("layout", READ)
def test_a_published_layout_is_read(tmp_path, layout):
    kind, rewrite = READ[layout]
    network = tiny_model(kind, seed=8)
    favour_eos(network, 2.0)
    if kind == "marian":
        network.generation_config.bad_words_ids = [[network.config.pad_token_id]]
    network.save_pretrained(tmp_path)
    rewrite(tmp_path)
    assert_generates(tmp_path, network)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision(tmp_path, dtype):
    network = tiny_model("bart", seed=5).to(dtype)
    network.save_pretrained(tmp_path / "halves")
    network = network.float()
    network.save_pretrained(tmp_path / "floats")
    assert_generates(tmp_path / "halves", network)
    search = pybeam.fixed_beam(3, n_best=3, max_length=9)
    halves, floats = (
        pybeam.Decoder(pybeam.load_model(tmp_path / name, device="cpu"), search).decode(SOURCES)
        for name in ("halves", "floats")
    )
    assert halves == floats


@pytest.mark.parametrize("layout", REFUSED)
def test_another_layout_is_refused_with_a_remedy(tmp_path, layout):
    message, rewrite = REFUSED[layout]
    save_tiny_model(tmp_path, "m2m_100")
    rewrite(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        pybeam.load_model(tmp_path)
    assert str(tmp_path) in str(caught.value)


def assert_encodes(directory) -> None:
    """Compare a folder's tokenizer with transformers'."""
    ours = pybeam.load_tokenizer(directory)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    for text in ("Jesús lloró.", "Y dijo Dios: Sea la luz", ""):
        assert ours.encode(text) == theirs(text).input_ids


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize("layout", TOKENIZERS)
def test_files_of_a_tokenizer_are_read(tmp_path, layout):
    TOKENIZERS[layout](tmp_path)
    assert_encodes(tmp_path)


@pytest.mark.parametrize("layout", NO_TOKENIZERS)
def test_other_files_of_a_tokenizer_are_refused_with_a_remedy_that_works(tmp_path, layout):
    message, make = NO_TOKENIZERS[layout]
    make(tmp_path)
    with pytest.raises(FileNotFoundError, match=message):
        pybeam.load_tokenizer(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert_encodes(tmp_path)


def test_a_pointer_in_the_place_of_a_vocabulary(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(
        ValueError, match=r"tokenizer.json must hold the file itself, but is a pointer"
    ):
        pybeam.load_tokenizer(tmp_path)


def test_the_page_lists_these_layouts():
    page = (ROOT / "docs" / "reference" / "file-formats.md").read_text("utf-8")
    section = page.split("## Layouts of folders")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (read|refused)", section, re.MULTILINE)
    read, refused = (*READ, *TOKENIZERS), (*REFUSED, *NO_TOKENIZERS)
    assert rows == [*((name, "read") for name in read), *((name, "refused") for name in refused)]


def test_the_log_says_which_tokenizer_was_read(caplog):
    with caplog.at_level(logging.INFO, logger="pybeam"):
        pybeam.load_tokenizer(MODEL)
    said = f"read the tokenizer of {MODEL}: SentencePieces, 0 languages"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_the_log_says_what_was_loaded(tmp_path, caplog):
    network = save_tiny_model(tmp_path, "marian")
    shards(tmp_path)
    with caplog.at_level(logging.INFO, logger="pybeam"):
        model = pybeam.load_model(tmp_path, device="cpu")
        decoder = pybeam.Decoder(model, pybeam.greedy(), backend="reference")
    loaded, decodes = [record.getMessage() for record in caplog.records]
    num = sum(
        weight.numel() for name, weight in network.named_parameters() if "positions" not in name
    )
    assert re.match(rf"loaded Transformer\(marian, 2\+3 .* from {tmp_path}: ", loaded)
    assert int(re.search(r"([\d,]+) parameters", loaded)[1].replace(",", "")) >= num
    assert "Settings(forced_eos_token_id=(0,))" in loaded
    assert decodes == "decoding on cpu with pybeam.backends.reference"
    assert re.match(
        r"Decoder\(Transformer\(.*, Algorithm\(width=1, .*, Fifo\(.*, 'ref", repr(decoder)
    )
