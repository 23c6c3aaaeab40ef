"""Beam search of fairseq (`SequenceGenerator`)."""

from __future__ import annotations

from collections.abc import Iterable

from pybeam import processors
from pybeam.arguments import at_most, needs
from pybeam.limits import PrefixRule, SourceLimit
from pybeam.processors.base import Processor
from pybeam.scoring import power, raw
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam

__all__ = ["beam_search"]


# the parameters are the options of the system that this reproduces
def beam_search(
    beam: int = 5,
    *,
    nbest: int = 1,
    max_len_a: float = 0.0,
    max_len_b: int = 200,
    min_len: int = 1,
    normalize_scores: bool = True,
    lenpen: float = 1.0,
    unkpen: float = 0.0,
    temperature: float = 1.0,
    no_repeat_ngram_size: int = 0,
    tokens_to_suppress: Iterable[int] = (),
    pad_id: int | None = None,
    unk_id: int | None = None,
) -> Algorithm:
    """The search of ``fairseq-generate --beam …``: `SequenceGenerator` with its `BeamSearch`.

    ``final_score = score / n**lenpen``; n counts EOS and the prefix. With ``normalize_scores=False`` the
    final score is the score. A candidate that ends among the best `beam` of a step finishes, its place is
    refilled, and the search stops when `beam` have finished. A row that reaches the limit must end there:
    it may generate EOS alone, at its own log-prob.

    `Request.prefix` is its ``prefix_tokens``: scored, and counted in all lengths. Bans act behind the
    softmax, `temperature` before it. NaN from the model is an error here; fairseq takes it for -inf. There
    is no ``match_source_len``, which scores hypotheses longer than the source -inf.

    Args:
        beam: rows of the beam, 1 to 4,096.
        nbest: hypotheses to return, at most `beam`.
        max_len_a, max_len_b: there are at most ``floor(max_len_a * |x| + max_len_b)`` tokens before EOS, and
            no more than the model's positions. ``|x|`` is the length of this source; in fairseq it is that of
            the longest source in the batch.
        min_len: tokens before EOS may be generated.
        normalize_scores, lenpen: see above.
        unkpen: nats taken from the log-prob of `unk_id`.
        temperature: logits are divided by it.
        no_repeat_ngram_size: see `pybeam.processors.no_repeat_ngram`; the start token counts.
        tokens_to_suppress: tokens that are never generated. Here a prefix cannot hold them either.
        pad_id: the padding token, which is never generated; 1 in fairseq's own dictionaries.
        unk_id: the id of the unknown word; 3 in fairseq's own dictionaries.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.

    See Ott et al. 2019.
    """
    at_most("nbest", nbest, "`beam`", beam, "widen the beam or ask for fewer")
    needs("unkpen", unkpen, "unk_id", unk_id)
    if max_len_a == 0:
        at_most("min_len", min_len, "`max_len_b`", max_len_b, "lower it")
    chain: list[Processor] = []
    if temperature != 1:
        chain.append(processors.temperature(temperature))
    if unkpen and unk_id is not None:
        chain.append(processors.token_penalty(unk_id, unkpen))
    chain.append(processors.force_eos())
    suppressed = [*([] if pad_id is None else [pad_id]), *tokens_to_suppress]
    if suppressed:
        chain.append(processors.suppress_tokens(suppressed, stage="log_probs"))
    if no_repeat_ngram_size:
        chain.append(
            processors.no_repeat_ngram(no_repeat_ngram_size, counts_start=True, stage="log_probs")
        )
    return fixed_beam(
        beam,
        n_best=nbest,
        min_length=min_len,
        max_length=SourceLimit(max_len_a, max_len_b + 1),
        scoring=power(lenpen) if normalize_scores else raw(),
        processors=chain,
        prefix=PrefixRule(is_scored=True, in_length=True, in_limits=True),
    )
