"""Folders of Marian: read with the outputs that CTranslate2's converter gives them, or refused."""

import io
import json
import shutil
import struct
import zipfile

import ctranslate2
import numpy as np
import pytest
import sentencepiece
import torch

import pybeam
from pybeam import backends
from pybeam.models.transformer.ssru import Recurrence
from support.marian_folders import (
    EOS,
    HEADS,
    HIDDEN,
    JOINT,
    PRE_NORM,
    SOURCE_VOCAB,
    SSRU,
    VOCAB,
    convert,
    positions,
    tokens_of,
    write_arrays,
    write_folder,
    write_vocabulary,
)
from support.paths import MODEL
from support.threads import every_thread_count

MAX_LENGTH = 12
PIECES = MODEL / "sentencepiece.model"
KINDS = {"norms behind": {}, "norms before": PRE_NORM, "one vocabulary": JOINT}


def ids_of_sources(seed: int, size: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(2, size, rng.integers(1, 8)).tolist(), EOS] for _ in range(4)]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_ctranslate2(tmp_path, kind):
    arrays, settings = write_folder(tmp_path / "marian", 7, **KINDS[kind])
    sources = ids_of_sources(3, settings["dim-vocabs"][0])
    _, target = vocabularies = convert(
        tmp_path / "marian", tmp_path / "converted", arrays, settings
    )
    translator = ctranslate2.Translator(str(tmp_path / "converted"))
    source = [[vocabularies[0][i] for i in one[:-1]] for one in sources]
    decoder = pybeam.Decoder(
        pybeam.load_model(tmp_path / "marian", device="cpu"),
        pybeam.compat.ctranslate2.beam_search(
            4, num_hypotheses=4, max_decoding_length=MAX_LENGTH, length_penalty=0.0
        ),
    )
    options = dict(beam_size=4, num_hypotheses=4, max_decoding_length=MAX_LENGTH)
    expected = translator.translate_batch(source, length_penalty=0.0, return_scores=True, **options)
    lengths = set()
    for result, theirs in zip(decoder.decode(sources), expected, strict=True):
        found = [[target[token] for token in one.tokens] for one in result.hypotheses]
        assert found == theirs.hypotheses
        scores = [one.score for one in result.hypotheses]
        assert scores == pytest.approx(theirs.scores, abs=2e-4)
        lengths |= set(map(len, found))
    assert len(lengths) > 2


def test_words_are_read_as_text(tmp_path):
    write_folder(tmp_path, 1)
    vocabularies = pybeam.text.tokenizer.load_vocabularies(tmp_path)
    expected = [tokens_of(size) for size in (SOURCE_VOCAB, VOCAB)]
    assert [list(one) for one in vocabularies] == expected
    assert [list(one.values()) for one in vocabularies] == [[*range(len(one))] for one in expected]


def norm(x, scale, bias):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * scale + bias


