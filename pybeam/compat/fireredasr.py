"""Beam search of FireRedASR-AED (`TransformerDecoder.batch_beam_search`)."""

from __future__ import annotations

from pybeam import processors
from pybeam.arguments import ArgumentError, at_most
from pybeam.limits import SourceLimit
from pybeam.processors.base import Processor
from pybeam.scoring import Scoring, raw
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import variable_beam


class CutScoring(Scoring):
    """A scoring that counts the EOS which a hypothesis cut at its limit never got.

    Args:
        alpha, offset, scale, reward, ratio, coverage: see `pybeam.scoring.Scoring`.
    """

    @property
    def cut_length_offset(self) -> float:
        return 1.0


def beam_search(
    beam_size: int = 1,
    *,
    nbest: int = 1,
    decode_max_len: int = 0,
    softmax_smoothing: float = 1.0,
    length_penalty: float = 0.0,
    eos_penalty: float = 1.0,
) -> Algorithm:
    """``batch_beam_search(encoder_outputs, src_masks, beam_size, …)``.

    A hypothesis that ends stays in the beam, emits EOS at 0 and competes with its score, until all
    `beam_size` have ended. Once nothing better goes on it can never leave again, so the held finishing of
    `pybeam.variable_beam`, which takes it out together with its place, finds the same; without
    `length_penalty` the search is over when `nbest` are out.

    ``final_score = score / ((5 + n) / 6)**length_penalty`` if `length_penalty` is positive, else the score. n
    is the tokens other than EOS, start included: one more than there are for a hypothesis that is cut
    at the limit. It returns no scores itself.

    Args:
        beam_size: 1 to 128.
        nbest: hypotheses to return, at most `beam_size`.
        decode_max_len: generated tokens, EOS included; 0: the positions of the encoder, of this source alone
            where there it is those of the longest in the batch.
        softmax_smoothing: logits are divided by it.
        eos_penalty: more than 0, at most 1; multiplies the log-prob of EOS.

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
