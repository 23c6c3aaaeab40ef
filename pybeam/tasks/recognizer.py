"""`Recognizer`: recordings in, texts out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from pybeam.arguments import names_checked
from pybeam.decoder import OnError
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.tasks.loaded import Folder
from pybeam.tasks.recordings import check_recording, is_recording, samples_of
from pybeam.tasks.writer import Call, Writer
from pybeam.text.tokenizer import Tokenizer


class Extract(Protocol):
    """Makes features [E, F] of samples [n]; `pybeam.speech.load_feature_extractor` gives such.

    Attributes:
        sampling_rate: of samples, in Hz.
    """

    sampling_rate: int

    def __call__(self, samples: Tensor) -> Tensor: ...


class Recognizer(Writer):
    """A speech model that takes a recording as a whole, such as Speech2Text and FireRedASR.

    `pybeam.load` makes one. For Whisper models it makes a `WhisperRecognizer`.

    Args:
        folder: where the model comes from.
        model, search, schedule: those of the decoder.
        tokenizer: see below.
        extract: makes features of samples, such as `pybeam.speech.load_feature_extractor` returns.

    Attributes:
        path: the model's folder.
        model, decoder, tokenizer: what decodes; see `pybeam.load_model`, `pybeam.Decoder` and
            `pybeam.load_tokenizer`.
        sampling_rate: of samples, in Hz.
    """

    item = "recording"

    # each is a part that `pybeam.load` has found
    def __init__(
        self,
        folder: Folder,
        model: Model,
        search: Algorithm,
        schedule: Schedule | None,
        tokenizer: Tokenizer,
        extract: Extract,
    ) -> None:
        super().__init__(folder, model, search, schedule)
        self.tokenizer, self._extract = tokenizer, extract
        self.sampling_rate = extract.sampling_rate

    # one for each option of a call
    @names_checked
    def transcribe(
        self,
        recordings: Any,
        *,
        n_best: int | None = None,
        max_length: int | None = None,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
    ) -> Any:
        """Transcribe a recording, or several.

        A recording gives an `Output`, which is a `str`. Several give a list of outputs in their order. With
        `n_best` of 2 or more, there is a list of outputs in place of each, the best first.

        Args:
            recordings: the name of a sound file, or samples [n] float32 from -1 to 1 at `sampling_rate`, as
                an array or a tensor; or a list or another iterable of such.
            n_best: outputs for each recording; None: as many as the search returns.
            max_length: tokens of an output, EOS included; None: the search's.
            search: another search than the decoder's, for this call.
            on_error: what to do about recordings that fail, such as files that are damaged, after all
                others: "raise" raises the error of a single recording, and else `pybeam.DecodeError`;
                "return" puts the error in the place of the answer.

        Raises:
            pybeam.DecodeError: some of several recordings failed; its `results` are those of all.
            TypeError: `recordings` is none of these.
            ValueError: an option does not fit the search.
        """
        how = dict(n_best=n_best, max_length=max_length)
        return self._answers(recordings, search, on_error, how)

    async def atranscribe(self, recordings: Any, **options: Any) -> Any:
        """Transcribe without blocking the event loop. Recordings of all callers are decoded together.

        Args:
            recordings, options: as for `transcribe`.

        Raises:
            pybeam.DecodeError, TypeError, ValueError: as `transcribe`.
        """
        return await self._aanswers(recordings, **options)

    def _call(self, *, n_best: int | None = None, max_length: int | None = None) -> Call:
        prefix = self.tokenizer.prefix or None

        def request(recording: Any) -> Request:
            self._check(recording)
            features = self._extract(samples_of(recording, self.sampling_rate))
            return Request(features, prefix=prefix, n_best=n_best, max_length=max_length)

        def text(tokens: Sequence[int], known: None) -> str:
            return self.tokenizer.decode(tokens)

        return Call(request, text, self._gives_list(n_best, max_length))

    def _is_one(self, sources: Any) -> bool:
        return is_recording(sources)

    def _check(self, source: Any) -> None:
        check_recording(source)
