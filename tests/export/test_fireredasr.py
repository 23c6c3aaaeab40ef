"""`convert_fireredasr`: what the published folder becomes, and all that is refused."""

import argparse
import json
import math
import os
import pathlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import pybeam
from pybeam.cli import main
from pybeam.export import convert_fireredasr
from pybeam.export.kaldi import read_matrix
from pybeam.speech import load_feature_extractor, read_wav
from support.fireredasr_files import (
    SIZES,
    recordings,
    save_checkpoint,
    save_published,
    statistics,
    write_statistics,
)
from support.seed_beam_search import OPTIONS, batch_beam_search
from support.speech_models import tone, write_wav

SOURCES = recordings(12, seed=3)[2:]
# hypotheses of this model end at many lengths
SEED = 14
RATE = 16000


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    directory = tmp_path_factory.mktemp("published") / "FireRedASR-AED"
    return directory, save_published(directory, SEED, eos_nats=3.0)


@pytest.fixture(scope="module")
def converted(published, tmp_path_factory):
    directory = tmp_path_factory.mktemp("converted") / "model"
    convert_fireredasr(published[0], directory)
    return directory


@pytest.fixture
def broken(published, tmp_path):
    """The published folder, to be broken, and where nothing may be written."""
    directory = tmp_path / "broken"
    directory.mkdir()
    for path in published[0].iterdir():
        (directory / path.name).symlink_to(path)
    return directory


def replaced(directory, name: str) -> pathlib.Path:
    (directory / name).unlink()
    return directory / name


def test_the_folder_is_complete_and_no_pickle(converted):
    assert sorted(path.name for path in converted.iterdir()) == [
        "config.json",
        "dict.txt",
        "model.safetensors",
        "preprocessor_config.json",
        "train_bpe1000.model",
    ]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.inference_mode()
def test_the_search_is_that_of_fireredasr(published, converted, device, options):
    """Tokens and scores, of ragged recordings on streams, beside the batch search of one at a time."""
    model, plain = pybeam.load_model(converted, device=device), published[1]
    search = pybeam.compat.fireredasr.beam_search(**options)
    # the original's limit is that of the longest source in its batch
    expected = [batch_beam_search(plain, [source], **options)[0] for source in SOURCES]
    found = {len(tokens) for one in expected for tokens, _ in one}
    assert len(found) > 1, "nothing ends at a length of its own"
    # FireRedASR looks at no padding that it has generated, and there is none here
    assert all(plain.sizes.pad_id not in tokens for one in expected for tokens, _ in one)
    for schedule in (pybeam.Batch(3), pybeam.Streaming(4)):
        results = pybeam.Decoder(model, search, schedule=schedule).decode(SOURCES)
        for result, own in zip(results, expected, strict=True):
            assert [h.tokens for h in result.hypotheses] == [tokens for tokens, _ in own]
            scores = [h.final_score for h in result.hypotheses]
            assert scores == pytest.approx([score for _, score in own], abs=1e-4)


