"""`CtcRecognizer`: recordings in, transcripts out, with a model of CTC, which has no decoder."""

from __future__ import annotations

from typing import Any

from pybeam.ctc import Transcriber, Wav2Vec2
from pybeam.decoder import OnError
from pybeam.speech import Transcript
from pybeam.tasks.loaded import Folder, check_on_error, several
from pybeam.tasks.recordings import Sounds, check_one, is_one
from pybeam.tasks.whisper import in_order


class CtcRecognizer:
    """A model of CTC, such as Wav2Vec2, which transcribes recordings of any length with the times of words.

    `pybeam.load` makes one. It is a `pybeam.ctc.Transcriber` for each call.

    Args:
        folder: where the model comes from.
        model: from `pybeam.ctc.load_model`.

    Attributes:
        path: the model's folder.
        model: what hears.
        sampling_rate: of samples, in Hz.
    """

    def __init__(self, folder: Folder, model: Wav2Vec2) -> None:
        self._folder, self.path, self.model = folder, folder.path, model
        self.sampling_rate = Transcriber(model, folder.path).sampling_rate

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._folder.name!r}: {self.model!r})"

    def transcribe(
        self,
        recordings: Any,
        *,
        vad: bool = False,
        on_error: OnError = "raise",
        **options: Any,
    ) -> Transcript | Exception | list[Any]:
        """Transcribe a recording, or several.

        A recording gives a `pybeam.speech.Transcript`, several a list of them in their order.

        Args:
            recordings: the name of a sound file, an open one, samples [n] float32 from -1 to 1 at
                `sampling_rate` as an array or a tensor, or a `pybeam.Recording`; or a list or another
                iterable of such.
            vad: whether parts in which nobody speaks are left out; see `pybeam.speech.VoiceActivity`.
            on_error: what to do about a recording that fails: "raise" raises its error when all before it are
                done; "return" puts the error in the place of its transcript.
            options: those of `pybeam.ctc.Transcriber`, such as ``width=20``.

        Raises:
            pybeam.TranscribeError: a recording failed.
            ImportError: `vad` needs a package that is missing.
            TypeError, ValueError: `recordings` is none of these, or an option is wrong.
        """
        check_on_error(on_error)
        transcriber = Transcriber(self.model, self.path, **options)
        is_alone = is_one(recordings)
        given = [recordings] if is_alone else several(recordings, check_one)
        sounds = map(Sounds(self.sampling_rate, vad), given)
        found = list(in_order(transcriber.stream(sounds), on_error))
        return found[0] if is_alone else found
