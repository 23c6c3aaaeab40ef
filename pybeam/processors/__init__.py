"""Processors: what happens to the logits of a step before candidates are selected.

``pybeam.fixed_beam(5, processors=[temperature(1.25), no_repeat_ngram(3)])``: any of them go together, with
every algorithm and schedule, and are applied in the order given. All work on all rows at once; what a
hypothesis consists of comes from the token tree. Held (ended) hypotheses have no row and are left alone, the
tokens of `Request.prefix` are forced whatever a processor says, and `min_length` bans EOS after all of them.
A row of which every token is forbidden ends there; if all rows of a beam do, it stops as "empty_beam". A
processor whose arithmetic would round in half precision is given float32 instead.

Stages. One of stage "logits" acts before the log-softmax: what it takes from one token the others get. One
of stage "log_probs" acts behind it: scores are then what the processor makes of them. ``stage=`` chooses,
where both make sense. It decides about scores, and so about beams; where nothing but the order within one
row counts, as in greedy search, bans give the same tokens in either.

==============  ================================================================================
CTranslate2     "logits" for everything; its biased prefix mixes probabilities, as ours
transformers    "log_probs" for everything in beam search, "logits" in greedy search
fairseq         temperature on "logits", all else on "log_probs"
OpenNMT-py      "log_probs" for everything
FireRedASR      softmax smoothing on "logits", EOS penalty on "log_probs"
==============  ================================================================================

What a hypothesis starts from counts where ``counts_start=True``: the start token, or the whole prompt of a
model that is a decoder alone, as it does in transformers. By default neither does.

Also in pybeam, but not here: `Request.prefix` (forced prefix), the `min_length` of an algorithm, which
bans without normalising, the penalties for length in `pybeam.scoring`. Whole searches of other systems are in
`pybeam.compat`.

For one request other numbers or ids than for the rest: ``Request(source, processors=[temperature(0.8)])``
replaces the one of the same class, which the algorithm must have; what may differ is said below as "per
request". Functions of your own take (logits [R, V] float32, rows) and return logits; see `from_function` and
`Processor`, and `pybeam.models.base.Rows` for what they may read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from pybeam.arguments import ids
from pybeam.models.rows import Rows
from pybeam.processors.allowed import AllowedSequences, AllowedTokens
from pybeam.processors.bans import (
    NoRepeatNgram,
    SuppressSequences,
    SuppressTokens,
    SuppressTokensAtStart,
)
from pybeam.processors.base import Function, Processor, Stage
from pybeam.processors.biased_prefix import BiasedPrefix
from pybeam.processors.diversity import diversity
from pybeam.processors.ends import eos_growth, first_token, force_eos, min_length
from pybeam.processors.gumbel import gumbel
from pybeam.processors.penalties import (
    EosPenalty,
    RepetitionPenalty,
    Temperature,
    TokenPenalty,
)

__all__ = [
    "Processor",
    "allowed_sequences",
    "allowed_tokens",
    "biased_prefix",
    "diversity",
    "eos_growth",
    "eos_penalty",
    "first_token",
    "force_eos",
    "from_function",
    "gumbel",
    "min_length",
    "no_repeat_ngram",
    "no_unk",
    "repetition_penalty",
    "suppress_sequences",
    "suppress_tokens",
    "suppress_tokens_at_start",
    "temperature",
    "token_penalty",
]


def temperature(temperature: float) -> Temperature:
    """``logits / temperature``: above 1 smoother, below 1 sharper. Per request: the temperature.

    FireRedASR's softmax_smoothing; fairseq's temperature. In transformers and CTranslate2 it belongs to
    sampling and beam search ignores it.

    Args:
        temperature: 1 changes nothing.

    Raises:
        ValueError: it is not a positive number.
    """
    return Temperature(temperature)


def eos_penalty(penalty: float) -> EosPenalty:
    """``log_prob[EOS] * penalty``: below 1 hypotheses end earlier. Per request: the penalty.

    Of stage "log_probs". FireRedASR's eos_penalty, where 0 < penalty <= 1.

    Args:
        penalty: 1 changes nothing.

    Raises:
        ValueError: it is not a positive number.
    """
    return EosPenalty(penalty)


def token_penalty(token: int, penalty: float) -> TokenPenalty:
    """``log_prob[token] - penalty``. Per request: the penalty.

    Of stage "log_probs". fairseq's unkpen, for the token of unknown words.

    Raises:
        TypeError, ValueError: `token` is no token id, or the penalty not finite.
    """
    return TokenPenalty(token, penalty)


def repetition_penalty(
    penalty: float, *, counts_start: bool = False, stage: Stage = "logits"
) -> RepetitionPenalty:
    """``x * penalty`` where ``x < 0``, else ``x / penalty``, for every token that the hypothesis has.

    Once, however often a token is there; the forced prefix counts. Above 1 repetitions become less
    probable. Per request: the penalty.

    CTranslate2's repetition_penalty. transformers' counts the start token or the prompt
    (``counts_start=True``), so with models that start from EOS, such as M2M100, it penalises EOS in every
    step.

    Args:
        penalty: 1 changes nothing.
        counts_start: whether tokens of what it starts from count as some the hypothesis has.
        stage: see the module. Of log-probabilities, none is positive.

    Raises:
        ValueError: the penalty is not a positive number.

    See Keskar et al. 2019 (CTRL).
    """
    return RepetitionPenalty(penalty, counts_start, stage)


def no_repeat_ngram(
    n: int, *, counts_start: bool = False, stage: Stage = "logits"
) -> NoRepeatNgram:
    """Forbid the token that would complete an n-gram which the hypothesis has already.

    A token v is forbidden if ``(y[t-n+2], …, y[t], v)`` is ``(y[i], …, y[i+n-1])`` for some i, where y
    are the tokens so far, forced prefix included. n = 1 forbids every token that is there.

    CTranslate2's no_repeat_ngram_size; transformers' and fairseq's count the start token
    (``counts_start=True``), which matters for n = 1 only unless a model can generate it, and the prompt.

    Args:
        n: tokens of an n-gram.
        counts_start: whether the hypothesis begins with what it starts from.
        stage: see the module.

    Raises:
        TypeError, ValueError: n is not a whole number from 1 on.

    See Paulus et al. 2018.
    """
    return NoRepeatNgram(n, counts_start, stage)


def suppress_tokens(tokens: Iterable[int], *, stage: Stage = "logits") -> SuppressTokens:
    """Forbid these tokens. Per request: the tokens.

    transformers' suppress_tokens, CTranslate2's suppress_tokens.

    Args:
        tokens: ids.
        stage: see the module.

    Raises:
        TypeError, ValueError: they are no token ids.
    """
    return SuppressTokens(ids("tokens", tokens), stage)


def suppress_tokens_at_start(
    tokens: Iterable[int], *, skips: int = 0, stage: Stage = "logits"
) -> SuppressTokensAtStart:
    """Forbid these tokens where a hypothesis begins, right behind the forced prefix.

    Per request: the tokens. transformers' begin_suppress_tokens, CTranslate2's suppress_blank.

    Args:
        tokens: ids.
        skips: tokens behind the start token, of the prefix or generated, that come before that place in
            any case; transformers skips the token of `first_token`.
        stage: see the module.

    Raises:
        TypeError, ValueError: they are no token ids, or `skips` is not a whole number from 0 on.
    """
    return SuppressTokensAtStart(ids("tokens", tokens), stage, skips)


def suppress_sequences(
    sequences: Iterable[Iterable[int]],
    *,
    counts_start: bool = False,
    spares_eos: bool = False,
    stage: Stage = "logits",
) -> SuppressSequences:
    """Forbid the last token of each sequence where the hypothesis ends with those before it.

    The forced prefix counts. Per request: the sequences.

    CTranslate2's suppress_sequences; transformers' bad_words_ids with ``counts_start=True`` and
    ``spares_eos=True``.

    Args:
        sequences: token ids.
        counts_start: whether the hypothesis begins with what it starts from.
        spares_eos: whether the sequence ``[EOS]`` is taken for none.
        stage: see the module.

    Raises:
        TypeError, ValueError: they are no lists of token ids, or one is empty.
    """
    sequences = _lists("sequences", sequences)
    return SuppressSequences(sequences, counts_start, spares_eos, stage)


def no_unk(unk_id: int, *, stage: Stage = "logits") -> SuppressTokens:
    """Forbid the token for unknown words: ``suppress_tokens([unk_id])``. CTranslate2's disable_unk.

    Args:
        unk_id: its id.
        stage: see the module.

    Raises:
        TypeError, ValueError: it is no token id.
    """
    return SuppressTokens(ids("unk_id", [unk_id]), stage)


def biased_prefix(beta: float, prefix: Iterable[int] = ()) -> BiasedPrefix:
    """``p' = (1 - beta) p + beta [v = prefix[t]]`` while the hypothesis has followed the prefix so far.

    t counts from behind `Request.prefix`. The larger beta is, the more it takes to leave the prefix. Of stage
    "log_probs". Per request: beta and, as a rule, the prefix. CTranslate2's prefix_bias_beta.

    Args:
        beta: from 0 (no bias) to less than 1.
        prefix: token ids.

    Raises:
        TypeError, ValueError: beta is out of range or the prefix no token ids.
    """
    return BiasedPrefix(beta, ids("prefix", prefix))


def allowed_sequences(
    sequences: Iterable[Iterable[int]], *, stage: Stage = "logits"
) -> AllowedSequences:
    """Allow nothing but these sequences, each followed by EOS.

    A token is allowed if some sequence begins with what the hypothesis has behind the forced prefix, then
    that token; EOS if it is a whole sequence. What transformers does with prefix_allowed_tokens_fn over a
    trie, row by row; here every row carries its place in the trie along the token tree, and a step costs
    rows times the most children that a node of the trie has.

    A hypothesis that is cut at `max_length` may be the beginning of a sequence only.

    Args:
        sequences: of ids without EOS, none of them empty.
        stage: see the module.

    Raises:
        TypeError, ValueError: they are no lists of token ids, one is empty, or there is none.

    See De Cao et al. 2021 (GENRE).
    """
    return AllowedSequences(_lists("sequences", sequences), stage)


def allowed_tokens(
    function: Callable[[Rows], Tensor], *, stage: Stage = "logits", can_capture: bool = False
) -> AllowedTokens:
    """Allow what a function says: ``function(rows)`` is a bool mask [R, V], True for an allowed token.

    Args:
        function: for all rows at once; `Rows.history` has the tokens.
        stage: see the module.
        can_capture: as in `from_function`.

    Raises:
        TypeError: `function` is none.
        ValueError: in a step, if the mask is of another shape or dtype.
    """
    return AllowedTokens(function, stage, can_capture)


def from_function(
    function: Callable[[Tensor, Rows], Tensor],
    *,
    stage: Stage = "logits",
    can_capture: bool = False,
) -> Function:
    """A function of your own with a stage.

    Args:
        function: (logits [R, V] float32, rows) to logits [R, V]; may change what it is given.
        stage: "log_probs" for log-probabilities in place of logits.
        can_capture: whether a CUDA graph may hold it: it reads nothing back from the device, and no
            size in it depends on data. False: steps are not captured.

    Raises:
        TypeError: `function` is none.
        ValueError: `stage` is none.
    """
    return Function(function, stage, can_capture)


def _lists(name: str, values: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"`{name}` must be a list of lists of token ids, but is {values!r}")
    return tuple(ids(name, value) for value in values)
