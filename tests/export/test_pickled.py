"""Pickled checkpoints: what becomes of them as safetensors, and all that is refused before it can do harm."""

import json
import os
import random
import tarfile
import zipfile
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from pybeam.export.pickled import read_tensors, write_safetensors

FORMATS = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "stream"])
TABLE = torch.arange(12.0).view(4, 3)


class Malice:
    """An object that is built by a call of this function."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def save(path, held, is_zip=True):
    torch.save(held, path, _use_new_zipfile_serialization=is_zip)
    return path


def refused(path, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_tensors(path)
    assert str(path) in str(caught.value)


@FORMATS
def test_tensors_of_every_dtype_and_layout(tmp_path, is_zip):
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    kinds += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {str(kind): torch.tensor([[1, 0, 1]]).to(kind) for kind in kinds}
    tensors |= {"turned": TABLE.t(), "rows": TABLE[1:3], "scalar": torch.tensor(3.0)}
    tensors |= {"none": torch.zeros(0, 3), "parameter": torch.nn.Parameter(TABLE * 2)}
    # as `state_dict` gives it
    held = OrderedDict(tensors)
    held._metadata = OrderedDict(version=1)
    save(tmp_path / "pytorch_model.bin", held, is_zip)
    (tmp_path / "out").mkdir()
    write_safetensors(tmp_path, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert found[name].dtype == expected.dtype and torch.equal(found[name], expected), name


TIED = [
    *("lm_head.weight", "model.decoder.embed_tokens.weight"),
    *("model.encoder.embed_tokens.weight", "model.shared.weight"),
]


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (TIED, "model.shared.weight"),
        (TIED[:2], "model.decoder.embed_tokens.weight"),
        (["lm_head.weight", "transformer.wte.weight"], "transformer.wte.weight"),
        (["embed_out.weight", "gpt_neox.embed_in.weight"], "gpt_neox.embed_in.weight"),
    ],
)
def test_of_tied_tables_one_is_kept(tmp_path, names, kept):
    save(tmp_path / "pytorch_model.bin", dict.fromkeys(names, TABLE) | {"other": TABLE[:1]})
    write_safetensors(tmp_path, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == {kept, "other"}
    assert torch.equal(found[kept], TABLE)


def test_other_tensors_that_are_stored_once_keep_their_names(tmp_path):
    """transformers would invent those that are missing."""
    save(tmp_path / "pytorch_model.bin", {"layers.0.weight": TABLE, "layers.1.weight": TABLE})
    write_safetensors(tmp_path, tmp_path)
    assert len(load_file(tmp_path / "model.safetensors")) == 2


def sharded(directory, **changes) -> dict[str, torch.Tensor]:
    tensors = {f"layers.{i}.weight": TABLE + i for i in range(5)}
    for i in range(2):
        own = {name: tensors[name] for name in list(tensors)[i::2]}
        save(directory / f"pytorch_model-{i}.bin", own)
    weight_map = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map | changes}))
    return tensors


def test_shards(tmp_path):
    tensors = sharded(tmp_path)
    write_safetensors(tmp_path, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index.values()) == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    for name, expected in tensors.items():
        assert torch.equal(load_file(tmp_path / index[name])[name], expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": "../pytorch_model-0.bin"}, r"`weight_map` in .* in its own folder, but names '\.\."),
        ({"a": "/etc/passwd"}, "in its own folder, but names '/etc/passwd'"),
        ({"a": 7}, "in its own folder, but names 7"),
        (
            {"a": "pytorch_model-0.bin"},
            r"pytorch_model-0.bin must hold `a`, says pytorch_model.bin.in",
        ),
        (
            {"a": "pytorch_model-7.bin"},
            r"pytorch_model-7.bin is missing in .*; is the download com",
        ),
    ],
)
def test_an_index_that_lies(tmp_path, changes, message):
    sharded(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        write_safetensors(tmp_path, tmp_path)


@FORMATS
@pytest.mark.parametrize("place", ["value", "name", "whole", "attribute"])
def test_what_runs_code_is_refused_unread(tmp_path, is_zip, place):
    trace = tmp_path / "trace"
    malice = Malice(os.system, f"touch {trace}")
    held: object = OrderedDict(table=TABLE)
    if place == "value":
        held["more"] = malice
    elif place == "name":
        held[("more", malice)] = TABLE
    elif place == "attribute":
        held._metadata = malice
    else:
        held = malice
    refused(
        save(tmp_path / "a.bin", held, is_zip), "tensors alone, but names posix.system; .* code"
    )
    assert not trace.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Malice(bytearray, 1 << 50), "builtin"),
        (lambda: Malice(torch.Tensor, 1 << 20, 1 << 20), "Tensor"),
        (lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2)), "Size|_rebuild_sparse_tensor"),
        (lambda: torch.quantize_per_tensor(TABLE, 0.1, 0, torch.qint8), "QInt8Storage|_qtensor"),
        (lambda: torch.zeros(2, dtype=torch.float8_e4m3fn), "_rebuild_tensor_v3|float8"),
        (lambda: torch.zeros(2, device="meta"), "_rebuild_meta_tensor"),
        (lambda: {1, 2}, "set"),
    ],
    ids=["memory", "uninitialised", "sparse", "quantised", "float8", "meta", "set"],
)
def test_what_torch_would_build_is_refused_too(tmp_path, make, name):
    refused(save(tmp_path / "a.bin", {"a": make()}), f"alone, but names .*({name})")


def test_what_a_program_has_allowed_is_refused_here(tmp_path):
    with torch.serialization.safe_globals([SimpleNamespace]):
        refused(
            save(tmp_path / "a.bin", {"a": SimpleNamespace()}), "names types.SimpleNamespace; any"
        )


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_nobody_is_advised_to_open_it_without_restrictions(tmp_path):
    torch.save({"a": Malice(print)}, tmp_path / "a.bin", pickle_protocol=4)
    with pytest.raises(ValueError, match=r"sound checkpoint .* restricted reader refuses it$") as e:
        read_tensors(tmp_path / "a.bin")
    assert e.value.__cause__ is None and e.value.__suppress_context__


@FORMATS
def test_tuples_that_take_for_ever_to_hash(tmp_path, is_zip):
    """As the name of a tensor, each would be hashed twice as often as the one around it."""
    held: object = (1,)
    for _ in range(40):
        held = (held, held)
    refused(save(tmp_path / "a.bin", {"a": [held]}, is_zip), r"it takes a tuple, .* twice")
    # what torch takes twice
    table = torch.nn.Parameter(TABLE)
    assert len(read_tensors(save(tmp_path / "b.bin", {"a": table, "b": table}, is_zip))) == 2


@FORMATS
@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"a": 3}, "`a` in .* must be a dense tensor of F64, .*, but is a int"),
        (
            {"a": torch.zeros(2, dtype=torch.complex64)},
            "alone, but names torch.ComplexFloatStorage",
        ),
        ({"a": torch.zeros(1).expand(1 << 40)}, "`a` in .* must be a dense tensor"),
        ({7: TABLE}, "must hold tensors by name, but one is called 7"),
        ({"__metadata__": TABLE}, "must hold tensors by name, but one is called '__meta"),
        ({}, "must hold a table of tensors by name, but holds an empty dict"),
        ([TABLE], "must hold a table of tensors by name, but holds a list"),
        (
            {"state_dict": {"a": TABLE}},
            "`state_dict` in .* must be a dense tensor .* but is a dict",
        ),
    ],
)
def test_what_is_no_table_of_dense_tensors(tmp_path, is_zip, held, message):
    refused(save(tmp_path / "a.bin", held, is_zip), message)


def test_a_little_memory_under_many_names(tmp_path):
    held = dict.fromkeys(map(str, range(1000)), torch.zeros(10_000))
    refused(
        save(tmp_path / "a.bin", held), r"about as many bytes as the file, .* but take 40,000,000"
    )


def rewritten(path, change) -> None:
    """Write a zip file anew; `change` gets the new file and each part's name and bytes."""
    with zipfile.ZipFile(path) as archive:
        parts = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts:
            change(archive, name, data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda to, name, data: to.writestr(name, data, zipfile.ZIP_DEFLATED),
            "is compressed or en",
        ),
        (lambda to, name, data: [to.writestr(name, data) for _ in range(2)], "parts have one name"),
        (lambda to, name, data: to.writestr(f"{data[:1]!r}/{name}", data), "in several folders"),
        (lambda to, name, data: to.writestr(name.replace("data.pkl", "x"), data), "no data.pkl"),
    ],
    ids=["compressed", "twice", "folders", "no pickle"],
)
def test_odd_zip_files(tmp_path, change, message):
    path = save(tmp_path / "a.bin", {"a": torch.zeros(1000)})
    rewritten(path, change)
    refused(path, f"is not a sound checkpoint of torch: .*{message}")


