"""One line from a checkpoint to its outputs: `load` returns an object for what the checkpoint does.

`Translator` (a text becomes a text), `Generator` (a prompt goes on) and `Recognizer` (a recording becomes a
text) are `pybeam.Decoder`, `load_model` and `load_tokenizer` with their files read together, and compute
nothing of their own.
"""

from pybeam.tasks.generator import Generator
from pybeam.tasks.loading import load
from pybeam.tasks.output import Output
from pybeam.tasks.recognizer import Recognizer
from pybeam.tasks.translator import Translator
from pybeam.tasks.whisper import Segments, WhisperRecognizer

__all__ = [
    "Generator",
    "Output",
    "Recognizer",
    "Segments",
    "Translator",
    "WhisperRecognizer",
    "load",
]
