"""`Vocabulary`: joined bytes are the text that the tokenizer decodes, whatever files it has."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import decoders, models

import pybeam
from pybeam.automata.vocabulary import ALPHABET, Vocabulary
from pybeam.text.characters import CharacterPieces
from pybeam.text.subwords import JsonPieces, MappedPieces
from pybeam.text.tokenizer import Tokenizer
from support import fireredasr_files
from support.paths import MODEL

SPM = MODEL / "sentencepiece.model"
SPECIAL = ["<s>", "</s>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁▁", "▁a", "a", "b▁c", "▁☃", "é", "1"]
LETTER = {byte: character for character, byte in ALPHABET.items()}
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
LLAMA.append(decoders.Strip(" ", 1, 0))


def of_json(path, tokens, decoder):
    """A tokenizer of `tokenizer.json` with these tokens, of which `SPECIAL` are special ones."""
    tokens = [*SPECIAL, *tokens]
    made = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    if decoder is not None:
        made.decoder = decoder
    made.add_special_tokens(SPECIAL)
    # Whisper's, which is not special
    made.add_tokens(["<|0.02|>"])
    made.save(str(path / "tokenizer.json"))
    return Tokenizer(JsonPieces(path / "tokenizer.json"), [], [], [])


def gpt2(text):
    return "".join(LETTER[byte] for byte in text)


def byte_level(path):
    tokens = [gpt2(one) for one in (b" a", b"b", b"\xe2\x98", b"\x83 c", b"\x83", b"\n", b"  ")]
    return of_json(path, tokens, decoders.ByteLevel())


def mapped(path, extra=()):
    """SentencePiece's ids in another order, with tags, and tokens that its model does not know."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(SPM))
    pieces = sorted(model.id_to_piece(i) for i in range(0, 3000))
    ids = {piece: i + 3 for i, piece in enumerate([*pieces, "__en__", ">>es<<", "▁new▁", *extra])}
    return Tokenizer(MappedPieces(SPM, SPM, {"<unk>": 0}, ids), [], [], [])


def characters(path):
    (path / "dict.txt").write_text("\n".join(fireredasr_files.tokens(40)), "utf-8")
    (path / "train.model").write_bytes(fireredasr_files.pieces())
    return Tokenizer(CharacterPieces(path / "dict.txt", path / "train.model"), [], [], [])


