"""`model.bin`: old versions of the format, and what is refused, by its name."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

import pybeam
from pybeam.models.ctranslate2.binary import DTYPES, Binary
from support.ctranslate2_folders import convert, tiny_generator, tiny_translator

pytest.importorskip("ctranslate2")


class File:
    """The contents of a `model.bin`, to be written in another way."""

    def __init__(self, directory: Path) -> None:
        binary = Binary(directory)
        self.path, self.spec, self.version, self.revision = binary.path, binary.spec, 6, 1
        self.tensors = {name: one.read() for name, one in binary.tensors.items()}
        self.aliases = dict(binary.aliases)

    def write(self) -> None:
        """Write them over the file."""
        with self.path.open("wb") as file:
            file.write(struct.pack("<I", self.version) + text(self.spec))
            file.write(struct.pack("<II", self.revision, len(self.tensors)))
            for name, tensor in self.tensors.items():
                file.write(text(name) + struct.pack("<B", tensor.ndim))
                file.write(struct.pack(f"<{tensor.ndim}I", *tensor.shape))
                kind, num = DTYPES.index(tensor.dtype), tensor.nbytes
                if self.version < 4:
                    kind, num = tensor.itemsize, tensor.numel()
                file.write(struct.pack("<BI", kind, num))
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            if self.version >= 3:
                file.write(struct.pack("<I", len(self.aliases)))
                for alias, name in self.aliases.items():
                    file.write(text(alias) + text(name))


def text(content: str) -> bytes:
    return struct.pack("<H", len(content.encode()) + 1) + content.encode() + b"\0"


def as_text(content: str) -> torch.Tensor:
    return torch.tensor(list(content.encode()), dtype=torch.int8)


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    convert(tiny_translator("m2m_100-even"), folder)
    return folder


@pytest.fixture(scope="module")
def generator(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    convert(tiny_generator("qwen3"), folder)
    return folder


def copied(source: Path, directory: Path) -> File:
    for path in source.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return File(directory)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_an_old_version_gives_the_same(version, translator, tmp_path):
    """Before version 6 the file itself names special tokens, and before version 3 it has no aliases."""
    file = copied(translator, tmp_path)
    (tmp_path / "config.json").unlink()
    file.version = version
    # numbers of old versions stand for both stacks
    for name in ("num_heads", "pre_norm", "activation"):
        file.tensors[name] = file.tensors.pop(f"encoder/{name}")
        del file.tensors[f"decoder/{name}"]
    if version == 2:
        file.tensors |= {alias: file.tensors[name] for alias, name in file.aliases.items()}
    file.tensors |= {
        "eos_token": as_text("</s>"),
        "with_target_bos": torch.tensor(0, dtype=torch.int8),
    }
    file.write()
    found = []
    for folder in (translator, tmp_path):
        model = pybeam.load_model(folder, device="cpu")
        decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=9, n_best=3))
        found.append([h.tokens for h in decoder.decode([[5, 9, 2]])[0].hypotheses])
    assert found[0] == found[1]


FLAG = torch.tensor(1, dtype=torch.int8)
REFUSED = {
    "version": (dict(version=7), {}, "in version 2 to 6 of that format, but has version 7"),
    "kind": (
        dict(spec="Wav2Vec2Spec"),
        {},
        "must be one of TransformerSpec.* but is 'Wav2Vec2Spec'",
    ),
    "revision": (dict(revision=9), {}, "revision 8 .* but is of 9, which a later"),
    "an alias of nothing": (dict(aliases={"a": "b"}), {}, "calls `b` `a`, too, and must hold"),
    "interleaved": (
        {},
        {f"decoder/layer_{i}/self_attention/rotary_interleave": FLAG for i in range(3)},
        "rotary_interleave. .* must be false",
    ),
    "layers that differ": (
        {},
        {"decoder/layer_0/self_attention/num_heads_kv": torch.tensor(1, dtype=torch.int32)},
        "must be the same in all layers",
    ),
    "a number": (
        {},
        {"decoder/layer_0/layer_scalar": torch.tensor(0.5)},
        "layer_scalar. .* is 0.5",
    ),
    "a tensor": (
        {},
        {"decoder/layer_0/self_attention/v_norm/gamma": torch.ones(8)},
        "v_norm/gamma. .* is not part of this model",
    ),
    "an activation": (
        {},
        {"decoder/activation": torch.tensor(4, dtype=torch.int8)},
        "decoder/activation. .* but is 'GELUSigmoid'",
    ),
    "a zero scale": (
        {},
        {"decoder/embeddings/weight": torch.ones(45, 64, dtype=torch.int8)},
        "are integers and must have positive scales",
    ),
    "heads": (
        {},
        {"decoder/num_heads": torch.tensor(5, dtype=torch.int16)},
        "must be a multiple of",
    ),
    "not a number": (
        {},
        {"decoder/scale_embeddings": torch.tensor(float("nan"))},
        "must be a number",
    ),
    "a hole in the layers": ({}, {"decoder/layer_9/x": torch.ones(1)}, "must be counted from 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused_by_name(name, generator, tmp_path):
    changes, tensors, problem = REFUSED[name]
    file = copied(generator, tmp_path)
    vars(file).update(changes)
    file.tensors |= tensors
    file.write()
    with pytest.raises(ValueError, match=problem) as caught:
        pybeam.load_model(tmp_path, device="cpu")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.json", {"quantization_type": 1}, "quantised in groups"),
        (
            "config.json",
            {"eos_token": "nothing"},
            "`eos_token` .* must be one of the target vocabulary",
        ),
        (
            "config.json",
            {"layer_norm_epsilon": "x"},
            "`layer_norm_epsilon` .* must be a small number",
        ),
        ("vocabulary.json", ["t"] * 90, "must have at most the 45 tokens"),
    ],
)
def test_odd_files_beside_it_are_refused(name, content, problem, generator, tmp_path):
    copied(generator, tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=problem):
        pybeam.load_model(tmp_path, device="cpu")


def test_other_programs_say_that_they_cannot_take_it(translator, tmp_path):
    with pytest.raises(
        ValueError, match="is a folder of CTranslate2 or Marian, which is read as it is"
    ):
        pybeam.quantize(translator, tmp_path / "int8")
    model = pybeam.load_model(translator, device="cpu")
    pytest.importorskip("onnx_ir")
    with pytest.raises(ValueError, match="`model` must be of a folder of transformers"):
        pybeam.export.export_onnx(model, tmp_path / "onnx")