def test_two_graphs_hear_alone(converted, tmp_path, capfd):
    """The shell exports what turns samples into features, beside the search."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx_ir")
    output = tmp_path / "onnx"
    assert main(["export-onnx", "--model", str(converted), "--output", str(output)]) == 0
    assert "features.onnx, search.onnx" in capfd.readouterr().out
    samples = torch.from_numpy(tone(9000, seed=1) / np.float32(2**15))
    session = onnxruntime.InferenceSession(output / "features.onnx")
    [features] = session.run(None, {"samples": samples.numpy()})
    expected = load_feature_extractor(converted)(samples)
    torch.testing.assert_close(torch.from_numpy(features), expected, rtol=1e-3, atol=2e-3)


def test_features_are_kaldis_and_normalised(converted, published):
    samples = tone(9000, seed=1)
    extract = load_feature_extractor(converted)
    found = extract(torch.from_numpy(samples / np.float32(2**15)))
    kaldi_native_fbank = pytest.importorskip("kaldi_native_fbank")
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = SIZES["idim"]
    computer = kaldi_native_fbank.OnlineFbank(options)
    computer.accept_waveform(RATE, samples.tolist())
    frames = np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])
    sums, squares = statistics(SIZES["idim"], SEED)
    for column in range(SIZES["idim"]):
        mean = sums[column] / sums[-1]
        deviation = math.sqrt(squares[column] / sums[-1] - mean * mean)
        expected = (frames[:, column] - mean) * (1.0 / deviation)
        assert np.array_equal(found[:, column].numpy(), expected.astype(np.float32))
    assert extract(torch.zeros(300)).shape == (0, SIZES["idim"])


def test_text_and_tokens(converted, published):
    tokenizer = pybeam.load_tokenizer(converted)
    lines = (published[0] / "dict.txt").read_text("utf-8").splitlines()
    ids = {line.split()[0]: int(line.split()[1]) for line in lines}
    one = tokenizer.encode_target("one two")
    assert tokenizer.decode(one) == "ONE TWO" and ids["<unk>"] not in one
    mixed = tokenizer.encode_target("一二, one 三。TWO!")
    assert [token for token in mixed if token in (ids["一"], ids["二"], ids["三"])] == [
        ids["一"],
        ids["二"],
        ids["三"],
    ]
    assert tokenizer.decode(mixed) == "一二 ONE三 TWO"
    assert tokenizer.encode_target("們") == [ids["<unk>"]]
    special = [ids[f"<{name}>"] for name in ("sos", "blank", "pad", "eos")]
    assert tokenizer.decode([*special, ids["十"], *special]) == "十"
    assert tokenizer.unk_id == ids["<unk>"]


@pytest.fixture
def sounds(tmp_path):
    paths = [tmp_path / f"{i}.wav" for i in range(3)]
    for i, path in enumerate(paths):
        write_wav(path, tone(4000 + 5000 * i, seed=i), RATE)
    return paths


def test_the_commands(published, converted, sounds, tmp_path, capfd):
    """Convert, transcribe, and quantise, each in the shell."""
    output = tmp_path / "again"
    assert main(["convert", "fireredasr", str(published[0]), "--output", str(output)]) == 0
    assert "MB of weights" in capfd.readouterr().out
    for path in converted.iterdir():
        assert path.read_bytes() == (output / path.name).read_bytes()
    search = pybeam.compat.fireredasr.beam_search(3, softmax_smoothing=1.25, length_penalty=0.6)
    options = ["--recipe=fireredasr", "--width=3", "--temperature=1.25", "--length-penalty=0.6"]
    quantised = tmp_path / "int8"
    assert main(["quantize", str(output), "--output", str(quantised), "--quiet"]) == 0
    capfd.readouterr()
    for directory in (output, quantised):
        extract, tokenizer = load_feature_extractor(directory), pybeam.load_tokenizer(directory)
        sources = [extract(read_wav(path, RATE)) for path in sounds]
        results = pybeam.Decoder(pybeam.load_model(directory), search).decode(sources)
        expected = [tokenizer.decode(result.hypotheses[0].tokens) for result in results]
        command = ["transcribe", "--model", str(directory), "--quiet", *options]
        assert main([*command, *map(str, sounds)]) == 0
        assert capfd.readouterr().out.split("\n")[:-1] == expected


def refused(directory, message: str) -> None:
    """Assert that the folder is refused with this message, and that nothing is written."""
    before = sorted(directory.parent.iterdir())
    with pytest.raises(ValueError, match=message):
        convert_fireredasr(directory, directory.parent / "new" / "output")
    assert sorted(directory.parent.iterdir()) == before


class Malice:
    """A pickle of this runs a command where it is opened."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("place", ["args", "weights", "whole"])
