"""Connectionist temporal classification: texts of models that say in each frame of sound which token it is.

A path names a token or the blank for each frame. It says what is left when repeated tokens become one, and
then the blanks go. The probability of an output is the sum over all paths that say it (Graves et al. 2006).

`greedy` and `beam_search` read the log-probabilities of such a model alone, `align` says which frames belong
to the tokens of an output, and `prefix_scores` lets an attention decoder and such a model search together.
"""

from pybeam.ctc.alignment import Span, align
from pybeam.ctc.joint import prefix_scores
from pybeam.ctc.search import Hypothesis, beam_search, greedy

__all__ = ["Hypothesis", "Span", "align", "beam_search", "greedy", "prefix_scores"]