def ssru_log_probs(arrays, source: list[int], target: list[int], is_pre_norm: bool) -> np.ndarray:
    """Compute Marian's decoder as its paper defines it, for one source and one output."""

    def sublayer(x, name, f):
        if is_pre_norm:
            own = [arrays[f"{name}_ln_{part}_pre"] for part in ("scale", "bias")]
            return x + f(norm(x, *own))
        return norm(x + f(x), *(arrays[f"{name}_ln_{part}"] for part in ("scale", "bias")))

    def linear(x, name, end):
        return x @ arrays[f"{name}_W{end}"] + arrays[f"{name}_b{end}"]

    def attention(name, memory):
        def attend(x):
            y = np.empty_like(x)
            query = linear(x, name, "q")
            key, value = (linear(x if memory is None else memory, name, end) for end in "kv")
            for head in np.split(np.arange(HIDDEN), HEADS):
                score = query[:, head] @ key[:, head].T / len(head) ** 0.5
                share = np.exp(score - score.max(1, keepdims=True))
                y[:, head] = share / share.sum(1, keepdims=True) @ value[:, head]
            return linear(y, name, "o")

        return attend

    def inner(name):
        def activation(x):
            return x / (1 + np.exp(-x)) if is_pre_norm else np.maximum(x, 0)

        return lambda x: linear(activation(linear(x, name, "1")), name, "2")

    def recurrence(name):
        def recur(x):
            candidate = x @ arrays[f"{name}_W"]
            forget = 1 / (1 + np.exp(-linear(x, name, "f")))
            state, states = np.zeros(HIDDEN), []
            for one, share in zip(candidate, forget, strict=True):
                state = share * state + (1 - share) * one
                states.append(np.maximum(state, 0))
            return np.stack(states)

        return recur

    def embedded(name, ids):
        table = np.concatenate((arrays[name], np.zeros((1, HIDDEN))))[ids]
        x = table * HIDDEN**0.5 + positions(len(ids))
        if is_pre_norm:
            stack = name.removesuffix("_Wemb")
            x = norm(x, arrays[f"{stack}_emb_ln_scale_pre"], arrays[f"{stack}_emb_ln_bias_pre"])
        return x

    def top(stack, x):
        if not is_pre_norm:
            return x
        return norm(x, arrays[f"{stack}_top_ln_scale"], arrays[f"{stack}_top_ln_bias"])

    behind = "" if is_pre_norm else "_ffn"
    x = embedded("encoder_Wemb", source)
    for i in (1, 2):
        x = sublayer(x, f"encoder_l{i}_self_Wo", attention(f"encoder_l{i}_self", None))
        x = sublayer(x, f"encoder_l{i}_ffn_ffn", inner(f"encoder_l{i}_ffn"))
    memory = top("encoder", x)
    x = embedded("decoder_Wemb", [-1, *target])
    for i in (1, 2):
        x = sublayer(x, f"decoder_l{i}_rnn{behind}", recurrence(f"decoder_l{i}_rnn"))
        x = sublayer(x, f"decoder_l{i}_context_Wo", attention(f"decoder_l{i}_context", memory))
        x = sublayer(x, f"decoder_l{i}_ffn_ffn", inner(f"decoder_l{i}_ffn"))
    logits = top("decoder", x) @ arrays["decoder_Wemb"].T + arrays["decoder_ff_logit_out_b"]
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize("kind", ["norms behind", "norms before"])
def test_ssru_is_that_of_the_paper(tmp_path, kind):
    arrays, _ = write_folder(tmp_path, 7, **KINDS[kind], **SSRU)
    model = pybeam.load_model(tmp_path, device="cpu")
    search = pybeam.fixed_beam(4, n_best=4, max_length=MAX_LENGTH)
    sources = ids_of_sources(3, SOURCE_VOCAB)
    for source, result in zip(sources, pybeam.Decoder(model, search).decode(sources), strict=True):
        for one in result.hypotheses:
            tokens = [*one.tokens, EOS] if one.ended else one.tokens
            log_probs = ssru_log_probs(arrays, source, one.tokens, bool(KINDS[kind]))
            expected = sum(log_probs[i, token] for i, token in enumerate(tokens))
            assert one.score == pytest.approx(expected, abs=2e-4)


def test_ssru_does_not_depend_on_the_batch(tmp_path):
    write_folder(tmp_path, 7, **JOINT, **SSRU)
    model = pybeam.load_model(tmp_path, device="cpu", dtype="int8")
    sources = ids_of_sources(4, VOCAB) * 2
    search = pybeam.variable_beam(4, max_length=MAX_LENGTH)
    expected = pybeam.Decoder(model, search, schedule=pybeam.Batch(1)).decode(sources)
    assert pybeam.Decoder(model, search, schedule=pybeam.Batch(8)).decode(sources) == expected


@pytest.mark.skipif("native" not in backends.available(), reason="torch's sums have other bits")
def test_gates_of_ssru_do_not_depend_on_the_threads():
    native = backends.load("native")
    forget = 3 * torch.randn(200, 512, generator=torch.Generator().manual_seed(0))

    def states(forget):
        recurrence = Recurrence(torch.ones(len(forget), 1, 512))
        recurrence.attend(native, None, 0, None, torch.zeros_like(forget), forget)
        return recurrence.new[0]

    expected = torch.cat([states(row) for row in forget.split(1)])
    assert all(torch.equal(states(forget), expected) for _ in every_thread_count())


def test_vocabularies_of_sentencepiece(tmp_path):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
    size = pieces.get_piece_size()
    write_folder(tmp_path, 1, **{**JOINT, "dim-vocabs": [size, size]})
    shutil.copy(PIECES, tmp_path / "vocab.spm")
    decoder = tmp_path / "decoder.yml"
    path = r"C:\\models\\vocab.spm"  # of the machine that trained it
    decoder.write_text(f'models: [/of/another/model.npz]\nvocabs: ["{path}", vocab.spm]\n')
    decoder.rename(tmp_path / "model.npz.decoder.yml")
    text = "Jesús lloró."
    tokenizer = pybeam.load_tokenizer(tmp_path)
    ids = tokenizer.encode(text)
    assert ids == [*pieces.encode(text), pieces.eos_id()]
    assert tokenizer.decode(ids[:-1]) == text
    model = pybeam.load_model(tmp_path, device="cpu")
    assert model.eos_id == pieces.eos_id()
    # `allow-unk` is not given
    assert model.settings.suppress_tokens == (pieces.unk_id(),)


