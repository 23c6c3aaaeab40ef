"""Names of models, as faster-whisper knows them, become folders."""

from __future__ import annotations

import shutil

from pybeam.arguments import ArgumentError
from pybeam.hub import fetch

# where the models that are named by their size were published, converted for CTranslate2
SYSTRAN = (
    "tiny.en tiny base.en base small.en small medium.en medium large-v1 large-v2 large-v3".split()
)
DISTILLED = ("large-v2", "medium.en", "small.en", "large-v3")
TURBO = "mobiuslabsgmbh/faster-whisper-large-v3-turbo"
MODELS = {
    **{size: f"Systran/faster-whisper-{size}" for size in SYSTRAN},
    "large": "Systran/faster-whisper-large-v3",
    **{f"distil-{size}": f"Systran/faster-distil-whisper-{size}" for size in DISTILLED},
    "distil-large-v3.5": "distil-whisper/distil-large-v3.5-ct2",
    "large-v3-turbo": TURBO,
    "turbo": TURBO,
}


def available_models() -> list[str]:
    """Return the sizes that have a name."""
    return list(MODELS)


def download_model(
    size_or_id: str,
    output_dir: str | None = None,
    local_files_only: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    use_auth_token: str | bool | None = None,
) -> str:
    """Download a model, unless it is there, and return its folder.

    Args:
        size_or_id: one of `available_models`, or a name on the hub, of a model of CTranslate2 or of
            transformers.
        output_dir: the folder that its files are copied to; None: they stay in the cache.
        local_files_only, cache_dir, revision, use_auth_token: `offline`, `cache_dir`, `revision` and `token`
            of `pybeam.hub.fetch`. A token of True is the one that is stored on this machine.

    Raises:
        ValueError: there is no such size; or see `pybeam.hub.fetch`.
    """
    name = size_or_id if "/" in size_or_id else MODELS.get(size_or_id)
    if name is None:
        raise ArgumentError(
            "size_or_id",
            f"must be a folder, a name on the hub or one of {', '.join(MODELS)}, but is {size_or_id!r}",
        )
    folder = fetch(
        name,
        revision=revision,
        # True is the token of this machine, which None is here
        token=None if use_auth_token is True else use_auth_token,
        cache_dir=cache_dir,
        offline=local_files_only,
        progress=False,
    )
    if output_dir is None:
        return str(folder)
    shutil.copytree(folder, output_dir, dirs_exist_ok=True)
    return output_dir
