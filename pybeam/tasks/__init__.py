"""One line from a checkpoint to its outputs: `load` returns an object for what the checkpoint does.

`Translator` (a text becomes a text), `Generator` (a prompt goes on) and `Recognizer` (a recording becomes a
text) are `pybeam.Decoder`, `load_model` and `load_tokenizer` with their files read together, and compute
nothing of their own. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pybeam.tasks.loading import load

if TYPE_CHECKING:
    from pybeam.tasks.ctc import CtcRecognizer
    from pybeam.tasks.generator import Generator
    from pybeam.tasks.output import Output
    from pybeam.tasks.recognizer import Recognizer
    from pybeam.tasks.translator import Translator
    from pybeam.tasks.whisper import Segments, WhisperRecognizer

_HOMES = {
    "CtcRecognizer": "ctc",
    "Generator": "generator",
    "Output": "output",
    "Recognizer": "recognizer",
    "Segments": "whisper",
    "Translator": "translator",
    "WhisperRecognizer": "whisper",
}

__all__ = [
    "CtcRecognizer",
    "Generator",
    "Output",
    "Recognizer",
    "Segments",
    "Translator",
    "WhisperRecognizer",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pybeam.tasks' has no attribute {name!r}")
    return getattr(import_module(f"pybeam.tasks.{_HOMES[name]}"), name)