def test_parts_that_overlap(tmp_path):
    """The same bytes under many names of the file's directory."""
    path = save(tmp_path / "a.bin", {"a": torch.zeros(1000)})
    with zipfile.ZipFile(path, "a") as archive:
        [part] = [part for part in archive.filelist if part.filename.endswith("data/0")]
        for i in range(1, 4):
            copy = zipfile.ZipInfo.__new__(zipfile.ZipInfo)
            for field in zipfile.ZipInfo.__slots__:
                if hasattr(part, field):
                    setattr(copy, field, getattr(part, field))
            copy.filename = part.filename[:-1] + str(i)
            archive.filelist.append(copy)
        archive._didModify = True
    refused(path, "is not a sound checkpoint of torch: its parts overlap")


def test_a_tar_file(tmp_path):
    with tarfile.open(tmp_path / "a.bin", "w") as archive:
        archive.add(save(tmp_path / "pickle", {}))
    refused(tmp_path / "a.bin", "it is a tar file")


@pytest.mark.parametrize(
    "content", [b"", b"no checkpoint", b"PK\x03\x04 no checkpoint", b"\x80\x02."]
)
def test_files_that_are_no_checkpoint(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    refused(tmp_path / "a.bin", "is not a sound checkpoint of torch: ")


@FORMATS
def test_damaged_files_end_in_an_error_or_in_tensors(tmp_path, is_zip):
    chance = random.Random(7)
    sound = save(tmp_path / "a.bin", {"first": TABLE, "second": TABLE[1]}, is_zip).read_bytes()
    num_refused = 0
    for _ in range(150):
        data = bytearray(sound)
        for _ in range(chance.choice([1, 1, 4])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path = tmp_path / "b.bin"
        path.write_bytes(data[: chance.choice([None, None, chance.randrange(len(data))])])
        try:
            tensors = read_tensors(path)
        except ValueError as error:
            assert str(path) in str(error)
            num_refused += 1
        else:
            assert sum(one.nbytes for one in tensors.values()) <= 2 * len(sound)
    assert 30 < num_refused < 150
