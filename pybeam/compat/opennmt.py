"""Beam search of OpenNMT-py 3 (`BeamSearch` with its `GNMTGlobalScorer`)."""

from __future__ import annotations

from typing import Literal

from pybeam import processors
from pybeam.arguments import at_most, needs
from pybeam.contracts import Finishing
from pybeam.limits import PrefixRule
from pybeam.processors.base import Processor
from pybeam.scoring import Scoring, raw
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import build_algorithm
from pybeam.search.options import SearchOptions
from pybeam.stopping import top_finished

__all__ = ["beam_search"]


# the parameters are the options of the system that this reproduces
def beam_search(
    beam_size: int = 5,
    *,
    n_best: int = 1,
    length_penalty: Literal["avg", "wu", "none"] = "avg",
    alpha: float = 1.0,
    min_length: int = 0,
    max_length: int = 250,
    block_ngram_repeat: int = 0,
    ban_unk_token: bool = False,
    unk_id: int | None = None,
) -> Algorithm:
    """The search of ``onmt_translate -beam_size …`` for encoder-decoder models.

    Lengths count the start token beside EOS: "avg" is ``final_score = score / (n + 1)**alpha``, "wu" is
    ``score / ((5 + n + 1) / 6)**alpha``. The best `beam_size` candidates of a step are taken. Those that end
    finish and leave, so that the next step has fewer rows; the step after has `beam_size` candidates
    again. (In OpenNMT-py a row that has ended goes on so far below 0 that any other candidate is better.)
    The search stops in a step whose best candidate ends, once `n_best` have finished.

    `Request.prefix` is its ``tgt_prefix``: scored and counted in n, but not in `min_length` and `max_length`.
    OpenNMT-py takes 10000 from other tokens, and an EOS among them finishes a hypothesis of such a score;
    here no other token can follow. Bans act behind the softmax. Coverage penalties and ``ratio`` are not
    there.

    Args:
        beam_size: candidates of a step, 1 to 4,096.
        n_best: hypotheses to return, at most `beam_size`; the search does not stop before so many have
            finished.
        length_penalty, alpha: see above; "none" ranks by the score alone.
        min_length: tokens before EOS may be generated.
        max_length: generated tokens, EOS included, at which rows are cut.
        block_ngram_repeat: length of the n-grams that may not repeat, from 2 on; 0: any may. The start token
            counts. There is no ``ignore_when_blocking``.
        ban_unk_token: never generate `unk_id`.
        unk_id: the id of the unknown word.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    at_most("n_best", n_best, "`beam_size`", beam_size, "widen the beam or ask for fewer")
    needs("ban_unk_token", ban_unk_token, "unk_id", unk_id)
    scorings = {
        "avg": Scoring(alpha=alpha, offset=1.0),
        "wu": Scoring(alpha=alpha, offset=6.0, scale=6.0),
        "none": raw(),
    }
    if length_penalty not in scorings:
        raise ValueError(
            f"`length_penalty` must be one of {', '.join(map(repr, scorings))}, but is {length_penalty!r}"
        )
    if block_ngram_repeat == 1:
        raise ValueError("`block_ngram_repeat` must be 0 or at least 2, but is 1, which it ignores")
    chain: list[Processor] = []
    if ban_unk_token and unk_id is not None:
        chain.append(processors.no_unk(unk_id, stage="log_probs"))
    if block_ngram_repeat:
        chain.append(
            processors.no_repeat_ngram(block_ngram_repeat, counts_start=True, stage="log_probs")
        )
    options = SearchOptions(
        n_best=n_best,
        min_length=min_length,
        max_length=max_length,
        scoring=scorings[length_penalty],
        processors=chain,
        stop=top_finished(),
        prefix=PrefixRule(is_scored=True, in_length=True),
    )
    return build_algorithm(beam_size, Finishing.SHRINK, options, regrows=True)
