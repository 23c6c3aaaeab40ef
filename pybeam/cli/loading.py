"""Load the models and the tokenizer, and build the decoder, that the options of a command ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.algorithm import SEARCH_NAMES, AlgorithmOptions
from pybeam.cli.options.declare import given, take
from pybeam.cli.options.errors import EXPECTED, as_failures, as_usage_errors, message_of
from pybeam.cli.options.files import ModelOptions
from pybeam.cli.options.speed import DeviceOptions, ScheduleOptions

if TYPE_CHECKING:
    from pybeam.decoder import Decoder
    from pybeam.engine.schedule import Schedule
    from pybeam.models.base import Model
    from pybeam.processors import Processor
    from pybeam.search.algorithms import Algorithm
    from pybeam.text.tokenizer import Tokenizer


# options that mean the same in faster-whisper's search
OF_FASTER_WHISPER = {"width", "patience", "length_penalty"}


@dataclass(frozen=True, kw_only=True)
class Setup(ModelOptions):
    """The options of a command for models, search and device."""

    algorithm: AlgorithmOptions
    schedule: Schedule
    device: DeviceOptions

    @classmethod
    def take(cls, values: dict[str, Any]) -> Setup:
        """Take these options out of the `values` of a command line.

        Raises UsageError for options that contradict each other.
        """
        algorithm = take(AlgorithmOptions, values)
        return cls(
            **vars(take(ModelOptions, values)),
            algorithm=algorithm,
            schedule=take(ScheduleOptions, values).build(),
            device=take(DeviceOptions, values),
        )

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """The folders of the models. Raises ClickException if one cannot be had."""
        return model_folders(self.model_dirs, self.revision)

    def with_threads(self, threads: int | None) -> Setup:
        """Return these options with another number of threads; None: those that torch has by then."""
        return replace(self, device=replace(self.device, threads=threads))

    @property
    def first_dir(self) -> str:
        """Return the directory whose tokenizer and settings are used."""
        return self.folders[0]

    def load_tokenizer(self) -> Tokenizer:
        """Load the tokenizer. Raises ClickException if it cannot be read."""
        import pybeam

        with as_failures():
            return pybeam.load_tokenizer(
                self.first_dir, source_lang=self.source_lang, target_lang=self.target_lang
            )

    def by_device(self) -> list[Setup]:
        """Return these options for each of the devices, which commas separate."""
        names = self.device.device.split(",")
        here = replace(self, model_dirs=self.folders, revision=None)
        return [replace(here, device=replace(self.device, device=name.strip())) for name in names]

    def load_model(self) -> Model:
        """Load the model, or the ensemble. Raises ClickException if it cannot be read."""
        import torch

        import pybeam

        options = dict(vars(self.device))
        threads, _ = options.pop("threads"), options.pop("backend")
        if threads is not None:
            torch.set_num_threads(threads)
        with as_failures():
            model = pybeam.load_model(self.folders, **options)
        with as_usage_errors():
            return model.without(*self.algorithm.without)

    def build_algorithm(
        self, tokenizer: Tokenizer | None, more: Sequence[Processor] = ()
    ) -> Algorithm:
        """Build the algorithm, with the settings of the model's files and `more` processors.

        Raises UsageError for options that do not fit together.
        """
        return self.algorithm.build_for(self.first_dir, tokenizer, more)

    def build_transcript_search(self, tokenizer: Tokenizer) -> Algorithm:
        """Build faster-whisper's search, or the one that options ask for.

        Raises UsageError for options that do not fit together.
        """
        from pybeam.speech.whisper import beam_search

        algorithm, options = self.build_algorithm(tokenizer), self.algorithm
        asked = given(options, SEARCH_NAMES)
        # who transcribes has the limit
        most = asked.pop("max_length", None)
        is_by_step = isinstance(asked.get("width"), tuple)
        if options.recipe is not None or is_by_step or asked.keys() - OF_FASTER_WHISPER:
            return algorithm
        with as_usage_errors():
            search = beam_search(**asked)
        return replace(search, processors=algorithm.processors, max_length=most)

    def build_decoder(self, model: Model, algorithm: Algorithm, **wants: bool) -> Decoder:
        """Build the decoder. Raises UsageError for options that do not fit the model."""
        import pybeam

        with as_usage_errors():
            return pybeam.Decoder(model, algorithm, self.schedule, self.device.backend, **wants)


def model_folders(
    names: Sequence[str], revision: str | None = None, said: str = "--model"
) -> tuple[str, ...]:
    """Return the folders of models, of which some are names on the hub and are downloaded.

    Raises ClickException, which begins with what was `said`, for a folder that does not exist and a download
    that fails.
    """
    from pybeam.hub import fetch

    context = click.get_current_context(silent=True)
    is_quiet = context is not None and context.params.get("quiet", False)
    folders = []
    for name in names:
        try:
            folders.append(str(fetch(name, revision=revision, progress=not is_quiet)))
        except EXPECTED as error:
            raise click.ClickException(f"{said} {name}: {message_of(error)}") from error
    return tuple(folders)
