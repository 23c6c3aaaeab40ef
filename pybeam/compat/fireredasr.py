"""Beam search of FireRedASR-AED (`TransformerDecoder.batch_beam_search`)."""

from __future__ import annotations

from pybeam import processors
from pybeam.arguments import ArgumentError, at_most
from pybeam.limits import SourceLimit
from pybeam.processors.base import Processor
from pybeam.scoring import CutScoring, raw
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import variable_beam

__all__ = ["beam_search"]


def beam_search(
    beam_size: int = 1,
    *,
    nbest: int = 1,
    decode_max_len: int = 0,
    softmax_smoothing: float = 1.0,
    length_penalty: float = 0.0,
    eos_penalty: float = 1.0,
) -> Algorithm:
    """The search of ``batch_beam_search(encoder_outputs, src_masks, beam_size, …)``.

    In FireRedASR a hypothesis that ends stays in the beam, emits EOS at 0 and competes with its score,
    until all `beam_size` have ended. Nothing that goes on can pass it once it leads. So the held finishing
    of `pybeam.variable_beam`, which pops it together with its place, finds the same hypotheses. Without
    `length_penalty` the search is over when `nbest` are popped.

    ``final_score = score / ((5 + n) / 6)**length_penalty`` if `length_penalty` is positive, else the score.
    n is the number of tokens other than EOS, start included. For a hypothesis that is cut at the limit
    this is one more than it has generated. FireRedASR itself returns no scores.

    Args:
        beam_size: rows of the beam, 1 to 4,096.
        nbest: hypotheses to return, at most `beam_size`.
        decode_max_len: generated tokens, EOS included, at which rows are cut. 0: the positions of this
            source's encoder states; in FireRedASR those of the longest source in the batch.
        softmax_smoothing: logits are divided by it.
        length_penalty: see above.
        eos_penalty: the log-prob of EOS is multiplied by it; more than 0, at most 1.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    at_most("nbest", nbest, "`beam_size`", beam_size, "widen the beam or ask for fewer")
    if decode_max_len < 0:
        raise ValueError(f"`decode_max_len` must not be negative, but is {decode_max_len}")
    if not 0 < eos_penalty <= 1:
        problem = f"must be more than 0 and at most 1, but is {eos_penalty}"
        raise ArgumentError("eos_penalty", problem)
    chain: list[Processor] = []
    if softmax_smoothing != 1:
        chain.append(processors.temperature(softmax_smoothing))
    if eos_penalty != 1:
        chain.append(processors.eos_penalty(eos_penalty))
    normed = CutScoring(alpha=length_penalty, offset=5.0, scale=6.0)
    return variable_beam(
        beam_size,
        n_best=nbest,
        max_length=decode_max_len or SourceLimit(1.0),
        scoring=normed if length_penalty > 0 else raw(),
        processors=chain,
    )
