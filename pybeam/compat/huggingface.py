"""Beam search of Hugging Face transformers 5 (`GenerationMixin._beam_search`)."""

from __future__ import annotations

from typing import Literal

from pybeam.ops import Certificate
from pybeam.search.algorithms import Algorithm, fixed_beam
from pybeam.search.scoring import power
from pybeam.search.stopping import Stop


def beam_search(
    num_beams: int,
    *,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    num_return_sequences: int = 1,
    max_new_tokens: int = 20,
    min_new_tokens: int = 0,
) -> Algorithm:
    """``model.generate(num_beams=…, do_sample=False)`` of an encoder-decoder model.

    ``final_score = score / n**length_penalty`` (its ``sequences_scores``). Of the hypotheses that end
    among the best `num_beams` candidates of a step the best `num_beams` are kept, and the search
    stops, once there are as many,

    * with ``early_stopping=True`` at once;
    * with ``False`` when the worst of them is at least as good as the best live row would be if it
      ended as long as it is now: a heuristic, `Result.stop_reason` is "heuristic";
    * with ``"never"`` when it is at least as good as that row could be at `max_new_tokens`: a proof
      for ``length_penalty > 0`` ("optimal"), the same heuristic otherwise.

    Args:
        num_beams: 2 to 128.
        num_return_sequences: hypotheses to return.
        max_new_tokens: generated tokens, EOS included (its ``max_length`` counts the start token too).
        min_new_tokens: EOS is banned until so many tokens have been generated; nothing is renormalised.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    if early_stopping not in (True, False, "never"):
        raise ValueError(
            f"`early_stopping` must be True, False or 'never', but is {early_stopping!r}"
        )
    if num_return_sequences > num_beams:
        raise ValueError(
            f"`num_return_sequences` must be at most `num_beams` = {num_beams}, but is "
            f"{num_return_sequences}; widen the beam or ask for fewer"
        )
    if early_stopping is True:
        stop = Stop(patience=1)
    else:
        is_bound = early_stopping == "never" and length_penalty > 0
        certificate = Certificate.BOUND if is_bound else Certificate.CURRENT
        stop = Stop(certificate=certificate, certifies_all=True)
    return fixed_beam(
        num_beams,
        n_best=num_return_sequences,
        min_length=min_new_tokens,
        max_length=max_new_tokens,
        scoring=power(length_penalty),
        stop=stop,
    )
