"""Damaged files: an error that names one of them, or a model that decodes; never anything else."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import pybeam
from fuzz.corpus import CODECS, KINDS, RATE, TEXTS, manifest, valid
from fuzz.odd import spoiled, with_other_bytes
from pybeam.corpus.manifest import Manifest
from pybeam.corpus.readers import Corpus
from pybeam.models import ConformerTransformer, SpeechTransformer
from pybeam.models.base import Model
from pybeam.models.onnx.model import OnnxSpeechModel
from pybeam.processors import language_model
from pybeam.speech.whisper.assets import load_transcription

# these may be said of a file; DecodeError holds the errors of requests
SAID = (ValueError, TypeError, OSError)
# a file that is missing, or is of another size, needs no seed
RARELY = 0.05
LONGEST = 6  # of outputs


def case(seed: int, kinds: tuple[str, ...] = KINDS) -> None:
    """Damage a copy of a valid directory of one of these kinds, and use it."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind = chance.choice(kinds)
    with tempfile.TemporaryDirectory(prefix="pybeam-fuzz-") as folder:
        directory = Path(folder) / "model"
        shutil.copytree(valid(kind), directory)
        spoilt = damage(directory, chance)
        told = f"{kind}: {', '.join(spoilt)}"
        for use in USES.get(kind, (decode,)):
            try:
                use(directory)
            except SAID as error:
                message = str(error)
                # what is sound may still not fit the model, or the run
                names = (
                    str(directory),
                    "`catalogue`",
                    "the output folder",
                    "the input in.txt",
                    *spoilt,
                )
                named = any(name in message for name in names)
                assert named, f"{told}: {type(error).__name__} names no file: {message[:300]!r}"
            except Exception as error:
                raise AssertionError(
                    f"{told}: {type(error).__name__} from {use.__name__}"
                ) from error