def test_words_beside_models_of_sentencepiece(tmp_path):
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(PIECES))
    tokens = sorted(pieces.id_to_piece(list(range(pieces.get_piece_size()))))
    write_folder(tmp_path, 1)
    (tmp_path / "source.yml").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    write_vocabulary(tmp_path / "target.yml", tokens)
    with pytest.raises(FileNotFoundError, match=r"no tokenizer in .*give token ids"):
        pybeam.load_tokenizer(tmp_path)
    for name in ("source.spm", "target.spm"):
        shutil.copy(PIECES, tmp_path / name)
    tokenizer = pybeam.load_tokenizer(tmp_path)
    text = "Jesús lloró."
    ids = tokenizer.encode(text)
    assert [tokens[i] for i in ids] == [*pieces.encode(text, out_type=str), "</s>"]
    assert tokenizer.decode(tokenizer.encode_target(text)) == text


OTHER_SETTINGS = {
    "average attention": (
        {"transformer-decoder-autoreg": "average-attention"},
        "autoreg.*'self-attention' or 'rnn', but is 'average-attention'",
    ),
    "other cells": ({**SSRU, "dec-cell": "gru"}, "dec-cell.*must be 'ssru', but is 'gru'"),
    "tied layers": ({"transformer-tied-layers": [1, 1]}, "weights of their own"),
    "highway": ({"transformer-postprocess": "hn"}, "must be '' and 'dan'.*'hn'"),
    "another kind": ({"type": "s2s"}, "`type` in .*must be 'transformer', but is 's2s'"),
    "heads": ({"transformer-heads": 3}, "must be a multiple of `transformer-heads`"),
    "no layers": ({"enc-depth": 0}, "`enc-depth` in .*must be an integer from 1 to"),
}


@pytest.mark.parametrize("kind", OTHER_SETTINGS)
def test_layers_that_compute_something_else_are_refused(tmp_path, kind):
    arrays, settings = write_folder(tmp_path, 1)
    changes, message = OTHER_SETTINGS[kind]
    write_arrays(tmp_path / "model.npz", arrays, settings | changes)
    with pytest.raises(ValueError, match=message) as caught:
        pybeam.load_model(tmp_path)
    assert str(tmp_path) in str(caught.value)


def without(name):
    return lambda arrays: arrays.pop(name)


def changed(name, value):
    return lambda arrays: arrays.update({name: value})


OTHER_ARRAYS = {
    "missing": (without("encoder_l2_ffn_W1"), "`encoder.layers.1.fc1.weight` is missing"),
    "of no layer": (changed("encoder_l3_ffn_W1", np.zeros((2, 2), "f4")), "encoder_l3_ffn_W1.*not"),
    "turned": (changed("encoder_l1_self_Wq", np.zeros((16, 8), "f4")), "must be .16, 16."),
    "objects": (changed("decoder_Wemb", np.array([[{}]])), "numbers of float32.*but has object"),
    "complex": (changed("decoder_Wemb", np.zeros((19, 16), "c8")), "but has complex64"),
    "integers": (changed("decoder_Wemb", np.zeros((19, 16), "i1")), "must be a float tensor"),
    "NaN": (
        changed("decoder_l1_ffn_b2", np.full((1, 16), np.nan, "f4")),
        "found NaN in `decoder_l1_ffn_b2`",
    ),
    "small": (changed("decoder_Wemb", np.zeros((5, 16), "f4")), "must have ids below 5"),
}


@pytest.mark.parametrize("kind", OTHER_ARRAYS)
def test_odd_arrays_are_refused(tmp_path, kind):
    arrays, settings = write_folder(tmp_path, 1)
    change, message = OTHER_ARRAYS[kind]
    change(arrays)
    write_arrays(tmp_path / "model.npz", arrays, settings)
    with pytest.raises(ValueError, match=message):
        pybeam.load_model(tmp_path)


def cut(directory):
    path = directory / "model.npz"
    path.write_bytes(path.read_bytes()[:-9000])


def compressed(directory):
    path = directory / "model.npz"
    with np.load(path) as arrays:
        np.savez_compressed(path, **arrays)