def converted(path):
    """A folder of CTranslate2."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(SPM))
    words = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    (path / "shared_vocabulary.json").write_text(json.dumps([*words, "▁a"]))
    (path / "model.bin").write_bytes(bytes(8))
    shutil.copy(SPM, path / "sentencepiece.model")
    return pybeam.load_tokenizer(path)


def example(name):
    return lambda path: pybeam.load_tokenizer(MODEL.parent / name)


TOKENIZERS = {
    "SentencePiece": example("bible-es-en"),
    "Whisper": example("spoken-verses-en"),
    "words": example("spoken-numbers-en"),
    "byte level": byte_level,
    "Metaspace": lambda path: of_json(path, WORDS, decoders.Metaspace()),
    "Metaspace that keeps": lambda path: of_json(
        path, WORDS, decoders.Metaspace(prepend_scheme="never")
    ),
    "Llama": lambda path: of_json(path, [*BYTES, *WORDS], decoders.Sequence(LLAMA)),
    "WordPiece": lambda path: of_json(
        path, ["sea", "##s", "##", ".", "n't", "☃"], decoders.WordPiece()
    ),
    "Marian": mapped,
    "CTranslate2": converted,
    "FireRedASR": characters,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_joined_bytes_are_the_decoded_text(name, tmp_path):
    tokenizer = TOKENIZERS[name](tmp_path)
    vocabulary = Vocabulary.of(tokenizer)
    assert len(vocabulary) == max(tokenizer.target_ids.values()) + 1
    draw = random.Random(name)
    spaces = [i for i in vocabulary.written if not vocabulary.opening[i].strip()]
    num_compared = 0
    for trial in range(300):
        ids = draw.choices(vocabulary.written, k=draw.randint(1, 8))
        # a text may begin with several tokens that it does not show
        ids = draw.choices(spaces, k=trial % 4) + ids if spaces else ids
        text = vocabulary.text(ids)
        try:
            expected = text.decode()
        except UnicodeDecodeError:
            continue
        assert tokenizer.decode(ids, strips=False) == expected
        num_compared += 1
    assert num_compared > 50


@pytest.mark.parametrize("name", ["SentencePiece", "byte level", "Llama"])
def test_tokens_hold_parts_of_characters(name, tmp_path):
    tokenizer = TOKENIZERS[name](tmp_path)
    names = tokenizer.target_ids
    pieces = [f"<0x{byte:02X}>" for byte in "☃".encode()]
    if name == "byte level":
        pieces = [gpt2(b"\xe2\x98"), gpt2(b"\x83 c")]
    ids = [names[one] for one in pieces]
    vocabulary = Vocabulary.of(tokenizer)
    assert vocabulary.tokens[ids[0]] in (b"\xe2", b"\xe2\x98")
    assert vocabulary.text(ids).decode() == tokenizer.decode(ids, strips=False)
    assert "☃" in vocabulary.text(ids).decode()


@pytest.mark.parametrize("name", ["Llama", "byte level", "Marian"])
def test_control_tokens_have_no_text(name, tmp_path):
    tokenizer = TOKENIZERS[name](tmp_path)
    vocabulary = Vocabulary.of(tokenizer)
    control = [*SPECIAL, "<|0.02|>", "__en__", ">>es<<"]
    found = [tokenizer.target_ids[one] for one in control if one in tokenizer.target_ids]
    assert len(found) >= 4
    assert not {*found} & {*vocabulary.written}
    with pytest.raises(ValueError, match=rf"`ids` must have texts, but {found[0]} is a control"):
        vocabulary.text([found[0]])
    with pytest.raises(ValueError, match="is a control token"):
        vocabulary.text([len(vocabulary)])


def test_a_space_that_opens_a_text_is_dropped_where_the_tokenizer_drops_it(tmp_path):
    found = {}
    for name in ("SentencePiece", "Metaspace", "Metaspace that keeps"):
        (tmp_path / name).mkdir()
        tokenizer = TOKENIZERS[name](tmp_path / name)
        ids = [tokenizer.target_ids[one] for one in ("▁", "▁a", "▁a")]
        found[name] = Vocabulary.of(tokenizer).text(ids)
    assert found["SentencePiece"] == b"a a"
    example = pybeam.load_tokenizer(MODEL)
    behind = Vocabulary.of(example).continuing
    assert behind.text(example.encode_target("a a")) == b" a a"
    assert found["Metaspace"] == b" a a"
    assert found["Metaspace that keeps"] == b"  a a"


def test_transformers(tmp_path):
    own = byte_level(tmp_path)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="</s>"
    )
    ours, theirs = Vocabulary.of(own), Vocabulary.of(wrapped)
    # transformers shows Whisper's points in time
    shown = own.target_ids["<|0.02|>"]
    assert theirs.tokens[shown] == b"<|0.02|>"
    assert theirs.tokens[:shown] == ours.tokens[:shown]


class Texts:
    def __init__(self, texts) -> None:
        self._texts = texts

    def vocab(self):
        return self._texts


def test_any_object_may_give_the_texts():
    by_id = Vocabulary.of(Texts({3: "é", 1: b"\xff", 0: None, 4: ""}))
    assert by_id.tokens == by_id.opening == (None, b"\xff", None, "é".encode(), None)
    assert Vocabulary.of(Texts(["a", None])).tokens == (b"a", None)
    assert not by_id.skips


def test_a_tokenizer_is_read_once(tmp_path):
    tokenizer = byte_level(tmp_path)
    vocabulary = Vocabulary.of(tokenizer)
    assert Vocabulary.of(tokenizer) is vocabulary
    assert Vocabulary.of(vocabulary) is vocabulary
    assert repr(vocabulary) == "Vocabulary(11 ids, 7 with a text)"


def test_a_token_must_have_a_text_of_its_own(tmp_path):
    tokenizer = of_json(tmp_path, ["a</w>", "b", "c</w>"], decoders.BPEDecoder())
    with pytest.raises(ValueError, match="`tokenizer` must give each token a text of its own, but"):
        Vocabulary.of(tokenizer)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Texts("abc"), "must give a list of texts, or texts by id, but gives str"),
        (Texts([5]), "must give str, bytes or None, but gives 5"),
        (3, "`tokenizer` must be a pybeam.Tokenizer, .* but is int"),
        (print, "`tokenizer` must be a pybeam.Tokenizer, .* but is builtin_function_or_method"),
    ],
)
def test_what_is_no_tokenizer(wrong, message):
    with pytest.raises(TypeError, match=message):
        Vocabulary.of(wrong)