def damage(directory: Path, chance: random.Random) -> list[str]:
    """Damage one file of a directory, or sometimes two. Returns their names."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    contents = {path: path.read_bytes() for path in files}
    chosen = chance.sample(files, min(len(files), chance.choice([1, 1, 1, 2])))
    for path in chosen:
        if chance.random() < RARELY:
            path.unlink()
        elif chance.random() < RARELY:
            path.write_bytes(chance.choice([b"", b"\0", b"{}", b"[]", b"null", b"\xff" * 9]))
        elif chance.random() < RARELY:
            path.write_bytes(contents[chance.choice(files)])
        elif path.suffix == ".json" and chance.random() < 0.8:
            path.write_text(with_other_values(path.read_text("utf-8"), chance), "utf-8")
        elif path.suffix == ".safetensors" and chance.random() < 0.7:
            path.write_bytes(with_another_header(path.read_bytes(), chance))
        else:
            path.write_bytes(with_other_bytes(path.read_bytes(), chance))
    return [path.name for path in chosen]


def with_other_values(text: str, chance: random.Random) -> str:
    content = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        content = spoiled(content, chance)
    # as JSON knows no lone surrogates, they are written as escapes
    return json.dumps(content)


def with_another_header(content: bytes, chance: random.Random) -> bytes:
    """Change names, dtypes, shapes or places of tensors; the numbers stay."""
    [size] = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    name = chance.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    match chance.randint(0, 5):
        case 0:
            entry["dtype"] = chance.choice(["F64", "F16", "BF16", "I8", "I64", "BOOL", "X", 3])
        case 1:
            entry["shape"] = entry["shape"][::-1]
        case 2:
            entry["shape"] = [*entry["shape"], 1]
        case 3:
            header[chance.choice(["a", "", name + ".scale"])] = header.pop(name)
        case 4:
            del header[name]
        case _:
            header[name] = spoiled(entry, chance)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def read_catalogue(directory: Path) -> None:
    catalogue = pybeam.Catalogue.load(directory / "items.safetensors")
    model = pybeam.load_model(valid("rnn"))
    items = pybeam.catalogue.allowed_items(catalogue)
    search = pybeam.fixed_beam(4, n_best=4, max_length=9, processors=[items])
    finish(pybeam.Decoder(model, search).decode([[5, 6], [7]], on_error="return"))


def read_shortlists(directory: Path) -> None:
    ids = {str(i): i for i in range(9)}
    for name in ("lex.s2t", "lex.s2t.gz"):
        pybeam.Shortlist.from_lexical_table(directory / name, (ids, ids)).tokens_of([1, 2])
    pybeam.Shortlist.from_vmap(directory / "vmap.txt", (ids, ids)).tokens_of([3, 4, 5])


class Names:
    def vocab(self) -> list[str | None]:
        return [None, None, "the", "old", "king", "é"]


def read_ngrams(directory: Path) -> None:
    for name in ("own.arpa", "own.arpa.gz", "own.probing", "own.trie"):
        language_model(directory / name, Names())


def the_file(directory: Path) -> Path:
    """Return the file of a directory that has one, whose name says how it is read; it may be missing."""
    return next(directory.iterdir(), directory / "in.jsonl")


def read_wav(directory: Path) -> None:
    pybeam.speech.read_wav(directory / "in.wav", RATE)


def read_items(directory: Path) -> None:
    pybeam.Catalogue.from_parquet(directory / "in.parquet", "ids")


def read_sound(directory: Path) -> None:
    path = the_file(directory)
    pybeam.speech.sound_seconds(path)
    pybeam.speech.read_sound(path, RATE, max_seconds=60.0)


def read_lines(directory: Path) -> None:
    path = the_file(directory)
    for _ in Corpus([str(path)], column=None if path.suffix == ".gz" else "text"):
        pass


def read_manifest(directory: Path) -> None:
    old = Manifest.read(directory / "manifest.json")
    if old is not None:
        manifest().check_same(old)
        manifest().has_same_times(old)


def convert(directory: Path) -> None:
    pybeam.export.convert_fireredasr(directory, directory.with_name("converted"))


def read_features(directory: Path) -> None:
    extractor = pybeam.speech.load_feature_extractor(directory)
    extractor(torch.zeros(1600))


def read_texts(directory: Path) -> None:
    tokenizer = pybeam.load_tokenizer(directory)
    tokenizer.decode(tokenizer.encode("Y el rey dijo: a b c é")[:5])


def read_languages(directory: Path) -> None:
    tokenizer = pybeam.load_tokenizer(directory, "es", "en")
    tokenizer.decode(tokenizer.encode("Y el rey dijo: a b c é")[:5])


def transcribe(directory: Path) -> None:
    """Read all that stands around a Whisper model, and transcribe half a second."""
    load_transcription(directory, "en")
    model = pybeam.load_model(directory)
    options = pybeam.TranscriptionOptions(language="en", words=True, max_new_tokens=4)
    transcriber = pybeam.Transcriber(model, directory, options)
    for news in transcriber.stream([torch.zeros(8000)]):
        assert news.error is None or isinstance(news.error, SAID), repr(news.error)


def decode(directory: Path) -> None:
    model = pybeam.load_model(directory)
    longest = min(LONGEST, model.max_positions or LONGEST)
    search = pybeam.fixed_beam(3, n_best=2, max_length=longest)
    finish(pybeam.Decoder(model, search).decode(sources(model), on_error="return"))


def convert_and_decode(directory: Path) -> None:
    decode(pybeam.hub.fetch(directory, cache_dir=directory / "cache"))


def sources(model: Model) -> list:
    """Two short sources that the valid model takes; a damaged one may refuse them."""
    if isinstance(model, SpeechTransformer | ConformerTransformer | OnnxSpeechModel):
        num_features = model.config.sound.num_features
        return [torch.zeros(40, num_features), torch.ones(25, num_features)]
    return [[5, 6, 2], [7, 2]]


def finish(results: list[pybeam.Result]) -> None:
    """Numbers that are wrong, such as NaN, may fail requests; each with an error of its own."""
    for result in results:
        assert result.error is None or isinstance(result.error, SAID), repr(result.error)


# by kind, in the order in which a program calls them; of other kinds a model decodes
USES: dict[str, tuple[Callable[[Path], None], ...]] = {
    "catalogue": (read_catalogue,),
    "items": (read_items,),
    "languages": (read_languages,),
    **dict.fromkeys(TEXTS, (read_lines,)),
    **dict.fromkeys(CODECS, (read_sound,)),
    "manifest": (read_manifest,),
    "n-grams": (read_ngrams,),
    "pairs": (read_texts,),
    **dict.fromkeys(("pickled", "pickled before torch 1.6"), (convert_and_decode,)),
    "processor": (read_features,),
    "shortlist": (read_shortlists,),
    "published": (convert,),
    "tokenizer": (read_texts,),
    "wav": (read_wav, read_sound),
    "FireRedASR": (read_features, read_texts, decode),
    "spoken": (read_features, read_texts, decode),
    "Whisper": (read_features, read_texts, decode, transcribe),
}
