"""The tokens of a folder, by their names: CTranslate2's, or those of a folder of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pybeam.models.base import Model
from pybeam.text.ctranslate2 import Words, is_ctranslate2, read_words
from pybeam.text.tokenizer import load_vocabularies

UNKNOWN = ("<unk>", "[UNK]", "<|endoftext|>")


class Vocabulary:
    """Turns tokens into ids and back, with what the model wants around a source.

    Args:
        words: the vocabularies.

    Attributes:
        source_ids: the id of each source token.
        unk_id, bos_id: of the target vocabulary; None: there is none.
        start_id: what outputs start from; None: the target prefix says it, or the model knows.
    """

    def __init__(self, words: Words) -> None:
        self._words, config = words, words.config
        self.source_ids = words.source_ids
        self.unk_token = config.get("unk_token")
        self.unk_id, self.bos_id = (words.special_id(f"{name}_token") for name in ("unk", "bos"))
        self.needs_start = config.get("decoder_start_token", "") is None
        self._eos = config.get("eos_token")
        self._before, self._after = (
            [config[f"{name}_token"]] if config.get(f"add_source_{name}") else []
            for name in ("bos", "eos")
        )

    @classmethod
    def load(cls, directory: Path, model: Model) -> Vocabulary:
        """Read that of a folder.

        Raises:
            ValueError: there are no files with tokens, or they are not sound.
        """
        if is_ctranslate2(directory):
            return cls(read_words(directory))
        found = load_vocabularies(directory)
        if found is None:
            raise ValueError(
                f"{directory} has no vocabulary by which to read tokens; it needs CTranslate2's, or the "
                "files of a tokenizer"
            )
        source, target = (_listed(ids, model.vocab_size) for ids in found)
        known = (token for token in UNKNOWN if token in found[1])
        config = {"unk_token": next(known, None), "eos_token": target[model.eos_id]}
        config["bos_token"] = next((one for one in ("<s>", "<bos>") if one in found[1]), None)
        return cls(Words(directory, source, target, config))

    @property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens that the target vocabulary has."""
        found = (self._words.special_id(f"{name}_token") for name in ("unk", "bos", "eos"))
        return [one for one in found if one is not None]

    def source(self, tokens: Sequence[str], longest: int) -> list[int]:
        """Return the ids of a source with what stands around it, cut to `longest` of them; 0: all."""
        ids = [self._source_id(one) for one in (*self._before, *tokens, *self._after)]
        if not longest or len(ids) <= longest:
            return ids
        eos = self.source_ids.get(self._eos or "")
        # EOS, and the tag of a language behind it, stay at the end
        kept = 1 if ids[-1] == eos else 2 * (len(ids) > 1 and ids[-2] == eos and longest > 1)
        return ids[: longest - kept] + ids[len(ids) - kept :]

    def own_attention(self, vectors: list[list[float]], num: int) -> list[list[float]]:
        """Return attention without the places of added tokens, as long as a source of `num` tokens."""
        first = len(self._before)
        cut = (vector[first : len(vector) - len(self._after)][:num] for vector in vectors)
        return [vector + [0.0] * (num - len(vector)) for vector in cut]

    def is_empty(self, tokens: Sequence[str]) -> bool:
        """Whether a source says nothing: it has at most BOS, EOS and the tag of a language."""
        rest = list(tokens)
        if rest and rest[0] == self._words.config.get("bos_token"):
            rest = rest[1:]
        if rest and rest[-1] == self._eos:
            rest = rest[:-1]
        elif len(rest) > 1 and rest[-2] == self._eos:
            rest = rest[:-2]
        return not rest

    def _source_id(self, token: str) -> int:
        return _id(token, self.source_ids, self.source_ids.get(self.unk_token or ""))

    def target(self, tokens: Sequence[str], *, allows_unknown: bool = True) -> list[int]:
        """Return the ids of target tokens. Raises ValueError for one that is not known."""
        unknown = self.unk_id if allows_unknown else None
        return [_id(token, self._words.target_ids, unknown) for token in tokens]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the target tokens of ids."""
        known, unknown = self._words.target, self.unk_token or ""
        return [known[one] if one < len(known) else unknown for one in ids]


def _id(token: str, ids: dict[str, int], unknown: int | None) -> int:
    found = ids.get(token, unknown)
    if found is None:
        raise ValueError(f"Token {token} is not in the vocabulary, and there is no unknown one")
    return found


def _listed(ids: dict[str, int], size: int) -> list[str]:
    tokens = [f"<{i}>" for i in range(size)]
    for token, one in ids.items():
        if one < size:
            tokens[one] = token
    return tokens
