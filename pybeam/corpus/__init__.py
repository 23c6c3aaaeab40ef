"""A corpus of any length in parts: what is whole is never lost, and nothing is decoded twice.

A `Job` says what is done with every line. A `Run` cuts the input into parts, has an `Executor` decode
them, writes each one when it is whole, and knows after a kill where to go on. Results do not depend on
what is decoded beside them, so a part that is decoded again is the same byte for byte.
"""

from pybeam.corpus.executors import Executor, Here
from pybeam.corpus.forms import Form
from pybeam.corpus.job import Job
from pybeam.corpus.manifest import CorpusError, InputFile, Manifest
from pybeam.corpus.parts import Counts, FinishedPart, Line, Part, Unreadable, parts_of
from pybeam.corpus.readers import Corpus
from pybeam.corpus.run import Run
from pybeam.corpus.tasks import Retrieve, Score, Task, Transcribe, Translate
from pybeam.corpus.worker import Answer, Worker

__all__ = [
    "Answer",
    "Corpus",
    "CorpusError",
    "Counts",
    "Executor",
    "FinishedPart",
    "Form",
    "Here",
    "InputFile",
    "Job",
    "Line",
    "Manifest",
    "Part",
    "Retrieve",
    "Run",
    "Score",
    "Task",
    "Transcribe",
    "Translate",
    "Unreadable",
    "Worker",
    "parts_of",
]
