"""The things that an installation must do, with nothing but pybeam, its dependencies and pytest.

`release/smoke.txt` lists this file and others that need no more.
"""

import os

import pytest

import pybeam
from pybeam import backends
from pybeam.cli import main
from support.hub import files_of, instead_of_the_hub, serving_hub
from support.paths import MODEL, ROOT

GEO = ROOT / "examples" / "semantic_parsing" / "geo"  # its tokenizer is tokenizer.json
LINE = "Jehová es mi pastor; nada me faltará."


def best(model, tokenizer, text: str) -> str:
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0)))
    [result] = decoder.decode([tokenizer.encode(text)])
    return tokenizer.decode(result.hypotheses[0].tokens)


def test_the_kernels_are_installed():
    """PYBEAM_EXPECT_NATIVE=1 says that they must be."""
    if os.environ.get("PYBEAM_EXPECT_NATIVE") != "1" and "native" not in backends.available():
        pytest.skip("this installation has no native kernels")
    backends.load("native")


def test_a_translation_from_files_of_sentencepiece():
    text = best(pybeam.load_model(MODEL), pybeam.load_tokenizer(MODEL), LINE)
    assert text == "The LORD is my shepherd; he shall not want."


def test_a_logical_form_from_files_of_tokenizers():
    tokenizer = pybeam.load_tokenizer(GEO)
    text = best(pybeam.load_model(GEO), tokenizer, "what is the capital of var0")
    assert text == "( A , ( _capital ( A ) , _loc ( A , B ) , _const ( B , _stateid ( var0 ) ) ) )"


def test_a_name_on_the_hub(tmp_path):
    with serving_hub() as hub, instead_of_the_hub(hub):
        hub.add("owner/bible", files_of(MODEL))
        folder = pybeam.hub.fetch("owner/bible", cache_dir=tmp_path)
    assert files_of(folder).items() <= files_of(MODEL).items()
    pybeam.load_model(folder)


def test_a_model_is_quantised(tmp_path):
    assert main(["quantize", str(MODEL), "--output", str(tmp_path / "int8")]) == 0
    text = best(pybeam.load_model(tmp_path / "int8"), pybeam.load_tokenizer(MODEL), LINE)
    assert text.startswith("The LORD is my shepherd")
