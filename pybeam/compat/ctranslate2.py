"""Beam search of CTranslate2 4 (`BeamSearch` in its decoding code)."""

from __future__ import annotations

from pybeam.ops import Top
from pybeam.search.algorithms import Algorithm, fixed_beam
from pybeam.search.scoring import power
from pybeam.search.stopping import Stop


def beam_search(
    beam_size: int = 2,
    *,
    patience: float = 1.0,
    num_hypotheses: int = 1,
    length_penalty: float = 1.0,
    max_decoding_length: int = 256,
) -> Algorithm:
    """``translator.translate_batch(beam_size=…, min_decoding_length=0)``.

    ``final_score = score / n**length_penalty``, n counting EOS. A candidate that ends among the best
    `beam_size` of a step finishes and its place is refilled. With ``length_penalty=0`` the search
    stops once the best candidate of some step has ended and `num_hypotheses` have finished, otherwise
    once ``round(beam_size * patience)`` have; the best of all that finished are returned.

    Args:
        beam_size: 2 to 128; its search of size 1 is `pybeam.greedy`.
        patience: see above (Kasai et al. 2022).
        num_hypotheses: hypotheses to return.
        max_decoding_length: generated tokens, EOS included, after which live rows finish as they are.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    if length_penalty == 0:
        stop = Stop(top=Top.EVER)
    else:
        stop = Stop(patience=patience)
        if num_hypotheses > round(beam_size * patience):
            raise ValueError(
                f"`num_hypotheses` must be at most round(beam_size * patience) = "
                f"{round(beam_size * patience)}, but is {num_hypotheses}; raise one of them"
            )
    return fixed_beam(
        beam_size,
        n_best=num_hypotheses,
        max_length=max_decoding_length,
        scoring=power(length_penalty),
        stop=stop,
    )