def test_a_pickle_that_runs_code_is_refused(published, broken, tmp_path, place, is_old):
    trace = tmp_path / "trace"
    malice, plain = Malice(f"touch {trace}"), published[1]
    package: object = {
        "args": malice if place == "args" else plain.sizes,
        "model_state_dict": {**plain.weights, "more": malice if place == "weights" else 0},
    }
    path = replaced(broken, "model.pth.tar")
    zipped = not is_old
    torch.save(malice if place == "whole" else package, path, _use_new_zipfile_serialization=zipped)
    refused(broken, "argparse.Namespace alone.*can run code, so it was not opened")
    assert not trace.exists()


def test_objects_within_the_arguments_are_refused(published, broken):
    path = replaced(broken, "model.pth.tar")
    arguments = argparse.Namespace(**SIZES, place=pathlib.PurePosixPath("/"))
    torch.save({"args": arguments, "model_state_dict": published[1].weights}, path)
    refused(broken, r"but names pathlib\S+; .* so it was not opened")


@pytest.mark.parametrize("is_old", [False, True])
def test_both_formats_of_torch_are_read(published, converted, broken, is_old):
    path = replaced(broken, "model.pth.tar")
    package = {"args": published[1].sizes, "model_state_dict": published[1].weights}
    torch.save(package, path, _use_new_zipfile_serialization=not is_old)
    convert_fireredasr(broken, broken.parent / "out")
    weights = (broken.parent / "out" / "model.safetensors").read_bytes()
    assert weights == (converted / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["model.pth.tar", "cmvn.ark", "dict.txt", "train_bpe1000.model"])
def test_missing_files_are_named(broken, name):
    (broken / name).unlink()
    refused(broken, f"{name} is missing; is the download complete")


def test_the_model_with_a_language_model_is_named(broken):
    (broken / "train_bpe1000.model").unlink()
    (broken / "asr_encoder.pth.tar").touch()
    refused(broken, "holds FireRedASR-LLM")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no checkpoint", "not opened|is not a sound checkpoint"),
        (b"", "is not a sound checkpoint"),
        (b"PK\x03\x04 no checkpoint", "not opened|is not a sound checkpoint"),
    ],
)
def test_files_that_are_no_checkpoint(broken, content, message):
    replaced(broken, "model.pth.tar").write_bytes(content)
    refused(broken, message)


NAME = "encoder.layer_stack.1.mhsa.w_qs.weight"


@pytest.mark.parametrize(
    ("sizes", "change", "message"),
    [
        ({}, {NAME: None}, f"`{NAME}` is missing"),
        ({}, {NAME: torch.zeros(24, 23)}, r"must be floats \[24, 24\], but is .*\[24, 23\]"),
        (
            {},
            {NAME: torch.zeros(24, 24, dtype=torch.int8)},
            r"floats \[24, 24\], but is torch.int8",
        ),
        (
            {},
            {"lm.weight": torch.zeros(1)},
            r"`lm.weight`.* is not part of FireRedASR-AED \(1 such",
        ),
        ({}, {"decoder.tgt_word_prj.weight": torch.zeros(40, 24)}, "must equal `decoder.tgt_word"),
        ({"n_layers_enc": 1}, {}, r"`encoder.layer_stack.1.* is not part"),
        ({"n_layers_dec": 3}, {}, r"`decoder.layer_stack.2.* is missing"),
        ({"d_model": 0}, {}, "`args.d_model`.*positive integer, but is 0"),
        ({"n_head": None}, {}, "`args.n_head`.*but is None"),
        ({"n_head": 7}, {}, "multiple of n_head = 7, but is 24"),
        ({"eos_id": 40}, {}, "`args.eos_id`.* below odim = 40, but is 40"),
    ],
)
def test_checkpoints_that_contradict_themselves(published, broken, sizes, change, message):
    plain = published[1]
    weights = {**plain.weights, **change}
    weights = {name: weight for name, weight in weights.items() if weight is not None}
    replaced(broken, "model.pth.tar")
    save_checkpoint(broken, weights, argparse.Namespace(**SIZES | sizes))
    refused(broken, message)


