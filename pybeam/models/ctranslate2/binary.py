"""`model.bin`: every tensor behind its name and shape, single numbers among them, and names for them."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import IO, Any

import torch

from pybeam.models.tensor_files import StoredTensor
from pybeam.text.ctranslate2 import BINARY
from pybeam.text.model_files import regular_file

# versions of the file's format; other numbers than these need another reader
OLDEST, NEWEST = 2, 6
# the versions from which on tensors have several names, and name their dtypes by their places here
HAS_ALIASES, NAMES_DTYPES = 3, 4
DTYPES = (
    *(torch.float32, torch.int8, torch.int16),
    *(torch.int32, torch.float16, torch.bfloat16),
)
# before it, the bytes of a number say what it is
DTYPE_OF_SIZE = {4: torch.float32, 2: torch.int16, 1: torch.int8}
# what a file calls a kind of model -> the latest revision that is known of it
REVISIONS = {
    "TransformerSpec": 7,
    "TransformerDecoderSpec": 8,
    "WhisperSpec": 3,
    "TransformerBase": 7,
    "TransformerBig": 7,
}
# of the kinds whose files do not say it
NUM_HEADS = {"TransformerBig": 16}
# more than any tensor has
MAX_RANK = 8


class Binary:
    """The contents of `model.bin`. A number or a flag that nobody has asked for stands in `unread`.

    Attributes:
        path: the file.
        spec: what kind of model this is.
        tensors: where each tensor lies.
        aliases: other names of tensors, as the file gives them.
        unread: names of single numbers.
    """

    def __init__(self, directory: Path) -> None:
        self.path = regular_file(directory / BINARY)
        self.tensors: dict[str, StoredTensor] = {}
        self.aliases: dict[str, str] = {}
        with open(self.path, "rb") as file:
            cursor = _Cursor(self.path, file)
            self._read(cursor)
        for alias, name in self.aliases.items():
            if name not in self.tensors or alias in self.tensors:
                raise ValueError(
                    f"{self.path} calls `{name}` `{alias}`, too, and must hold the first and not the second"
                )
        self.unread = {name for name, tensor in self.tensors.items() if not tensor.shape}

    def _read(self, cursor: _Cursor) -> None:
        version = cursor.number("I")
        if not OLDEST <= version <= NEWEST:
            raise ValueError(
                f"{self.path} must be a model of CTranslate2 in version {OLDEST} to {NEWEST} of that "
                f"format, but has version {version}; convert the model again"
            )
        self.spec, revision = cursor.text(), cursor.number("I")
        if self.spec not in REVISIONS:
            known = ", ".join(REVISIONS)
            raise ValueError(
                f"the kind of model in {self.path} must be one of {known}, but is {self.spec!r}, which "
                "generates no tokens"
            )
        if revision > REVISIONS[self.spec]:
            raise ValueError(
                f"{self.path} must be of revision {REVISIONS[self.spec]} of {self.spec} or an older one, but "
                f"is of {revision}, which a later CTranslate2 has written"
            )
        for _ in range(cursor.number("I")):
            name, tensor = cursor.text(), cursor.tensor(version)
            if name in self.tensors:
                raise ValueError(f"{self.path} must hold `{name}` once, but holds it twice")
            self.tensors[name] = tensor
        for _ in range(cursor.number("I") if version >= HAS_ALIASES else 0):
            alias = cursor.text()
            self.aliases[alias] = cursor.text()

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or name in self.aliases

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a tensor. Raises ValueError if it is missing, empty or of another rank."""
        stored = self.tensors.get(self.aliases.get(name, name))
        if stored is None:
            raise ValueError(f"`{name}` is missing in {self.path}")
        if len(stored.shape) != rank or 0 in stored.shape:
            raise ValueError(
                f"`{name}` in {self.path} must have {rank} dimensions with numbers, but has the shape "
                f"{list(stored.shape)}"
            )
        return stored.shape

    def num_layers(self, stack: str) -> int:
        """Return the number of a stack's layers. Raises ValueError if they are not counted from 0."""
        pattern = re.compile(rf"{stack}/layer_(\d{{1,5}})/")
        found = {int(match[1]) for match in map(pattern.match, self.tensors) if match}
        if found != set(range(len(found))) or not found:
            raise ValueError(
                f"the layers of {stack!r} in {self.path} must be counted from 0, but their numbers are "
                f"{sorted(found)[:20]}"
            )
        return len(found)

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a single number; `default` stands for a missing one. Raises ValueError for what is none."""
        name = self.aliases.get(name, name)
        stored = self.tensors.get(name)
        if stored is None:
            return default
        if stored.shape:
            raise ValueError(
                f"`{name}` in {self.path} must be one number, but has the shape {list(stored.shape)}"
            )
        self.unread.discard(name)
        value = stored.read().item()
        if not math.isfinite(value):
            raise ValueError(f"`{name}` in {self.path} must be a number, but is {value}")
        return value

    def size(self, name: str, default: int | None = None, most: int = 1 << 16) -> int:
        """Return a number from 1 to `most`. Raises ValueError for another one, or without it."""
        value = self.number(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(name, f"an integer from 1 to {most}", value)
        return value

    def error(self, name: str, expected: str, value: Any) -> ValueError:
        """Make an error for the value of a number."""
        return ValueError(f"`{name}` in {self.path} must be {expected}, but is {value!r}")

    def special_tokens(self) -> dict[str, Any]:
        """Return what the files of old versions say of special tokens, under the names of config.json."""
        found: dict[str, Any] = {}
        for name in ("unk_token", "bos_token", "eos_token"):
            if name in self.tensors:
                stored = self.tensors.pop(name)
                if stored.dtype != torch.int8 or len(stored.shape) != 1:
                    raise ValueError(f"`{name}` in {self.path} must be a text")
                found[name] = stored.read().numpy().tobytes().decode("utf-8", "replace")
        for name, own in (
            ("with_source_bos", "add_source_bos"),
            ("with_source_eos", "add_source_eos"),
        ):
            if name in self.tensors:
                found[own] = bool(self.number(name))
        if self.number("user_decoder_start_tokens", 0):
            found["decoder_start_token"] = None
        elif not self.number("with_target_bos", 1):
            found["decoder_start_token"] = found.get("eos_token", "</s>")
        return found

    def close(self) -> None:
        """Raise ValueError if a number has not been read, which says that layers compute something else."""
        if self.unread:
            name = min(self.unread)
            raise ValueError(
                f"`{name}` in {self.path} is {self.number(name)}, and says that the layers compute what "
                "pybeam's do not"
            )


def whisper_sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of a Whisper's input, under their names in the files of transformers."""
    binary = Binary(directory)
    return {
        "max_source_positions": binary.shape("encoder/position_encodings/encodings", 2)[0],
        "feature_size": binary.shape("encoder/conv1/weight", 3)[1],
    }


