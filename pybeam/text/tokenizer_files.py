"""The files of a model directory that say how texts become tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybeam.text.json_files import LARGEST, folder_config, read_json
from pybeam.text.subwords import JsonPieces, MappedPieces, Pieces, SentencePieces

if TYPE_CHECKING:
    from pybeam.text import ctranslate2, marian

# M2M100's tags, in the order of their ids, which transformers 5 no longer writes into the files
M2M100_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha "
    "he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my "
    "ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz "
    "vi wo xh yi yo zh zu"
).split()
PLAIN_SENTENCEPIECE = ("sentencepiece.model", "spm.model", "spiece.model", "tokenizer.model")
FSMT_VOCABULARIES = ("vocab-src.json", "vocab-tgt.json")
FIREREDASR = ("dict.txt", "train_bpe1000.model")


class TokenizerFiles:
    """The JSON files of a model directory, read once; `words` are those of another system's folder."""

    words: ctranslate2.Words | marian.Words | None

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = folder_config(directory) if self.has("config.json") else {}
        self.words = None
        if "model_type" not in self.config:
            from pybeam.text.foreign import read_words

            self.words = read_words(directory)
        if self.words is not None:
            self.config = self.words.transformers_config
        self.generation_config = self._read("generation_config.json")
        self.tokenizer_config = self._read("tokenizer_config.json")

    def has(self, *names: str) -> bool:
        return all((self.directory / name).exists() for name in names)

    def setting(self, name: str) -> Any:
        """Return a setting of the generation config, or else of the model's config."""
        value = self.generation_config.get(name)
        return self.config.get(name) if value is None else value

    def vocabulary(self, name: str) -> dict[str, int]:
        """Return the ids of tokens, or nothing without the file. Raises ValueError for what is no id."""
        found = self._read(name)
        for token, token_id in found.items():
            if type(token_id) is not int or not 0 <= token_id <= LARGEST:
                raise ValueError(
                    f"{token!r} in {self.directory / name} must have a token id, but has {token_id!r}"
                )
        return found

    def added_tokens(self) -> dict[str, int]:
        """Return tokens outside the vocabulary file whose ids the files give."""
        added = self.vocabulary("added_tokens.json")
        for token_id, token in self.tokenizer_config.get("added_tokens_decoder", {}).items():
            added[token["content"]] = int(token_id)
        return added

    def listed_tokens(self) -> list[str]:
        """List additional special tokens, in the order of their ids, which the files do not give."""
        for content in (self._read("special_tokens_map.json"), self.tokenizer_config):
            listed = content.get("additional_special_tokens") or content.get("extra_special_tokens")
            if listed and isinstance(listed, list):
                return [token["content"] if isinstance(token, dict) else token for token in listed]
        if self.tokenizer_config.get("language_codes") == "m2m100":
            return [f"__{language}__" for language in M2M100_LANGUAGES]
        return []

    @property
    def tokenizer_class(self) -> str:
        return (
            self.tokenizer_config.get("tokenizer_class") or self.config.get("tokenizer_class") or ""
        )

    def _read(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        return read_json(path) if path.exists() else {}


def load_pieces(files: TokenizerFiles) -> Pieces:
    """Load what splits texts, from the first of the files that there are. Raises FileNotFoundError."""
    directory = files.directory
    if files.has("tokenizer.json"):
        return JsonPieces(directory / "tokenizer.json")
    if files.words is not None and files.words.has_encoder:
        return files.words.pieces(PLAIN_SENTENCEPIECE)
    if files.has("source.spm", "target.spm", "vocab.json"):
        source = files.vocabulary("vocab.json")
        target = files.vocabulary("target_vocab.json") or source
        return MappedPieces(directory / "source.spm", directory / "target.spm", source, target)
    if files.has("sentencepiece.bpe.model", "vocab.json"):
        model = directory / "sentencepiece.bpe.model"
        vocabulary = files.vocabulary("vocab.json")
        # the ids of M2M100's language tags follow the vocabulary, in the order of the list
        missing = [token for token in files.listed_tokens() if token not in vocabulary]
        listed = {token: len(vocabulary) + i for i, token in enumerate(missing)}
        vocabulary = {**listed, **files.added_tokens(), **vocabulary}
        return MappedPieces(model, model, vocabulary, vocabulary)
    if files.config.get("model_type") == "fireredasr" and files.has(*FIREREDASR):
        from pybeam.text.characters import CharacterPieces

        return CharacterPieces(*(directory / name for name in FIREREDASR))
    for name in PLAIN_SENTENCEPIECE:
        # Pegasus has 103 ids before those of its file
        if files.has(name) and files.config.get("model_type") != "pegasus":
            return SentencePieces(directory / name)
    remedy = (
        "save one with transformers: `AutoTokenizer.from_pretrained(path).save_pretrained(path)`"
    )
    if files.config.get("model_type") == "fsmt":
        remedy = "FSMT's own tokenizer (Moses and BPE) is not built in, so give token ids"
    raise FileNotFoundError(
        f"no tokenizer in {directory}: looked for tokenizer.json, source.spm with target.spm and "
        f"vocab.json, sentencepiece.bpe.model with vocab.json, {', '.join(PLAIN_SENTENCEPIECE)}; "
        f"{remedy}"
    )