def of_more_bytes(directory):
    """The header of an array claims more numbers than there are."""
    path = directory / "model.npz"
    path.write_bytes(path.read_bytes().replace(b"(16, 24)", b"(96, 24)", 1))


def behind_the_end(directory):
    """Bytes that one array leaves out are claimed by another, behind which the file ends."""
    numbers = io.BytesIO()
    np.save(numbers, np.zeros(4096, "f4"))
    with zipfile.ZipFile(directory / "model.npz", "a") as archive:
        for name, size in {"few.npy": 4, "many.npy": 4096}.items():
            header = numbers.getvalue()[:128].replace(b"(4096,)", f"({size},)".encode().ljust(7))
            archive.writestr(name, header + (bytes(1 << 15) if size == 4 else b""))
            part = archive.infolist()[-1]
            part.file_size = part.compress_size = len(header) + 4 * size


def odd_header(directory):
    """Python's own parser has no memory for what stands where the shape of an array should."""
    text = b"-" * 9000 + b"1"
    with zipfile.ZipFile(directory / "model.npz", "a") as archive:
        archive.writestr("odd.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text)


def without_settings(directory):
    with np.load(directory / "model.npz") as arrays:
        kept = {name: arrays[name] for name in arrays if not name.startswith("special")}
    np.savez(directory / "model.npz", **kept)


def text_of(name, text):
    return lambda directory: (directory / name).write_text(text)


def named(models, vocabs):
    return text_of("decoder.yml", f"models: {models}\nvocabs: {vocabs}\n")


OTHER_FILES = {
    "cut": (cut, "model.npz is not a sound file of numpy arrays"),
    "compressed": (compressed, "is compressed or encrypted"),
    "a claim": (of_more_bytes, "must have .96, 24. numbers, but has"),
    "behind the end": (behind_the_end, "many.npy must have .4096. numbers, but has"),
    "an odd header": (odd_header, "is not a sound file of numpy arrays"),
    "no settings": (without_settings, "must have the settings of Marian's training"),
    "two models": (named("[a.npz, b.npz]", "[a, b]"), "each in a folder of its own for several"),
    "one vocabulary": (named("[model.npz]", "[source.yml]"), "`vocabs` in .*must be 2"),
    "factors": (named("[model.npz]", "[a.fsv, a.fsv]"), "is a vocabulary of factors"),
    "elsewhere": (named("['..']", "[source.yml, target.yml]"), "must name files in its own folder"),
    "aliases": (text_of("decoder.yml", "a: &a [1]\nmodels: *a\n"), "an alias stands there"),
    "no table": (text_of("decoder.yml", "- a\n"), "there must be a table of settings"),
    "no YAML": (text_of("decoder.yml", "a: [\n"), "must be a YAML file"),
    "deep": (text_of("decoder.yml", "a: " + "[" * 99999), "must be a YAML file"),
    "a number twice": (text_of("target.yml", "a: 1\nb: 1\n"), "one id for two"),
    "a token twice": (text_of("target.yml", "a: 1\n'a': 2\n"), "stands there twice"),
    "no number": (text_of("target.yml", "a: b\n"), "must be a vocabulary, but cannot be read"),
    "no EOS": (text_of("target.yml", "a: 1\n"), "must have the token '</s>'"),
    "several": (
        lambda directory: (
            [(directory / f"{name}.decoder.yml").write_text("") for name in "ab"]
            and (directory / "decoder.yml").unlink()
        ),
        "must have a decoder.yml, but has a.decoder.yml, b.decoder.yml",
    ),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_odd_files_are_refused(tmp_path, kind):
    write_folder(tmp_path, 1)
    change, message = OTHER_FILES[kind]
    change(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        pybeam.load_model(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_weights_in_both_of_marians_forms(tmp_path):
    """Marian's own model.bin, which begins with its version in eight bytes, is none of CTranslate2's."""
    write_folder(tmp_path, 7)
    alone = pybeam.load_model(tmp_path, device="cpu").num_parameters
    vocabularies = pybeam.text.tokenizer.load_vocabularies(tmp_path)
    (tmp_path / "model.bin").write_bytes(struct.pack("<QQ", 1, 80) + bytes(64))
    assert pybeam.load_model(tmp_path, device="cpu").num_parameters == alone
    assert pybeam.text.tokenizer.load_vocabularies(tmp_path) == vocabularies


def test_such_a_folder_is_not_quantised(tmp_path):
    write_folder(tmp_path / "marian", 1)
    with pytest.raises(ValueError, match="or Marian, which is read as it is; load it with dtype"):
        pybeam.quantize(tmp_path / "marian", tmp_path / "int8")
