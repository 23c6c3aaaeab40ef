"""`fetch`: a repository of a hub that is served here becomes a folder that `load_model` reads."""

import errno
import shutil
import sys

import pytest
from huggingface_hub import constants

import pybeam
from support.folder_layouts import shards
from support.hub import NAME, TOKEN, files_of
from support.marian_folders import write_folder

OTHERS = {
    "README.md": b"# A model",
    ".gitattributes": b"",
    "tf_model.h5": b"of another framework",
    "flax_model.msgpack": b"of another framework",
    "rust_model.ot": b"of another framework",
    "pytorch_model.bin": b"the same weights",
    "model.fp16.safetensors": b"other weights",
    "model-q4.gguf": b"other weights",
    "onnx/config.json": b"{}",
    "onnx/decoder.onnx": b"other weights",
    "training_args.bin": b"no weights",
    "modeling_own.py": b"raise SystemExit",
}


@pytest.fixture
def no_waiting(monkeypatch):
    """Let huggingface_hub try again at once."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def shards_of(folder) -> dict[str, bytes]:
    """The files of the model, with weights in three shards."""
    shards(folder)
    return files_of(folder)


def test_a_folder_is_used_as_it_is(folder, hub, monkeypatch):
    assert pybeam.hub.fetch(folder) == folder
    assert pybeam.hub.fetch(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert pybeam.hub.fetch(folder.name).samefile(folder)
    with pytest.raises(ValueError, match=r"`?revision`? must be None for a folder, but is 'v2'"):
        pybeam.hub.fetch(folder, revision="v2")
    with pytest.raises(ValueError, match=r"config.json must be the folder of a model, but is a fi"):
        pybeam.hub.fetch(folder / "config.json")
    assert not hub.asked


@pytest.mark.parametrize(
    "name", ["./a/b", "../a", "/a/b", "a/b/c", "a/b/", "~/a", r"a\b", "~nobody/a"]
)
def test_a_path_is_never_asked_of_the_hub(fetch, hub, name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"there is no such folder as .*; a name on the"):
        fetch(name)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        fetch(tmp_path / "owner" / "name")
    assert not hub.asked


@pytest.mark.parametrize(
    "name", ["", "a b", "owner/na me", "-a/b", "a--b", "a/b..c", "a\0b", "ä/b"]
)
def test_a_name_that_no_repository_has(fetch, hub, name):
    with pytest.raises(ValueError, match=r"must be a folder that exists, or the name|null byte"):
        fetch(name)
    assert not hub.asked


def test_the_needed_files_alone(fetch, hub, folder):
    hub.add(NAME, files_of(folder) | OTHERS)
    found = fetch()
    names = {path.name for path in folder.iterdir()}
    assert hub.taken() == {path.name for path in found.iterdir()} == names
    pybeam.load_model(found)
    # the second time no file is asked for
    assert fetch() == found
    assert hub.asked and not [one for one in hub.asked if "/resolve/" in one or "/cdn/" in one]


def test_shards_are_those_that_the_index_names(fetch, hub, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sharded")
    files = shards_of(tmp_path / "sharded")
    hub.add(NAME, files | OTHERS | {"model-00009-of-00009.safetensors": b"of another index"})
    found = fetch()
    assert {path.name for path in found.iterdir()} == set(files)
    pybeam.load_model(found)


def test_files_of_marian_are_those_that_its_settings_name(fetch, hub, tmp_path):
    write_folder(tmp_path / "marian", 1)
    files = files_of(tmp_path / "marian")
    others = {"model.npz.optimizer.npz": b"of the training", "other.yml": b"{}"}
    hub.add(NAME, files | others | {"README.md": b"# A model"})
    found = fetch()
    assert {path.name for path in found.iterdir()} == set(files)
    assert pybeam.load_model(found, device="cpu").num_parameters
    assert fetch(offline=True) == found
    (found / "target.yml").unlink()
    with pytest.raises(FileNotFoundError, match=r"must be complete in the cache, but target\.yml"):
        fetch(offline=True)


def test_names_are_no_patterns(fetch, hub, tmp_path):
    write_folder(tmp_path / "marian", 1)
    settings = tmp_path / "marian" / "decoder.yml"
    settings.write_text(settings.read_text().replace("model.npz", "'model[1].npz'"))
    (tmp_path / "marian" / "model.npz").rename(tmp_path / "marian" / "model[1].npz")
    files = files_of(tmp_path / "marian")
    hub.add(NAME, files | {"model1.npz": b"of another name"})
    assert {path.name for path in fetch().iterdir()} == set(files)


def test_large_files_come_from_elsewhere(fetch, hub, folder):
    """Behind a redirect to another host, which is not told the token."""
    hub.add(NAME, files_of(folder), large=("model.safetensors",))
    found = fetch(token=TOKEN)
    assert any(one.startswith("GET /cdn/") for one in hub.asked)
    expected = (folder / "model.safetensors").read_bytes()
    assert (found / "model.safetensors").read_bytes() == expected


def test_a_repository_that_moved(fetch, hub, folder):
    hub.add(NAME, files_of(folder))
    hub.moved["marian"] = NAME
    assert files_of(fetch("marian")) == files_of(folder)


def test_a_broken_download_goes_on_where_it_was(fetch, hub, folder, monkeypatch, no_waiting):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    hub.add(NAME, files_of(folder), breaks={"model.safetensors": [1000, 500]})
    assert files_of(fetch()) == files_of(folder)
    assert hub.ranges == ["model.safetensors from 1000", "model.safetensors from 1500"]


def test_what_was_complete_is_not_downloaded_again(fetch, hub, folder, no_waiting):
    repository = hub.add(NAME, files_of(folder), breaks={"model.safetensors": [9] * 20})
    with pytest.raises(ConnectionError, match=f"{NAME} on http.* could not be downloaded: .*again"):
        fetch()
    repository.breaks.clear()
    assert "config.json" in hub.taken()
    # it says so, too, where nothing may be downloaded
    with pytest.raises(FileNotFoundError, match="must be complete in the cache, but the weights"):
        fetch(offline=True)
    assert files_of(fetch()) == files_of(folder)
    assert hub.taken() == {"model.safetensors"}


def test_a_lost_shard_in_the_cache(fetch, hub, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sharded")
    hub.add(NAME, shards_of(tmp_path / "sharded"))
    (fetch() / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"but model-00002-of-00003.safetensors of"):
        fetch(offline=True)
    assert files_of(fetch()) == files_of(tmp_path / "sharded")


def test_revisions(fetch, hub, folder):
    repository = hub.add(NAME, files_of(folder))
    repository.files["v2"] = files_of(folder) | {"tokenizer_config.json": b"{}"}
    assert "tokenizer_config.json" not in files_of(fetch())
    assert "tokenizer_config.json" in files_of(fetch(revision="v2"))
    assert fetch(revision=repository.commit("v2")) == fetch(revision="v2", offline=True)
    with pytest.raises(FileNotFoundError, match=r"must have the revision 'v3', but has no such"):
        fetch(revision="v3")
    with pytest.raises(FileNotFoundError, match="revision v3, must be in the cache"):
        fetch(revision="v3", offline=True)


def test_the_cache_alone(fetch, hub, folder, monkeypatch):
    hub.add(NAME, files_of(folder))
    with pytest.raises(
        FileNotFoundError, match=rf"{NAME}, revision main, must be in the cache, .*HF_"
    ):
        fetch(offline=True)
    assert not hub.asked
    found = fetch()
    hub.asked.clear()
    assert fetch(offline=True) == found
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == found
    assert not hub.asked


@pytest.mark.parametrize("trouble", ["status", "page", "bytes", "address"])
def test_a_hub_in_trouble(fetch, hub, folder, trouble, monkeypatch, caplog):
    """The cache must do; without one the error says what happened."""
    hub.add(NAME, files_of(folder))
    found = fetch()
    if trouble == "status":
        hub.status = 503
    elif trouble != "address":
        hub.status, hub.body = 200, b"<html>Log in</html>" if trouble == "page" else b"\xff"
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch() == found
    assert "is it in the cache?" in caplog.text
    with pytest.raises(ConnectionError, match=r"owner/other on .* could not be downl.*HF_HUB_OF"):
        fetch("owner/other")


def test_private_and_gated_repositories(fetch, hub, folder):
    hub.add("owner/private", files_of(folder), is_private=True)
    hub.add("owner/gated", files_of(folder), is_gated=True)
    with pytest.raises(
        FileNotFoundError, match=r"neither a folder owner/private nor.*`hf auth login`"
    ):
        fetch("owner/private")
    with pytest.raises(PermissionError, match=r"owner/gated on .* is gated: .*accept.*HF_TOKEN"):
        fetch("owner/gated")
    hub.status = 403
    with pytest.raises(PermissionError, match=r"may not be read \(HTTP 403\): log in"):
        fetch("owner/gated", token=TOKEN)
    hub.status = None
    for name in ("owner/private", "owner/gated"):
        assert files_of(fetch(name, token=TOKEN)) == files_of(folder)


def test_no_such_repository(fetch, hub):
    for token in (TOKEN, None):
        with pytest.raises(
            FileNotFoundError, match="neither a folder owner/none nor, as far as you"
        ):
            fetch("owner/none", token=token)


def test_a_repository_without_weights(fetch, hub):
    hub.add(NAME, {"config.json": b"{}", "model-q4.gguf": b"", "README.md": b""})
    with pytest.raises(
        ValueError, match=r"must have model.safetensors, .* but has model-q4.gguf; take"
    ):
        fetch()
    assert not hub.taken()


def test_a_full_disk(fetch, hub, folder, monkeypatch):
    hub.add(NAME, files_of(folder))

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(OSError, match=f"the disk is full, so {NAME} on .*another cache"):
        fetch()


def test_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="need `pip install huggingface_hub`"):
        pybeam.hub.fetch(NAME)
