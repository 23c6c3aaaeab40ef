"""`Job`: what is done with every line, as a description from which any process makes a `Worker`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pybeam.arguments import whole
from pybeam.contracts import MAX_THREADS
from pybeam.corpus.forms import Form
from pybeam.corpus.parts import CorpusError
from pybeam.corpus.tasks import Task, Translate
from pybeam.corpus.worker import Worker
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Fifo, Schedule
from pybeam.models import load_model
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.text.tokenizer import Tokenizer, load_tokenizer

# files beside a model that nobody loads
UNREAD = {".md", ".py"}


@dataclass(frozen=True)
class Job:
    """Models, a search, and what is read and written. It pickles if the algorithm does.

    Attributes:
        model_dirs: the model, or the members of an ensemble; the first one's tokenizer is used.
        algorithm: the search.
        task: what a line is.
        form: what is written.
        schedule, backend: those of `Decoder`; they change no result.
        device, dtype, cache_dtype: those of `load_model`.
        threads: CPU threads of a process; None: torch's choice.
        source_lang, target_lang: those of `load_tokenizer`.
        memory: so many distinct lines are remembered in a process; an equal one is not decoded again.
        options: all that may change a result, by the name that the user knows. Two runs with the same
            options, model, input and version of pybeam write the same; None: the fields above.
        check_finite: that of `load_model`.
        without: settings of the model that are left out, see `pybeam.models.Model.without`.
    """

    model_dirs: tuple[str, ...]
    algorithm: Algorithm
    task: Task = field(default_factory=Translate)
    form: Form = field(default_factory=Form)
    schedule: Schedule = field(default_factory=Fifo)
    device: str = "auto"
    dtype: str = "auto"
    cache_dtype: str = "auto"
    backend: str = "auto"
    threads: int | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    memory: int = 0
    options: Mapping[str, Any] | None = None
    check_finite: bool = True
    without: tuple[str, ...] = ()

    def open(self) -> Worker:
        """Load everything and return the worker.

        Raises:
            OSError, TypeError, ValueError: something cannot be loaded, or options do not fit the model.
        """
        return self.worker(self.load())

    def load(self) -> Model:
        """Load the model, or the ensemble.

        Raises:
            OSError, ValueError: it cannot be read, or does not read what the task has.
        """
        if self.threads is not None:
            whole("threads", self.threads, 1, MAX_THREADS)
            torch.set_num_threads(self.threads)
        model = load_model(
            self.model_dirs,
            device=self.device,
            dtype=self.dtype,
            cache_dtype=self.cache_dtype,
            check_finite=self.check_finite,
        )
        if model.takes_features != self.task.takes_sound:
            kind, command = (
                ("text", "translate") if self.task.takes_sound else ("sound", "transcribe")
            )
            raise CorpusError(
                f"the model in {self.model_dirs[0]} reads {kind}; use `pybeam {command}`"
            )
        return model.without(*self.without)

    def worker(self, model: Model, tokenizer: Tokenizer | None = None) -> Worker:
        """Make a worker with a model that is loaded, and its tokenizer, if that is loaded too.

        Raises:
            OSError, TypeError, ValueError: files of the tokenizer cannot be read, or options do not fit
                the model.
        """
        directory = self.model_dirs[0]
        if tokenizer is None:
            tokenizer = load_tokenizer(
                directory, source_lang=self.source_lang, target_lang=self.target_lang
            )
        decoder = Decoder(
            model,
            self.algorithm,
            self.schedule,
            self.backend,
            log_probs=self.task.wants_log_probs,
            alignment=self.form.has_alignment,
        )
        make_request = self.task.requests(directory, tokenizer, model.max_positions)
        format_result = self.task.format(self.form, directory, tokenizer, self.algorithm)
        return Worker(decoder, make_request, format_result, self.memory)

    def compared_options(self) -> dict[str, Any]:
        """Return all that may change a result, by name."""
        if self.options is not None:
            return dict(self.options)
        names = (
            *("algorithm", "task", "form", "device", "dtype", "cache_dtype", "backend"),
            *("without", "source_lang", "target_lang"),
        )
        return {name: str(getattr(self, name)) for name in names}

    def model_checksums(self) -> dict[str, str]:
        """Return a checksum for every file of the models, by its name and the model's place.

        Raises:
            OSError: one cannot be read.
        """
        found = {}
        for place, directory in enumerate(self.model_dirs):
            for path in sorted(Path(directory).iterdir()):
                if path.is_file() and path.suffix not in UNREAD:
                    with open(path, "rb") as file:
                        digest = hashlib.file_digest(file, "sha256").hexdigest()
                    name = path.name if len(self.model_dirs) == 1 else f"{place}/{path.name}"
                    found[name] = digest
        return found

    def with_threads(self, threads: int | None) -> Job:
        """Return the same job for a process with so many threads."""
        return dataclasses.replace(self, threads=threads)
