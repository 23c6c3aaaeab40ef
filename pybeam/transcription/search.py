"""The beam search of openai-whisper and faster-whisper."""

from __future__ import annotations

from dataclasses import dataclass

from pybeam.scoring import Scoring
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam
from pybeam.stopping import Stop


@dataclass(frozen=True)
class WithoutEos(Scoring):
    """A scoring in which EOS does not count. The `offset` of -1 takes it away where there is one.

    Args:
        alpha, offset, scale, reward, ratio, coverage: see `pybeam.scoring.Scoring`.
    """

    @property
    def cut_length_offset(self) -> float:
        return 1.0


def beam_search(width: int = 5, *, patience: float = 1.0, length_penalty: float = 1.0) -> Algorithm:
    """The beam search of faster-whisper and openai-whisper, for `Transcriber`.

    It is `pybeam.fixed_beam` with ``final_score = score / n**length_penalty``, where n counts no EOS, while
    the score does. openai-whisper does the same with its default length penalty.

    Args:
        width: rows of the beam; 1 is greedy search.
        patience: the search stops once ``round(patience * width)`` hypotheses have finished.
        length_penalty: see above.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    scoring = WithoutEos(alpha=length_penalty, offset=-1.0)
    return fixed_beam(width, scoring=scoring, stop=Stop(patience=patience))
