"""Beam search of CTranslate2 4 (`BeamSearch` in its decoding code)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pybeam import processors
from pybeam.arguments import ArgumentError, at_most, needs, whole
from pybeam.contracts import Top
from pybeam.limits import FREE, PrefixRule
from pybeam.processors.base import Processor
from pybeam.scoring import power
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam
from pybeam.stopping import Stop

__all__ = ["beam_search"]


class HardPrefix(PrefixRule):
    """The rule of a forced prefix.

    EOS right behind the prefix finishes only as the best candidate. Another EOS among the best
    `beam_size` candidates takes a place from the next beam, and nothing more.

    Args:
        is_scored, in_length, in_limits: see `pybeam.limits.PrefixRule`.
    """

    @property
    def leading_eos(self) -> bool:
        return True


HARD_PREFIX = HardPrefix(in_length=True, in_limits=True)


# the parameters are the options of the system that this reproduces
def beam_search(
    beam_size: int = 2,
    *,
    patience: float = 1.0,
    num_hypotheses: int = 1,
    length_penalty: float = 1.0,
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    disable_unk: bool = False,
    unk_id: int | None = None,
    suppress_sequences: Iterable[Sequence[int]] = (),
    prefix_bias_beta: float = 0.0,
    max_decoding_length: int = 256,
    min_decoding_length: int = 1,
) -> Algorithm:
    """The search of ``translator.translate_batch(beam_size=…)``, with its defaults.

    ``final_score = score / n**length_penalty``; n counts EOS and the prefix. A candidate that ends among
    the best `beam_size` of a step finishes and its place is refilled. The search stops once
    ``round(beam_size * patience)`` hypotheses have finished. With ``length_penalty=0`` it stops instead
    once the best candidate of some step has ended and `num_hypotheses` have finished. The best of all
    that finished are returned. Bans act before the softmax, so other tokens become more probable.

    `Request.prefix` is its ``target_prefix``: at log-prob 0, and counted in all lengths. Right behind it EOS
    finishes only as the best candidate, see `HardPrefix`. CTranslate2 puts a dummy hypothesis in the
    place of another EOS, which it may return as the last of `beam_size`; here the place stays empty.
    ``sampling_temperature`` has no effect in beam search, so there is no such option.

    Args:
        beam_size: rows of the beam, 2 to 4,096. For 1, which is greedy search, use `pybeam.greedy`.
        patience: see above (Kasai et al. 2022).
        num_hypotheses: hypotheses to return, at most `beam_size` and ``round(beam_size * patience)``.
        length_penalty: see above.
        repetition_penalty, no_repeat_ngram_size, suppress_sequences: see `pybeam.processors`.
        disable_unk: never generate `unk_id`.
        unk_id: the id of the unknown word.
        prefix_bias_beta: makes a prefix likely instead of forcing it. The prefix is then given as
            ``Request(source, processors=[pybeam.processors.biased_prefix(beta, prefix)])``. pybeam biases
            the row that follows the prefix. CTranslate2 stops when that row changes its rank.
        max_decoding_length: tokens, EOS and prefix included, at which rows are cut.
        min_decoding_length: EOS is banned until there are so many tokens, prefix included.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    whole("beam_size", beam_size, 1)
    if beam_size == 1:
        raise ArgumentError(
            "beam_size", "must be at least 2, but is 1, which is greedy search; use pybeam.greedy"
        )
    at_most(
        "min_decoding_length",
        min_decoding_length,
        "`max_decoding_length`",
        max_decoding_length,
        "lower it",
    )
    needs("disable_unk", disable_unk, "unk_id", unk_id)
    count = Stop(patience=patience)
    most = math.floor(beam_size * patience + 0.5)
    remedy = "raise one of them, or ask for fewer"
    at_most("num_hypotheses", num_hypotheses, "round(beam_size * patience)", most, remedy)
    chain = processors_of(
        repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        disabled=unk_id if disable_unk else None,
        suppress_sequences=suppress_sequences,
        least=min_decoding_length,
    )
    if prefix_bias_beta:
        chain.append(processors.biased_prefix(prefix_bias_beta))
    return fixed_beam(
        beam_size,
        n_best=num_hypotheses,
        max_length=max_decoding_length,
        scoring=power(length_penalty),
        processors=chain,
        stop=Stop(top=Top.EVER) if length_penalty == 0 else count,
        prefix=FREE if prefix_bias_beta else HARD_PREFIX,
    )


def processors_of(
    *,
    repetition_penalty: float,
    no_repeat_ngram_size: int,
    disabled: int | None,
    suppress_sequences: Iterable[Sequence[int]],
    least: int,
) -> list[Processor]:
    """Return the processors of these options, in CTranslate2's order; see `beam_search`.

    `disabled` is the unknown word that is never generated, `least` the `min_decoding_length`.
    """
    chain: list[Processor] = []
    if repetition_penalty != 1:
        chain.append(processors.repetition_penalty(repetition_penalty))
    if no_repeat_ngram_size:
        chain.append(processors.no_repeat_ngram(no_repeat_ngram_size))
    if disabled is not None:
        chain.append(processors.no_unk(disabled))
    if suppress_sequences := list(suppress_sequences):
        chain.append(processors.suppress_sequences(suppress_sequences))
    if least:
        chain.append(processors.min_length(least, counts_prefix=True))
    return chain
