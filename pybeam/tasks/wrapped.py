"""Checkpoints that transformers loads, for models that are not built in."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.models.base import Model
from pybeam.models.huggingface import check_transformers, wrap
from pybeam.models.loading import working_device
from pybeam.models.settings import read_settings
from pybeam.text.json_files import read_json
from pybeam.text.subwords import Pieces, Vocabularies
from pybeam.text.tokenizer import Tokenizer

log = logging.getLogger("pybeam.tasks")

DTYPES = ("float32", "bfloat16", "float16")


def load_wrapped(
    path: Path,
    device: str | torch.device,
    dtype: str | torch.dtype,
    eos_id: int | Sequence[int] | None,
    why: ValueError,
) -> Model:
    """Load a folder with transformers, and wrap its network.

    Args:
        path, device, dtype, eos_id: as for `pybeam.load_model`; the weights are not quantised.
        why: the reason for which `load_model` does not take the folder.

    Raises:
        ValueError: transformers is missing, is too old or cannot load the folder either, weights are missing,
            or the network cannot be searched exactly.
    """
    device = working_device(device)
    wanted = _dtype(dtype, device)
    network = _network(path, wanted, why).eval().to(device)
    if network.main_input_name == "pixel_values":
        raise ValueError(
            f"{type(network).__name__} in {path} takes images, for which there is no task here; wrap it with "
            "`pybeam.models.huggingface.wrap`, and give a Decoder what its processor makes of an image"
        )
    model = wrap(network, eos_id=eos_id)
    model.settings, model.num_parameters = read_settings(path), network.num_parameters()
    log.info("%s: transformers loads it, and pybeam wraps the network: %r (%s)", path, model, why)
    return model


def _network(path: Path, dtype: torch.dtype | str, why: ValueError) -> Any:
    # without the remedy, which is to come here
    problem = f"{path} holds a model that is not built in ({str(why).partition('; ')[0]})"
    try:
        check_transformers()
    except ImportError as error:
        raise ValueError(f"{problem}, and {error}") from error
    import transformers

    named = read_json(path / "config.json").get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    is_known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if kind is None or not is_known:
        raise ValueError(
            f"{problem}, and transformers {transformers.__version__} has no class {name!r}, which "
            "`architectures` in config.json names"
        ) from why
    build: Any = kind.from_pretrained
    options = dict(local_files_only=True, use_safetensors=True, output_loading_info=True)
    try:
        with _no_bars():
            network, found = build(path, dtype=dtype, **options)
    # whatever it raises, the folder cannot be loaded
    except Exception as error:
        raise ValueError(f"{problem}, and transformers cannot load it: {error}") from error
    # transformers makes random numbers of them
    lost = sorted(map(str, (*found["missing_keys"], *found["mismatched_keys"])))
    if lost:
        raise ValueError(
            f"`{lost[0]}` is missing in the weights of {path}, or has another shape"
        ) from why
    return network


@contextmanager
def _no_bars() -> Iterator[None]:
    """A context in which transformers shows no bar, which it otherwise does without a terminal, too."""
    from transformers.utils import logging as bars

    was_on = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            bars.enable_progress_bar()


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    """Return the dtype for transformers: "auto" is that of the file on a GPU."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    named = str(dtype).removeprefix("torch.")
    if named not in DTYPES:
        problem = (
            f"must be 'auto' or one of {', '.join(DTYPES)} for a model that transformers loads"
        )
        raise ArgumentError("dtype", f"{problem}, but is {dtype!r}")
    found: torch.dtype = getattr(torch, named)
    return found


class WrappedExtractor:
    """Features as a processor of transformers makes them of samples.

    Attributes:
        sampling_rate: of samples, in Hz.
    """

    def __init__(self, path: Path, model: Any) -> None:
        from transformers import AutoFeatureExtractor

        self._extract = AutoFeatureExtractor.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
        self._name = model.network.main_input_name
        self.sampling_rate: int = self._extract.sampling_rate

    def __call__(self, samples: Tensor) -> Tensor:
        made = self._extract(samples.numpy(), sampling_rate=self.sampling_rate, return_tensors="pt")
        features: Tensor = made[self._name][0]
        return features


class WrappedPieces(Pieces):
    """A tokenizer of transformers. It frames sources itself."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text).input_ids
        return ids

    def encode_target(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def decode(self, ids: Sequence[int], strips: bool = True) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip() if strips else text

    def token_id(self, token: str) -> int | None:
        found: int | None = self.vocabularies()[0].get(token)
        return found

    def vocabularies(self) -> Vocabularies:
        vocabulary = self.tokenizer.get_vocab()
        return vocabulary, vocabulary


class WrappedTexts:
    """The tokenizers of transformers for a folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        first = self._load()
        self._takes_languages = hasattr(first, "src_lang")
        named = first.extra_special_tokens if self._takes_languages else []
        self._tokenizers: dict[tuple[str | None, str | None], Tokenizer]
        self._tokenizers = {(None, None): Tokenizer(WrappedPieces(first), [], [], [])}
        self.languages = (list(named), list(named))

    def of(self, source_lang: str | None = None, target_lang: str | None = None) -> Tokenizer:
        """Return the tokenizer for these languages. Raises ValueError if the model does not know one."""
        pair = source_lang, target_lang
        if pair not in self._tokenizers:
            self._tokenizers[pair] = self._between(*pair)
        return self._tokenizers[pair]

    def _between(self, source: str | None, target: str | None) -> Tokenizer:
        pieces = WrappedPieces(self._load(**({} if source is None else {"src_lang": source})))
        for name, language in (("source_lang", source), ("target_lang", target)):
            if language is None:
                continue
            if not self._takes_languages:
                problem = (
                    f"must be left out, as the tokenizer of {self._directory} has no language tags"
                )
                raise ArgumentError(name, f"{problem}, but is {language!r}")
            if language not in self.languages[0]:
                problem = f"must be one of the languages of {self._directory}, but is {language!r}"
                raise ArgumentError(name, problem)
        prefix = [] if target is None else [pieces.token_id(target)]
        return Tokenizer(pieces, [], [], [token for token in prefix if token is not None])

    def _load(self, **options: str) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            self._directory, local_files_only=True, trust_remote_code=False, **options
        )