@pytest.mark.parametrize("arguments", [SIZES, None])
def test_arguments_of_another_type(published, broken, arguments):
    replaced(broken, "model.pth.tar")
    save_checkpoint(broken, dict(published[1].weights), arguments)
    refused(broken, r"must have `args`, an argparse.Namespace.*has \['args', 'model_state_dict'\]")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<unk> 0\n一 1\n", "a token for each of odim = 40 outputs, but has 2"),
        ("<unk> 0\n一 2\n", "line 2 of .* must have the number 1, but is '一 2'"),
        ("<unk>\n一\n一\n", "every token once, but has '一' twice"),
        ("一 0\n", "must have the token '<unk>'"),
    ],
)
def test_dictionaries_that_do_not_fit(broken, content, message):
    replaced(broken, "dict.txt").write_text(content, encoding="utf-8")
    refused(broken, message)


def test_statistics_of_other_features_are_refused(broken):
    write_statistics(replaced(broken, "cmvn.ark"), statistics(13, seed=0))
    refused(broken, "must be 2 x 15, sums and their number for 14 features, but is 2 x 14")


def test_statistics_of_nothing_are_refused(broken):
    write_statistics(replaced(broken, "cmvn.ark"), np.zeros((2, 15)))
    refused(broken, "finite sums of at least one frame")


def test_matrices_of_kaldi(tmp_path):
    matrix = np.array([[1.5, -2.0, 1e-3], [0.0, 4.0, 5e6]])
    for dtype in (np.float32, np.float64):
        write_statistics(tmp_path / "matrix", matrix.astype(dtype))
        found = read_matrix(tmp_path / "matrix")
        assert found.dtype == dtype and np.array_equal(found, matrix.astype(dtype))
    (tmp_path / "text").write_text(" [\n  1.5 -2 0.001 \n  0 4 5e+06 ]\n")
    assert np.array_equal(read_matrix(tmp_path / "text"), matrix.astype(np.float32))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not in brackets"),
        (b"\0BCM abc", "its type is b'CM '"),
        (b"\0BDM \4\1", "it has no sizes"),
        (b"\0BDM \4\2\0\0\0\4\2\0\0\0" + bytes(24), "24 bytes for 2 x 2"),
        (b"[ 1 2\n3 x ]", "could not convert"),
        (b"[ 1 2\n3 ]", "must be a matrix of Kaldi"),
        (b"\xff\xfe", "must be a matrix of Kaldi"),
    ],
)
def test_other_files_are_no_matrices(tmp_path, content, message):
    (tmp_path / "matrix").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_matrix(tmp_path / "matrix")


def test_an_output_with_files_is_left_alone(published, tmp_path, capfd):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    command = ["convert", "fireredasr", str(published[0]), "--output", str(tmp_path / "out")]
    assert main(command) == 1
    assert "--output must be a folder that does not exist or is empty" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    assert main(["convert", "wenet", "DIR", "--output", str(tmp_path / "new")]) == 2


def test_the_published_folder_itself_is_no_model(published):
    with pytest.raises(
        ValueError, match=r"convert it once: `pybeam convert fireredasr .* --output"
    ):
        pybeam.load_model(published[0])


@pytest.mark.parametrize("change", [{"mean": [1.0]}, {"inverse_deviation": None}])
def test_extractors_that_contradict_themselves(converted, tmp_path, change):
    config = json.loads((converted / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match="must be a list of 14 numbers"):
        load_feature_extractor(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_dtype_of_the_checkpoint_is_kept(published, broken, dtype):
    replaced(broken, "model.pth.tar")
    weights = {name: weight.to(dtype) for name, weight in published[1].weights.items()}
    save_checkpoint(broken, weights, published[1].sizes)
    convert_fireredasr(broken, broken.parent / "out")
    found = load_file(broken.parent / "out" / "model.safetensors")
    assert {weight.dtype for weight in found.values()} == {dtype}
    halved = weights["encoder.layer_stack.0.ffn1.net.4.weight"] / 2
    assert torch.equal(found["encoder.layers.0.ffn1.fc2.weight"], halved)
    assert pybeam.load_model(broken.parent / "out").dtype == torch.float32
