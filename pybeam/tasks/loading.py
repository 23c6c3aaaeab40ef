"""`load`: a checkpoint becomes an object for what it does."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pybeam.arguments import ArgumentError, names_checked
from pybeam.engine.schedule import Schedule
from pybeam.hub import fetch
from pybeam.models.base import Model
from pybeam.models.loading import check_config, load_model
from pybeam.models.onnx import DECODER
from pybeam.search.algorithms import Algorithm
from pybeam.tasks.loaded import Folder, check_search
from pybeam.tasks.search import folder_fields, folder_search, marian_search
from pybeam.text.ctranslate2 import is_ctranslate2
from pybeam.text.foreign import read_words
from pybeam.text.json_files import folder_config, read_json
from pybeam.text.marian import Words
from pybeam.text.tokenizer import Tokenizers
from pybeam.text.tokenizer_files import TokenizerFiles

log = logging.getLogger("pybeam.tasks")

Name = str | os.PathLike[str]
# where a folder names no number of beams: with an encoder, as on the command line, and without one
DEFAULT_WIDTH, WIDTH_OF_PROMPTS = 5, 1


# each is one thing that a user may know about a checkpoint
@names_checked
def load(
    name: Name | Sequence[Name],
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    search: Algorithm | None = None,
    schedule: Schedule | None = None,
    source: str | None = None,
    target: str | None = None,
    eos_id: int | Sequence[int] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: Name | None = None,
    offline: bool = False,
    progress: bool = True,
) -> Any:
    """Load a checkpoint, and return an object for what it does.

    This is a `pybeam.tasks.Translator` for models that turn a text into a text, a `pybeam.tasks.Generator`
    for decoder-only models, a `pybeam.tasks.WhisperRecognizer`, a `pybeam.tasks.CtcRecognizer` or a
    `pybeam.tasks.Recognizer` for speech::

        pybeam.load("Helsinki-NLP/opus-mt-es-en").translate("Hola.")
        pybeam.load("Qwen/Qwen3-0.6B").generate("The capital of France is")
        pybeam.load("openai/whisper-tiny").transcribe("talk.mp3")

    All that the folder says holds: languages, forced and banned tokens, the chat template, and the options of
    `generate` (`num_beams`, `length_penalty`, `early_stopping`, `max_length`), which give the default
    search. Where nothing names `num_beams`, it is that of `pybeam translate`, a fixed beam of 5, and a
    decoder alone searches greedily. A `do_sample` is left out, and the logger "pybeam.tasks" says so. A
    folder of Marian is searched as `marian-decoder` does with its `decoder.yml`.

    A model that `load_model` does not know is loaded with transformers, if that is installed, and wrapped
    (`pybeam.models.huggingface.wrap`). The logger says so, too. A model that cannot be searched exactly is
    refused.

    Args:
        name: a folder, or a name on the Hugging Face hub; or a list of them for an ensemble, whose first
            one has the tokenizer and the search.
        device, dtype: see `pybeam.load_model`.
        search: such as ``pybeam.fixed_beam(4)``; None: what the folder asks for. Whisper models search as
            `pybeam.Transcriber` does.
        schedule: see `pybeam.Decoder`.
        source, target: languages of a translator, for calls that name none.
        eos_id: the token that ends a hypothesis, or up to 8 of them, in place of those that the files name.
        revision, token, cache_dir, offline: see `pybeam.hub.fetch`; for names on the hub.
        progress: whether downloads and long lists show a bar, on a terminal.

    Raises:
        FileNotFoundError: there is no such folder or repository, or it has no tokenizer.
        PermissionError, ConnectionError, OSError: a download fails; see `pybeam.hub.fetch`.
        ImportError: a package that this model needs is missing.
        ValueError: a file is missing or wrong, the model cannot be searched exactly, or options do not fit
            it.
    """
    names: list[Any] = list(name) if isinstance(name, list | tuple) else [name]
    for one in names:
        if not isinstance(one, str | os.PathLike):
            raise TypeError(
                f"`name` must be a folder, a name on the hub, or a list of such, but is {name!r}"
            )
    if not names:
        raise ValueError(
            "`name` must be a folder or a name on the hub, or a list of at least one, but is empty"
        )
    if search is not None:
        check_search(search)
    paths = [
        fetch(
            one,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            offline=offline,
            progress=progress,
        )
        for one in names
    ]
    if is_ctc(paths[0]):
        needless = dict(
            search=search, schedule=schedule, source=source, target=target, eos_id=eos_id
        )
        return _ctc_recognizer(names, paths, device, dtype, progress, needless)
    model = _model(paths, device, dtype, eos_id)
    folder = Folder(", ".join(map(str, names)), paths[0], progress)
    if model.takes_features or _takes_prompts(model):
        for option, given in (("source", source), ("target", target)):
            if given is not None:
                raise ArgumentError(
                    option, f"is for models that translate, but is {given!r}; leave it out"
                )
        if model.takes_features:
            return _recognizer(folder, model, search, schedule)
        return _generator(folder, model, search, schedule)
    from pybeam.tasks.translator import Translator

    if search is None:
        words = read_words(folder.path)
        search = (
            marian_search(words)
            if isinstance(words, Words)
            else folder_search(*folder_fields(folder.path), DEFAULT_WIDTH)
        )
    texts = _texts(folder.path, model)
    return Translator(folder, model, search, schedule, texts, source, target)


def _model(
    paths: list[Path],
    device: str | torch.device,
    dtype: str | torch.dtype,
    eos_id: int | Sequence[int] | None,
) -> Model:
    if len(paths) == 1:
        problem = _why_not_built_in(paths[0], eos_id)
        if problem is not None:
            from pybeam.tasks.wrapped import load_wrapped

            return load_wrapped(paths[0], device, dtype, eos_id, problem)
    return load_model([*paths], device, dtype, eos_id=eos_id)


def _why_not_built_in(path: Path, eos_id: int | Sequence[int] | None) -> ValueError | None:
    """Return why `load_model` does not build a network that transformers may know; None: it does."""
    config = path / "config.json"
    if not config.exists() or (path / DECODER).exists() or is_ctranslate2(path):
        return None
    if not isinstance(read_json(config).get("model_type"), str):
        return None
    try:
        # a folder without EOS is no reason to wrap it
        check_config(path, 0 if eos_id is None else eos_id)
    except ValueError as error:
        return error
    return None


def is_ctc(path: Path) -> bool:
    """Whether a folder holds a model of CTC; False, too, if nobody can read what it is."""
    # most models have a decoder
    from pybeam.ctc.wav2vec2.config import MODEL_TYPE

    try:
        return folder_config(path).get("model_type") == MODEL_TYPE
    except (OSError, ValueError):
        return False


# each is a part of what the caller has asked for
def _ctc_recognizer(
    names: Sequence[Name],
    paths: Sequence[Path],
    device: str | torch.device,
    dtype: str | torch.dtype,
    progress: bool,
    needless: dict[str, Any],
) -> Any:
    from pybeam.ctc import load_model as load_ctc
    from pybeam.tasks.ctc import CtcRecognizer

    for option, given in needless.items():
        if given is not None:
            raise ArgumentError(
                option, f"is for models with a decoder, but is {given!r}; leave it out"
            )
    if len(paths) > 1:
        raise ValueError(
            f"`name` must be one model of CTC, but there are {len(paths)}; they make no ensemble"
        )
    model = load_ctc(paths[0], device, dtype)
    return CtcRecognizer(Folder(str(names[0]), paths[0], progress), model)


def _first(model: Model) -> Any:
    """Return the first member of an ensemble, or the model itself."""
    return getattr(model, "members", (model,))[0]


def _is_wrapped(model: Model) -> bool:
    return hasattr(model, "network")


def _takes_prompts(model: Model) -> bool:
    """Whether the sources of a model are prompts, which its outputs continue."""
    first = _first(model)
    if _is_wrapped(first):
        return not first.is_encoder_decoder
    from pybeam.models.transformer.causal import CausalTransformer

    return isinstance(first, CausalTransformer)


def _texts(path: Path, model: Model) -> Any:
    """Return the tokenizers of a folder, by languages."""
    if _is_wrapped(model):
        from pybeam.tasks.wrapped import WrappedTexts

        return WrappedTexts(path)
    files = TokenizerFiles(path)
    has_eos = files.setting("eos_token_id") is not None or files.tokenizer_config.get("eos_token")
    return Tokenizers(path, eos_id=None if has_eos else model.eos_id)


def _generator(
    folder: Folder, model: Model, search: Algorithm | None, schedule: Schedule | None
) -> Any:
    from pybeam.tasks.generator import Generator

    most = None
    if search is None:
        path, fields = folder_fields(folder.path)
        # of prompt and output together, behind a `max_new_tokens`
        if fields.get("max_new_tokens") is None:
            most = fields.get("max_length")
        fields = {**fields, "max_length": None}
        search = folder_search(path, fields, WIDTH_OF_PROMPTS)
    tokenizer = _texts(folder.path, model).of()
    return Generator(folder, model, search, schedule, tokenizer, most)


def _recognizer(
    folder: Folder, model: Model, search: Algorithm | None, schedule: Schedule | None
) -> Any:
    config = getattr(_first(model), "config", None)
    if getattr(config, "model_type", None) == "whisper":
        from pybeam.tasks.whisper import WhisperRecognizer

        return WhisperRecognizer(folder, model, search, schedule)
    from pybeam.tasks.recognizer import Recognizer

    if search is None:
        search = folder_search(*folder_fields(folder.path), DEFAULT_WIDTH)
    tokenizer = _texts(folder.path, model).of()
    extract: Any
    if _is_wrapped(model):
        from pybeam.tasks.wrapped import WrappedExtractor

        extract = WrappedExtractor(folder.path, model)
    else:
        from pybeam.speech import load_feature_extractor

        extract = load_feature_extractor(folder.path)
    return Recognizer(folder, model, search, schedule, tokenizer, extract)
