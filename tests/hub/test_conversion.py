"""Pickled checkpoints become safetensors in the cache, once, wherever they come from."""

import logging
import os
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file

import pybeam
from pybeam.hub import conversion
from support.fireredasr_files import save_published
from support.folder_layouts import shards
from support.hub import NAME, files_of

LOADS = """
import sys, pybeam
folder = pybeam.hub.fetch(sys.argv[1], cache_dir=sys.argv[2])
pybeam.load_model(folder)
print(folder)
"""


@pytest.fixture
def pickled(folder, tmp_path):
    """The published folder with a pickle in the place of its weights."""
    directory = tmp_path / "marian"
    shutil.copytree(folder, directory)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    return directory


def assert_same_model(found, folder):
    expected = load_file(folder / "model.safetensors")
    weights = load_file(found / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    others = {name for name in files_of(folder) if name != "model.safetensors"}
    assert all((found / name).read_bytes() == (folder / name).read_bytes() for name in others)
    pybeam.load_model(found)


def test_from_the_hub_once(fetch, hub, folder, pickled, caplog):
    hub.add(NAME, files_of(pickled))
    with caplog.at_level(logging.INFO, logger="pybeam"):
        found = fetch()
        assert "pytorch_model.bin" in hub.taken()
        assert_same_model(found, folder)
        assert "cache/assets/pybeam/converted/models--owner--marian-es-en/" in found.as_posix()
        weights = (found / "model.safetensors").stat().st_mtime_ns
        assert fetch() == fetch(offline=True) == found
    assert (found / "model.safetensors").stat().st_mtime_ns == weights
    said = [text for text in caplog.messages if "is a pickle" in text]
    assert len(said) == 1 and str(found) in said[0]
    # another commit with the same weights has its own other files
    hub.repositories[NAME].files["v2"] = files_of(pickled) | {"source.spm": b"other pieces"}
    other = fetch(revision="v2")
    assert other != found and (other / "source.spm").read_bytes() == b"other pieces"
    assert (fetch() / "source.spm").read_bytes() == b"pieces"


def test_a_folder_that_may_not_be_written(fetch, folder, pickled):
    pickled.chmod(0o555)
    try:
        found = fetch(pickled)
        assert_same_model(found, folder)
        assert fetch(str(pickled)) == found
    finally:
        pickled.chmod(0o755)
    assert "model.safetensors" not in files_of(pickled)
    tensors = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    torch.save({**tensors, "more": torch.ones(1)}, pickled / "pytorch_model.bin")
    assert "more" in load_file(fetch(pickled) / "model.safetensors")


def test_shards(fetch, hub, folder, pickled):
    shutil.copy(folder / "model.safetensors", pickled)
    shards(pickled)
    for path in pickled.glob("*.safetensors"):
        name = path.name.replace("model", "pytorch_model").replace("safetensors", "bin")
        torch.save(load_file(path), pickled / name)
        path.unlink()
    index = pickled / "model.safetensors.index.json"
    text = index.read_text().replace("model-", "pytorch_model-").replace("safetensors", "bin")
    index.unlink()
    (pickled / "pytorch_model.bin").unlink()
    (pickled / "pytorch_model.bin.index.json").write_text(text)
    hub.add(NAME, files_of(pickled) | {"pytorch_model-00009-of-00009.bin": b"of another index"})
    found = fetch()
    assert "pytorch_model-00009-of-00009.bin" not in hub.taken()
    assert sorted(path.name for path in found.glob("model*")) == sorted(
        [
            "model.safetensors.index.json",
            *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
        ]
    )
    pybeam.load_model(found)


def test_an_index_that_leads_out_of_the_repository(fetch, hub, folder, pickled):
    (pickled / "pytorch_model.bin").unlink()
    index = b'{"weight_map": {"a": "../../../secret.bin"}}'
    hub.add(NAME, files_of(pickled) | {"pytorch_model.bin.index.json": index})
    with pytest.raises(ValueError, match="must name files in its own folder, but names"):
        fetch()


def test_safetensors_beside_a_pickle(fetch, folder, pickled):
    shutil.copy(folder / "model.safetensors", pickled)
    assert fetch(pickled) == pickled


def test_fireredasr(fetch, hub, tmp_path):
    save_published(tmp_path / "published", seed=14, eos_nats=3.0)
    hub.add(NAME, files_of(tmp_path / "published") | {"README.md": b""})
    assert pybeam.load_model(fetch()).takes_features
    assert hub.taken() == set(files_of(tmp_path / "published"))


def test_a_pickle_that_runs_code(fetch, hub, pickled, tmp_path):
    class Malice:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'trace'}",)

    torch.save({"a": Malice()}, pickled / "pytorch_model.bin")
    hub.add(NAME, files_of(pickled))
    with pytest.raises(ValueError, match=r"names posix.system; .* so it was not opened"):
        fetch()
    assert not (tmp_path / "trace").exists()
    # nothing that looks like a converted folder is left
    assert not [path for path in (tmp_path / "cache" / "assets").rglob("*") if path.is_file()]


def test_the_cache_cannot_be_written(pickled, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises((OSError, ValueError), match="cache"):
        pybeam.hub.fetch(pickled, cache_dir=tmp_path / "cache")


def test_two_at_once(fetch, folder, pickled, monkeypatch):
    """Both convert; one is faster, and both get its folder."""
    together, convert = threading.Barrier(2), conversion.write_safetensors

    def at_once(source, target):
        convert(source, target)
        together.wait(60)

    monkeypatch.setattr(conversion, "write_safetensors", at_once)
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetch(pickled))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0] == found[1]
    assert_same_model(found[0], folder)
    assert len(list(found[0].parent.iterdir())) == 1


@pytest.mark.slow
def test_two_processes_at_once(pickled, tmp_path):
    command = [sys.executable, "-c", LOADS, str(pickled), str(tmp_path / "cache")]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1
