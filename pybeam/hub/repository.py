"""`fetch`: a folder, or a repository of the Hugging Face hub, becomes a folder that `load_model` reads."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pybeam.arguments import ArgumentError
from pybeam.hub.conversion import converted
from pybeam.hub.examples import example
from pybeam.hub.failures import explained, require_hub
from pybeam.hub.needed import SETTINGS, matching, named_by, weights_among

log = logging.getLogger(__name__)

# of the first request; without an answer the cache must do
TIMEOUT_SECONDS = 10
# as the hub allows them; a second slash makes a path
REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
PATH = re.compile(r"[./~\\]|.*(\\|/.*/|/$)", re.DOTALL)


def fetch(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    offline: bool = False,
    progress: bool = True,
) -> Path:
    """Return the folder of a model, which is downloaded from the Hugging Face hub if it is not on the disk.

    A folder that exists is used as it is, and ``bible-es-en`` and ``spoken-numbers-en`` are the examples that
    the extra `examples` installs. Any other `name` is that of a repository: ``owner/name``, or
    ``name`` for a few old ones. Only the files that pybeam needs are downloaded: the weights in one form,
    safetensors if the repository has them, and the files of configurations and tokenizers. In a repository of
    Marian these are ``decoder.yml`` and the files that it names. They stand in the
    cache of the package huggingface_hub, which other programs use too. A download that breaks goes on where
    it was; if it ends with an error, the next call takes the files that were complete.

    Weights that are pickles alone (``pytorch_model.bin`` or its shards, FireRedASR's ``model.pth.tar``) are
    converted into safetensors, once, and the folder that is returned is the converted one, with links to
    the other files. It stands in ``assets/pybeam`` of that cache, and changes with the files. A pickle may
    hold nothing but dense tensors; docs/reference/file-formats.md says which are refused.

    Args:
        name: the folder or the repository. A name that looks like a path, with a dot at the beginning or two
            slashes, is never asked of the hub, and neither is an `os.PathLike`.
        revision: the branch, tag or commit of the repository. None: its main branch.
        token: what gives access to private and gated repositories. None: that of the variable ``HF_TOKEN``,
            or of ``hf auth login``. False: none.
        cache_dir: where downloads and converted weights are kept. None: as ``HF_HOME``, ``HF_HUB_CACHE`` and
            ``HF_ASSETS_CACHE`` say, or else ``~/.cache/huggingface``.
        offline: whether only the cache is used. So it is, too, with ``HF_HUB_OFFLINE=1``.
        progress: whether bars on stderr show the download; they never do unless stderr is a terminal.

    Raises:
        FileNotFoundError: there is no such folder, repository or revision; or it is not in the cache, and
            `offline` forbids to download it.
        PermissionError: the repository is private or gated, and the token is missing or not good enough.
        ConnectionError: the hub cannot be reached or does not answer, and the cache does not have the model.
        OSError: the disk is full, or the cache cannot be written.
        ImportError: the package huggingface_hub is missing, or the examples are not installed.
        ValueError: `name` can be neither a folder nor a repository, the repository has no weights that pybeam
            reads, a pickle is not sound or might run code, or `revision` is given with a folder.
    """
    folder, cache = _local(name), None if cache_dir is None else Path(cache_dir)
    if folder is None:
        require_hub()
        from huggingface_hub import constants

        source = Source(str(name), revision, token, cache)
        is_offline = offline or constants.HF_HUB_OFFLINE
        with _progress(progress):
            folder = _cached(source) if is_offline else _download(source)
    elif revision is not None:
        raise ArgumentError(
            "revision", f"must be None for a folder, but is {revision!r} for {folder}"
        )
    return converted(folder, cache)


def _local(name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of that name; None: the name is that of a repository."""
    path = Path(os.path.expanduser(name))
    # an empty name would be the current folder
    if name != "" and path.is_dir():
        return path
    if name != "" and path.exists():
        raise ValueError(f"{path} must be the folder of a model, but is a file; give its folder")
    if not isinstance(name, str) or PATH.match(name):
        raise FileNotFoundError(
            f"there is no such folder as {path}; a name on the Hugging Face hub is of the form owner/name"
        )
    if not REPOSITORY.fullmatch(name) or "--" in name or ".." in name:
        raise ValueError(
            f"{name!r} must be a folder that exists, or the name of a repository on the Hugging Face hub, "
            "owner/name, but can be neither"
        )
    return example(name)


@dataclass(frozen=True)
class Source:
    """A repository, and how it is asked for; see `fetch`."""

    name: str
    revision: str | None
    token: str | bool | None
    cache_dir: Path | None

    def snapshot(self, names: list[str], *, offline: bool = False) -> Path:
        """Return the folder of one commit in the cache, with the files of these names."""
        from huggingface_hub import snapshot_download

        path = snapshot_download(
            self.name,
            revision=self.revision,
            cache_dir=self.cache_dir,
            token=self.token,
            library_name="pybeam",
            local_files_only=offline,
            # brackets in the name of a file are no pattern
            allow_patterns=[glob.escape(name) for name in names],
        )
        return Path(path)


def _download(source: Source) -> Path:
    """Return the snapshot of a repository, with all files that pybeam needs."""
    from huggingface_hub import HfApi

    api = HfApi(token=source.token, library_name="pybeam")
    explain = partial(explained, source.name, source.revision, api.endpoint)
    try:
        with explain():
            info = api.model_info(source.name, revision=source.revision, timeout=TIMEOUT_SECONDS)
    except ConnectionError as error:
        log.warning("%s; is it in the cache?", error)
        try:
            return _cached(source)
        except FileNotFoundError:
            raise error from None
    names = [one.rfilename for one in info.siblings or ()]
    weights = weights_among(names)
    if not weights:
        raise ValueError(_no_weights(source, names))
    with explain():
        folder = source.snapshot([*matching(names, SETTINGS), *weights])
    named = [name for name in named_by(folder, weights) if name in names]
    if named:
        with explain():
            source.snapshot(named)
    log.info("%s, revision %s, is in %s", source.name, source.revision or "main", folder)
    return folder


def _cached(source: Source) -> Path:
    """Return the snapshot in the cache. Raises FileNotFoundError if the cache has none, or not all of one."""
    from huggingface_hub.utils import LocalEntryNotFoundError

    try:
        folder = source.snapshot(["config.json"], offline=True)
    except LocalEntryNotFoundError as error:
        raise FileNotFoundError(
            f"{source.name}, revision {source.revision or 'main'}, must be in the cache, as nothing may be "
            "downloaded, but is missing; download it once without `offline` and HF_HUB_OFFLINE, or give the "
            "cache that has it (HF_HOME, or `cache_dir`)"
        ) from error
    weights = weights_among(os.listdir(folder))
    lost = [name for name in named_by(folder, weights) if not (folder / name).exists()]
    if lost or not weights:
        raise FileNotFoundError(
            f"{source.name} must be complete in the cache, but {lost[0] if lost else 'the weights'} of "
            f"{folder} are missing; download it once without `offline` and HF_HUB_OFFLINE"
        )
    return folder


def _no_weights(source: Source, names: list[str]) -> str:
    large = (".bin", ".gguf", ".h5", ".msgpack", ".npz", ".onnx", ".ot", ".pt", ".safetensors")
    found = ", ".join(name for name in sorted(names) if name.endswith(large)) or "no weights at all"
    return (
        f"{source.name} on the hub must have model.safetensors, pytorch_model.bin, model.bin of CTranslate2 "
        f"or decoder.yml of Marian, but has {found}; take the repository of the original weights"
    )


@contextlib.contextmanager
def _progress(is_shown: bool) -> Iterator[None]:
    """Let the hub's bars be shown in this block, or not."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if (is_shown and sys.stderr.isatty()) or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
