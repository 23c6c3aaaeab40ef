"""Decoder-only models and text: prompts as the tokenizer's file says, in the library and in the shell."""

import json

import pytest

import pybeam
from pybeam.cli import main
from pybeam.text.tokenizer import Tokenizers

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from support.causal_models import VOCAB, save_tiny_causal  # noqa: E402

WORDS = [f"w{i}" for i in range(VOCAB)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny model whose words are w0 to w44; w0 is BOS."""
    path = tmp_path_factory.mktemp("text")
    save_tiny_causal(path, "llama")
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "w1")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["w0", "w2"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="w0 $A", special_tokens=[("w0", 0)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_a_prompt_has_what_the_file_puts_around_it(directory):
    tokenizer = pybeam.load_tokenizer(directory)
    assert tokenizer.encode("w5 w6") == [0, 5, 6]
    assert tokenizer.encode_target("w5 w6") == [5, 6]
    assert tokenizer.decode([5, 6, 2]) == "w5 w6"
    assert tokenizer.prefix == []
    with pytest.raises(ValueError, match="must be left out"):
        pybeam.load_tokenizer(directory, target_lang="en")


def test_the_command_line_continues_prompts(directory, tmp_path, capfd):
    lines = ["w5 w6 w7", "", "w9"]
    path = tmp_path / "in.txt"
    path.write_text("\n".join(lines) + "\n")
    command = ["translate", "--model", str(directory), "--input", str(path), "--json"]
    assert main([*command, "--max-length", "6", "--width", "3"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    model, tokenizer = pybeam.load_model(directory), pybeam.load_tokenizer(directory)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=6))
    for line, one in zip(lines, found, strict=True):
        if line:
            [result] = decoder.decode([tokenizer.encode(line)])
            expected = tokenizer.decode(result.hypotheses[0].tokens)
            assert one["hypotheses"][0]["text"] == expected


def test_a_quantised_folder_keeps_the_tokenizer(directory, tmp_path):
    pybeam.quantize(directory, tmp_path / "int8")
    assert pybeam.load_tokenizer(tmp_path / "int8").encode("w5") == [0, 5]
    assert "int8" in repr(pybeam.load_model(tmp_path / "int8"))


def test_a_server_completes_prompts(directory):
    """The prompt of a request comes twice: its beginning is read once, in one service."""
    pytest.importorskip("fastapi")
    from pybeam.server.models import ServedModel
    from support.server_app import run

    model, tokenizer = pybeam.load_model(directory), pybeam.load_tokenizer(directory)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=6), log_probs=True)
    text = "w5 w6 w7 " * 7

    async def complete(client):
        body = {"model": "tiny", "prompt": text, "max_tokens": 6}
        return [(await client.post("/v1/completions", json=body)).json() for _ in range(2)]

    served = ServedModel("tiny", str(directory), decoder, Tokenizers(directory))
    first, second = run(complete, model=served)
    [result] = decoder.decode([tokenizer.encode(text)])
    expected = tokenizer.decode(result.hypotheses[0].tokens)
    assert [one["choices"][0]["text"] for one in (first, second)] == [expected] * 2
    assert first["usage"]["prompt_tokens"] == 22