class _Cursor:
    """Reads the numbers and texts of a file one after another, and nothing beyond its end."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._size = path.stat().st_size

    def _bytes(self, num: int) -> bytes:
        found = self._file.read(num)
        if len(found) != num:
            raise ValueError(
                f"{self._path} must go on at byte {self._file.tell()}, but ends; is the download complete?"
            )
        return found

    def number(self, form: str) -> int:
        """Read an unsigned number, little-endian, of this form of the module struct."""
        [value] = struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))
        return int(value)

    def text(self) -> str:
        """Read a text: its length with a zero byte at its end, then both."""
        found = self._bytes(self.number("H"))
        try:
            if found.endswith(b"\0"):
                return found[:-1].decode("utf-8")
        except UnicodeDecodeError:
            pass
        raise ValueError(
            f"{self._path} must have a name before byte {self._file.tell()}, but has {found[:40]!r}"
        )

    def tensor(self, version: int) -> StoredTensor:
        """Read where a tensor lies, and go on behind it."""
        rank = self.number("B")
        if rank > MAX_RANK:
            raise ValueError(
                f"a tensor in {self._path} has {rank} dimensions, which none should have"
            )
        shape = tuple(self.number("I") for _ in range(rank))
        kind, num = self.number("B"), self.number("I")
        if version < NAMES_DTYPES:
            dtype, num = DTYPE_OF_SIZE.get(kind), num * kind
        else:
            dtype = DTYPES[kind] if kind < len(DTYPES) else None
        begin = self._file.tell()
        if dtype is None or num != math.prod(shape) * dtype.itemsize or begin + num > self._size:
            raise ValueError(
                f"the tensor before byte {begin} in {self._path} must lie within the file with {list(shape)} "
                f"numbers of a known type, but has {num} bytes of type {kind}; is the download complete?"
            )
        self._file.seek(num, 1)
        return StoredTensor(self._path, dtype, shape, begin)
