"""Turn text into source ids and target ids into text, with the files beside the weights."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from pybeam.arguments import ArgumentError, some, whole
from pybeam.text.encoded import Encoded
from pybeam.text.json_files import LARGEST
from pybeam.text.model_files import blaming
from pybeam.text.subwords import Pieces, Vocabularies
from pybeam.text.tokenizer_files import FSMT_VOCABULARIES, TokenizerFiles, load_pieces

# models whose sources are prompts, which have neither tags nor EOS
DECODER_ONLY = (
    *("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral", "phi3"),
    *("gemma", "gemma2", "gemma3_text", "gpt2", "opt", "gpt_neox", "phi", "bloom", "falcon"),
)
log = logging.getLogger(__name__)

Texts = list[str] | tuple[str, ...]


class Tokenizer:
    """Encode sources as the model was trained to read them, and decode its outputs.

    `load_tokenizer` makes one.

    Args:
        pieces: splits a text into the tokens of a vocabulary.
        before: ids in front of every source.
        after: ids behind every source, EOS among them.
        prefix: ids that every hypothesis must begin with: the target language's tag, where the model wants
            one there. What `encode` returns has them with it.

    Attributes:
        prefix: see above.
        unk_id: the id of an unknown word among generated ids; None if there is none.
    """

    def __init__(
        self, pieces: Pieces, before: Sequence[int], after: Sequence[int], prefix: Sequence[int]
    ) -> None:
        self._pieces, self._before, self._after = pieces, list(before), list(after)
        self.prefix = list(prefix)
        self.unk_id = pieces.target_id("<unk>")

    def __repr__(self) -> str:
        parts = f"before={self._before}, after={self._after}, prefix={self.prefix}"
        return f"Tokenizer({type(self._pieces).__name__}, {parts})"

    @overload
    def encode(self, text: str) -> list[int]: ...
    @overload
    def encode(self, text: Texts) -> list[list[int]]: ...
    def encode(self, text: str | Texts) -> list[int] | list[list[int]]:
        """Return the source ids of a text, tags and EOS included, or a list of them for several texts.

        The text of a decoder-only model is a prompt, which has none of these. Where hypotheses must begin
        with `prefix`, the ids are an `Encoded`, a list that says so to a `pybeam.Decoder`.

        Args:
            text: a text, or a list or tuple of texts.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(text, str):
            ids = [*self._before, *self._pieces.encode(text), *self._after]
            return Encoded(ids, self.prefix) if self.prefix else ids
        return [self.encode(one) for one in _texts(text)]

    @overload
    def encode_target(self, text: str) -> list[int]: ...
    @overload
    def encode_target(self, text: Texts) -> list[list[int]]: ...
    def encode_target(self, text: str | Texts) -> list[int] | list[list[int]]:
        """Return the target ids of a text, without tags and EOS, for `Decoder.score`.

        Args:
            text: a text, or a list or tuple of texts.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(text, str):
            return self._pieces.encode_target(text)
        return [self.encode_target(one) for one in _texts(text)]

    @property
    def target_ids(self) -> dict[str, int]:
        """The ids of target tokens by their names in the files."""
        return self._pieces.vocabularies()[1]

    def decode(self, ids: Sequence[int], *, strips: bool = True) -> str:
        """Return the text of generated ids, without EOS, tags and other control tokens.

        Args:
            ids: tokens of one hypothesis.
            strips: whether spaces at both ends are left out; pieces of a text to be joined keep them.

        Raises:
            TypeError: these are no ids but, say, a list of lists of ids.
        """
        return self._pieces.decode([_as_id(token) for token in ids], strips)


def _texts(texts: Texts) -> Texts:
    expected = "`text` must be a text or a list of texts"
    if not isinstance(texts, list | tuple):
        raise TypeError(f"{expected}, but is {texts!r}")
    for one in texts:
        if not isinstance(one, str):
            raise TypeError(f"{expected}, but holds {one!r}")
    return texts


def _as_id(token: int) -> int:
    try:
        return int(token)
    except (TypeError, ValueError):
        raise TypeError(
            f"`ids` must be the token ids of one hypothesis, but hold {token!r}; decode them one by one"
        ) from None


def load_tokenizer(
    path: str | os.PathLike[str],
    source_lang: str | None = None,
    target_lang: str | None = None,
    *,
    eos_id: int | None = None,
) -> Tokenizer:
    """Load the tokenizer of a model directory.

    It reads the first of these that exist: `tokenizer.json` (package tokenizers); `source.spm`, `target.spm`
    and `vocab.json` (Marian); `sentencepiece.bpe.model` with `vocab.json` (M2M100); `dict.txt` with
    `train_bpe1000.model` (FireRedASR); `sentencepiece.model`, `spm.model`, `spiece.model` (T5) or
    `tokenizer.model` (Llama), whose ids are used as they are (package sentencepiece). Pegasus, whose ids are
    others, needs `tokenizer.json`.

    The text of a decoder-only model is a prompt: special tokens stand around it only where the tokenizer's
    own file says so, such as BOS. Templates of chats are the caller's.

    Args:
        path: the directory, with `config.json`.
        source_lang, target_lang: languages as the model's files name them ("en" or "eng_Latn" or
            "en_XX"), for models with language tags; by default those of `tokenizer_config.json`.
            A Marian model's target language is a tag before the source.
        eos_id: the token behind every source; None: EOS of the files, and of several that of the tokenizer's
            own files.

    Raises:
        FileNotFoundError: no such directory, or no tokenizer file that can be read in it.
        ValueError: a language is missing, unknown or given to a model without tags, or a file is
            broken.
    """
    return Tokenizers(path, eos_id=eos_id).of(source_lang, target_lang)


class Tokenizers:
    """The tokenizers of a model directory, one for each pair of languages, over files that are read once.

    Args:
        path, eos_id: as for `load_tokenizer`.

    Attributes:
        languages: those that sources and targets are tagged with, by the names of `load_tokenizer`. A list is
            empty where there are no tags: a Marian model tags targets alone.
        reads_prompts: whether sources are prompts, which a decoder-only model continues.

    Raises:
        FileNotFoundError, ValueError: as `load_tokenizer`.
    """

    def __init__(self, path: str | os.PathLike[str], *, eos_id: int | None = None) -> None:
        directory = Path(path)
        if not directory.is_dir():
            raise FileNotFoundError(
                f"`path` must be a directory with a Hugging Face model, but none is at {directory}; "
                "`pybeam.load` takes a name on the hub, too, and `pybeam.hub.fetch` gives its directory"
            )
        if eos_id is not None:
            whole("eos_id", eos_id, 0, LARGEST)
        with blaming(directory):
            self._files = files = TokenizerFiles(directory)
            self._pieces, self._eos_id = load_pieces(files), eos_id
            self.reads_prompts = files.config.get("model_type") in DECODER_ONLY
            if files.words is not None:
                self.reads_prompts = not files.words.has_encoder
            tags = [] if self.reads_prompts else self._pieces.languages()
            tags = [tag.strip("_<>") for tag in tags]
            self.languages = [] if files.config.get("model_type") == "marian" else tags, tags
        kind = type(self._pieces).__name__
        log.info("read the tokenizer of %s: %s, %d languages", directory, kind, len(tags))

    def of(self, source_lang: str | None = None, target_lang: str | None = None) -> Tokenizer:
        """Return the tokenizer for these languages.

        Raises:
            ValueError: a language is missing, unknown or given to a model without tags, or a file is broken.
        """
        files, pieces = self._files, self._pieces
        with blaming(files.directory):
            if self.reads_prompts:
                _refuse_languages(files, source_lang, target_lang)
                before, after = pieces.frame
                return Tokenizer(pieces, before, after, [])
            eos_id = _source_eos(files, pieces) if self._eos_id is None else self._eos_id
            return _framed(files, pieces, eos_id, source_lang, target_lang)


def _source_eos(files: TokenizerFiles, pieces: Pieces) -> int:
    """Return the token that ends a source, of several that end hypotheses. Raises ValueError if none does."""
    named = files.setting("eos_token_id")
    if isinstance(named, int) and not isinstance(named, bool):
        return named
    listed = named if isinstance(named, list) else []
    token = files.tokenizer_config.get("eos_token")
    own = pieces.token_id(token["content"] if isinstance(token, dict) else token) if token else None
    if own is not None and (named is None or own in listed):
        return own
    if len(listed) == 1 and isinstance(listed[0], int):
        return listed[0]
    raise ValueError(
        f"`eos_token_id` of {files.directory} must be one token id, or several with the `eos_token` of "
        f"tokenizer_config.json among them, but is {named!r}; give the one to use as `eos_id` of "
        "`load_tokenizer`"
    )


def load_vocabularies(path: str | os.PathLike[str]) -> Vocabularies | None:
    """Load the ids of source and target tokens from the tokenizer files of a model directory.

    Returns None if there are no such files. Raises ValueError if one is broken.
    """
    try:
        with blaming(Path(path)):
            files = TokenizerFiles(Path(path))
            if files.has(*FSMT_VOCABULARIES):
                source, target = map(files.vocabulary, FSMT_VOCABULARIES)
                return source, target
            if files.words is not None:
                return files.words.source_ids, files.words.target_ids
            return load_pieces(files).vocabularies()
    except FileNotFoundError:
        return None


def _framed(
    files: TokenizerFiles,
    pieces: Pieces,
    eos_id: int,
    source_lang: str | None,
    target_lang: str | None,
) -> Tokenizer:
    """Add the tokens that the family puts around a source and before a target."""
    forced = files.setting("forced_bos_token_id")
    prefix = [forced] if isinstance(forced, int) else []
    tags = pieces.languages()
    if not tags:
        _refuse_languages(files, source_lang, target_lang)
        return Tokenizer(pieces, pieces.before, [eos_id], prefix)

    known = some(sorted(one.strip("_<>") for one in tags))

    def tag(name: str, language: str | None) -> int:
        for token in (language, f"__{language}__", f">>{language}<<"):
            token_id = pieces.token_id(token) if token in tags else None
            if token_id is not None:
                return token_id
        raise ArgumentError(
            name,
            f"must be one of the languages of {files.directory} ({known}), but is {language!r}",
        )

    source_lang = source_lang or files.tokenizer_config.get("src_lang")
    target_lang = target_lang or files.tokenizer_config.get("tgt_lang")
    if files.config.get("model_type") == "marian":
        before = [] if target_lang is None else [tag("target_lang", target_lang)]
        return Tokenizer(pieces, before, [eos_id], prefix)
    source = tag("source_lang", source_lang)
    is_mbart_25 = files.config.get("model_type") == "mbart" and not (
        "MBart50" in files.tokenizer_class or "sl_SI" in tags
    )
    if target_lang is not None or not (prefix or is_mbart_25):
        prefix = [tag("target_lang", target_lang)]
    if is_mbart_25:
        # the tag is the start token here, and that belongs to the model
        start_id = files.setting("decoder_start_token_id")
        if target_lang is not None and prefix != [start_id]:
            raise ArgumentError(
                "target_lang",
                f"must be the language that `decoder_start_token_id` = {start_id} of "
                f"{files.directory} names, but is {target_lang!r}; change the id in "
                f"generation_config.json to {prefix[0]}",
            )
        return Tokenizer(pieces, [], [eos_id, source], [])
    if files.tokenizer_config.get("legacy_behaviour"):
        return Tokenizer(pieces, [], [eos_id, source], prefix)
    return Tokenizer(pieces, [source], [eos_id], prefix)


def _refuse_languages(
    files: TokenizerFiles, source_lang: str | None, target_lang: str | None
) -> None:
    for name, language in (("source_lang", source_lang), ("target_lang", target_lang)):
        if language is not None:
            raise ArgumentError(
                name,
                f"must be left out, as the tokenizer of {files.directory} has no language tags, but "
                f"is {language!r}",
            )
