"""Beam search and its relatives, fast, with exact, documented semantics.

import pybeam
translator = pybeam.load("examples/models/bible-es-en")
print(translator.translate("Jesús lloró."))

Inside there are a model, a search and a decoder, for whoever wants more of them:

model = pybeam.load_model("examples/models/bible-es-en")
search = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))
results = pybeam.Decoder(model, search).decode(requests)

Everything here is imported when it is first asked for, so that `import pybeam` itself loads nothing.
"""

from importlib import import_module
from logging import NullHandler as _NullHandler
from logging import getLogger as _getLogger
from os import path as _path
from typing import TYPE_CHECKING, Any

# for type checkers and editors; `_HOMES` below says the same to Python
if TYPE_CHECKING:
    from pybeam import catalogue as catalogue
    from pybeam import compat as compat
    from pybeam import ctc as ctc
    from pybeam import diversity as diversity
    from pybeam import drafts as drafts
    from pybeam import export as export
    from pybeam import hub as hub
    from pybeam import inspect as inspect
    from pybeam import limits as limits
    from pybeam import models as models
    from pybeam import ops as ops
    from pybeam import processors as processors
    from pybeam import reranking as reranking
    from pybeam import scoring as scoring
    from pybeam import serving as serving
    from pybeam import shortlist as shortlist
    from pybeam import speech as speech
    from pybeam import stopping as stopping
    from pybeam import study as study
    from pybeam import tasks as tasks
    from pybeam.catalogue.catalogue import Catalogue as Catalogue
    from pybeam.compat.generate import generate as generate
    from pybeam.decoder import DecodeError as DecodeError
    from pybeam.decoder import Decoder as Decoder
    from pybeam.diversity import diverse as diverse
    from pybeam.engine.request_queue import RequestQueue as RequestQueue
    from pybeam.engine.schedule import Batch as Batch
    from pybeam.engine.schedule import Fifo as Fifo
    from pybeam.engine.schedule import Schedule as Schedule
    from pybeam.engine.schedule import Streaming as Streaming
    from pybeam.export.quantised import quantize as quantize
    from pybeam.models.base import Alignment as Alignment
    from pybeam.models.base import Model as Model
    from pybeam.models.base import Session as Session
    from pybeam.models.loading import load_model as load_model
    from pybeam.processors.base import Processor as Processor
    from pybeam.request import Hypothesis as Hypothesis
    from pybeam.request import Partial as Partial
    from pybeam.request import Request as Request
    from pybeam.request import Result as Result
    from pybeam.scoring import Scoring as Scoring
    from pybeam.search.algorithms import Algorithm as Algorithm
    from pybeam.search.beams import fixed_beam as fixed_beam
    from pybeam.search.beams import greedy as greedy
    from pybeam.search.beams import huang_beam as huang_beam
    from pybeam.search.beams import optimal_beam as optimal_beam
    from pybeam.search.beams import shrinking_beam as shrinking_beam
    from pybeam.search.beams import variable_beam as variable_beam
    from pybeam.search.parallel import adaptive_jacobi as adaptive_jacobi
    from pybeam.search.parallel import gauss_seidel_jacobi as gauss_seidel_jacobi
    from pybeam.search.parallel import hybrid_jacobi as hybrid_jacobi
    from pybeam.search.parallel import jacobi as jacobi
    from pybeam.search.pruning import Pruning as Pruning
    from pybeam.search.several import sample as sample
    from pybeam.search.several import stochastic_beam as stochastic_beam
    from pybeam.serving.answers import ServedResult as ServedResult
    from pybeam.serving.errors import QueueFull as QueueFull
    from pybeam.serving.service import Service as Service
    from pybeam.shortlist.shortlist import Shortlist as Shortlist
    from pybeam.speech.whisper.options import TranscriptionOptions as TranscriptionOptions
    from pybeam.speech.whisper.recording import Progress as Progress
    from pybeam.speech.whisper.recording import Recording as Recording
    from pybeam.speech.whisper.transcriber import TranscribeError as TranscribeError
    from pybeam.speech.whisper.transcriber import Transcriber as Transcriber
    from pybeam.stopping import Stop as Stop
    from pybeam.study.comparison import compare as compare
    from pybeam.study.exact import exact_search as exact_search
    from pybeam.study.rules import rule as rule
    from pybeam.tasks.loading import load as load
    from pybeam.text.deltas import TextDeltas as TextDeltas
    from pybeam.text.tokenizer import Tokenizer as Tokenizer
    from pybeam.text.tokenizer import load_tokenizer as load_tokenizer

__version__ = "0.1.0"

# a file of PyPI's other `pybeam`, see pybeam_search.py
if _path.exists(_path.join(_path.dirname(__file__), "beam_file.py")):
    import warnings as _warnings

    from pybeam_search import in_the_way as _in_the_way

    _warnings.warn(_in_the_way(), stacklevel=2)

_MODULES = (
    "catalogue",
    "compat",
    "ctc",
    "diversity",
    "drafts",
    "export",
    "hub",
    "inspect",
    "limits",
    "models",
    "ops",
    "processors",
    "reranking",
    "scoring",
    "serving",
    "shortlist",
    "speech",
    "stopping",
    "study",
    "tasks",
)
# the module that each of the other names stands in
_HOMES = {
    "Algorithm": "search.algorithms",
    "Alignment": "models.base",
    "Batch": "engine.schedule",
    "Catalogue": "catalogue.catalogue",
    "DecodeError": "decoder",
    "Decoder": "decoder",
    "Fifo": "engine.schedule",
    "Hypothesis": "request",
    "Model": "models.base",
    "Partial": "request",
    "Processor": "processors.base",
    "Progress": "speech.whisper.recording",
    "Pruning": "search.pruning",
    "QueueFull": "serving.errors",
    "Recording": "speech.whisper.recording",
    "Request": "request",
    "RequestQueue": "engine.request_queue",
    "Result": "request",
    "Schedule": "engine.schedule",
    "Scoring": "scoring",
    "ServedResult": "serving.answers",
    "Service": "serving.service",
    "Session": "models.base",
    "Shortlist": "shortlist.shortlist",
    "Stop": "stopping",
    "Streaming": "engine.schedule",
    "TextDeltas": "text.deltas",
    "Tokenizer": "text.tokenizer",
    "TranscribeError": "speech.whisper.transcriber",
    "Transcriber": "speech.whisper.transcriber",
    "TranscriptionOptions": "speech.whisper.options",
    "adaptive_jacobi": "search.parallel",
    "compare": "study.comparison",
    "diverse": "diversity",
    "exact_search": "study.exact",
    "fixed_beam": "search.beams",
    "gauss_seidel_jacobi": "search.parallel",
    "generate": "compat.generate",
    "greedy": "search.beams",
    "huang_beam": "search.beams",
    "hybrid_jacobi": "search.parallel",
    "jacobi": "search.parallel",
    "load": "tasks.loading",
    "load_model": "models.loading",
    "load_tokenizer": "text.tokenizer",
    "optimal_beam": "search.beams",
    "quantize": "export.quantised",
    "rule": "study.rules",
    "sample": "search.several",
    "shrinking_beam": "search.beams",
    "stochastic_beam": "search.several",
    "variable_beam": "search.beams",
}

__all__ = sorted([*_MODULES, *_HOMES])


# a library says nothing unless its user wants to hear it
_getLogger(__name__).addHandler(_NullHandler())


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"pybeam.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'pybeam' has no attribute {name!r}")
    value = getattr(import_module(f"pybeam.{_HOMES[name]}"), name)
    globals()[name] = value  # the next time Python finds it without asking here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
