"""The models of `pybeam serve`: those of its beginning, and those that it is asked for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pybeam.cli.loading import Setup
from pybeam.cli.options.errors import as_failures

if TYPE_CHECKING:
    from pybeam.server.models import ServedModel


def read_directories(given: Sequence[str]) -> dict[str, str]:
    """Return the folders of --model by name. Raises UsageError if two have one name."""
    directories: dict[str, str] = {}
    for one in given:
        name, is_named, directory = one.partition("=")
        if not is_named or Path(one).is_dir():
            name, directory = Path(one).resolve().name, one
        if name in directories:
            raise click.UsageError(
                f"--model {one}: another model is called {name!r} too; give it another NAME=DIR"
            )
        directories[name] = directory
    return directories


@dataclass(frozen=True)
class ModelLoader:
    """Loads models as the options of the command line say.

    Attributes:
        setup: the models' search and device.
        takes_phrases: whether requests may say which phrases their outputs must contain.
        takes_grammars: whether they may hold outputs to a form; None: on a CPU.
    """

    setup: Setup
    takes_phrases: bool = False
    takes_grammars: bool | None = None

    def num_bytes(self, directory: str) -> int:
        """Return the memory of weights on all devices. Raises ClickException if they are unfit."""
        from pybeam.hub.weights import weight_bytes

        setup = self._setup(directory)
        with as_failures():
            size = weight_bytes(setup.first_dir, setup.device.dtype)
        return size * len(setup.by_device())

    def load(self, name: str, directory: str) -> ServedModel:
        """Load a model and build its decoder. Raises ClickException if it cannot be read."""
        from pybeam.server.biases import with_biases
        from pybeam.server.grammars import with_grammars
        from pybeam.server.models import ServedModel, for_any_language, load_tokenizers
        from pybeam.server.phrases import with_phrases
        from pybeam.serving.transcripts import ServedTranscripts
        from pybeam.speech.whisper.assets import whisper_config

        setup = self._setup(directory)
        replicas = [model.load_model() for model in setup.by_device()]
        with as_failures():
            tokenizers = load_tokenizers(setup.first_dir)
            tokenizer = for_any_language(tokenizers)
        algorithm = with_biases(setup.build_algorithm(tokenizer))
        takes_grammars = self.takes_grammars
        if takes_grammars is None:
            takes_grammars = replicas[0].device.type == "cpu"
        if tokenizers is not None and takes_grammars:
            continues = tokenizers.reads_prompts
            algorithm = with_grammars(algorithm, tokenizer, continues=continues)
        if self.takes_phrases:
            algorithm = with_phrases(algorithm)
        decoders = [setup.build_decoder(model, algorithm, log_probs=True) for model in replicas]
        transcripts = None
        with as_failures():
            if tokenizer is not None and whisper_config(Path(setup.first_dir)) is not None:
                transcripts = ServedTranscripts(
                    f"{name} (windows)",
                    replicas[0],
                    setup.first_dir,
                    setup.build_transcript_search(tokenizer),
                    setup.schedule,
                    setup.device.backend,
                )
            return ServedModel(
                name, setup.first_dir, decoders[0], tokenizers, transcripts, decoders[1:]
            )

    def _setup(self, directory: str) -> Setup:
        return replace(self.setup, model_dirs=(directory,))


def check_budget(loader: ModelLoader, directories: Mapping[str, str], budget: int) -> None:
    """Raise ClickException if the weights of all models take more memory than they may."""
    from pybeam.server.loading import in_words

    sizes = {name: loader.num_bytes(directory) for name, directory in directories.items()}
    if sum(sizes.values()) > budget:
        each = ", ".join(f"{name} {in_words(size)}" for name, size in sizes.items())
        raise click.ClickException(
            f"--memory-budget is {in_words(budget)}, but weights need {in_words(sum(sizes.values()))} "
            f"({each}); raise it, or leave a model out"
        )
