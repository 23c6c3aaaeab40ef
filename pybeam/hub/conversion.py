"""Checkpoints that are pickles become safetensors, once: what was converted stays in the cache."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from pybeam.export.fireredasr import CHECKPOINT, convert_fireredasr
from pybeam.export.folders import complete_folder, other_files
from pybeam.export.pickled import PICKLED, PICKLED_INDEX, write_safetensors
from pybeam.hub.failures import require_hub
from pybeam.hub.needed import weights_among
from pybeam.models.checkpoint import shards_of
from pybeam.models.onnx import DECODER
from pybeam.platforms.system import link

log = logging.getLogger(__name__)


def converted(folder: Path, cache_dir: Path | None) -> Path:
    """Return a model's folder, or if its weights are pickles alone the folder where they are safetensors.

    Raises:
        OSError: the cache cannot be written.
        ValueError: a file is not sound, or might run code; see `pybeam.export.pickled`.
    """
    weights = weights_among(os.listdir(folder))
    pickled = next((name for name in weights if name in CONVERSIONS), None)
    # `load_model` takes the graphs then
    if pickled is None or (folder / DECODER).exists():
        return folder
    target = _place(folder, weights, cache_dir)
    if target.is_dir():
        return target
    log.info("%s of %s is a pickle, so it is converted once, into %s", pickled, folder, target)
    try:
        CONVERSIONS[pickled](folder, target)
    except OSError:
        # another process was faster, and its folder is the same
        if not target.is_dir():
            raise
    return target


def _to_safetensors(folder: Path, target: Path) -> None:
    """Write the weights anew, beside links to all other files."""
    with complete_folder(target) as unfinished:
        write_safetensors(folder, unfinished)
        for path in other_files(folder):
            link(unfinished / path.name, path.absolute())


CONVERSIONS: dict[str, Callable[[Path, Path], None]] = {
    PICKLED: _to_safetensors,
    PICKLED_INDEX: _to_safetensors,
    CHECKPOINT: convert_fireredasr,
}


def _place(folder: Path, weights: list[str], cache_dir: Path | None) -> Path:
    """Return where the converted folder stands, or shall stand: another place for other files."""
    paths = [folder / name for name in weights]
    paths += shards_of(folder / PICKLED_INDEX) if PICKLED_INDEX in weights else []
    # links lead into this folder, and two commits may share weights
    names = [str(folder.resolve()), *(path.name for path in other_files(folder))]
    facts = names, [(str(path.resolve()), *_version(path)) for path in paths]
    require_hub()
    from huggingface_hub import cached_assets_path

    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    in_cache = folder.parent.name == "snapshots"
    name = folder.parents[1].name if in_cache else folder.resolve().name
    assets = None if cache_dir is None else cache_dir / "assets"
    return cached_assets_path("pybeam", "converted", name, assets_dir=assets) / key


def _version(path: Path) -> tuple[int, int]:
    """Return what changes with the contents of a file; of one that is missing, nothing."""
    if not path.exists():
        return 0, 0
    found = path.stat()
    return found.st_size, found.st_mtime_ns
