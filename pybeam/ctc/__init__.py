"""Connectionist temporal classification: texts of models that say in each frame of sound which token it is.

A path names a token or the blank for each frame. It says what is left when repeated tokens become one, and
then the blanks go. The probability of an output is the sum over all paths that say it (Graves et al. 2006).

`greedy` and `beam_search` read the log-probabilities of such a model alone, `align` says which frames belong
to the tokens of an output, and `prefix_scores` lets an attention decoder and such a model search together.
`load_model` loads one that hears, and `Transcriber` makes transcripts with it.
"""

from pybeam.ctc.alignment import Span, align
from pybeam.ctc.joint import prefix_scores
from pybeam.ctc.search import Hypothesis, beam_search, greedy
from pybeam.ctc.transcriber import Transcriber
from pybeam.ctc.wav2vec2.loading import load_model
from pybeam.ctc.wav2vec2.model import Wav2Vec2

__all__ = [
    "Hypothesis",
    "Span",
    "Transcriber",
    "Wav2Vec2",
    "align",
    "beam_search",
    "greedy",
    "load_model",
    "prefix_scores",
]
