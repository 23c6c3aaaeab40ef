"""Processors change the logits of a step before candidates are selected::

    pybeam.fixed_beam(5, processors=[temperature(1.25), no_repeat_ngram(3)])

Any processors go together, with every algorithm and schedule. They are applied in the given order, to all
rows at once. The tokens of hypotheses come from the token tree. Held (ended) hypotheses have no row and are
left alone. The tokens of `Request.prefix` are forced, whatever a processor does. `min_length` bans EOS after
all processors. A row whose tokens are all forbidden ends there. If all rows of a beam do, it stops as
"empty_beam". A processor whose arithmetic would round in half precision gets float32.

Stages. A processor of stage "logits" acts before the log-softmax: probability that it takes from one token
goes to the others. A processor of stage "log_probs" acts behind it, and scores add up its results as they
are. If both make sense, ``stage=`` chooses. The choice changes scores, and so beams. In greedy search, where
only the order within a row counts, bans give the same tokens in both stages.

==============  ================================================================================
CTranslate2     "logits" for everything; its biased prefix mixes probabilities, as ours
transformers    "log_probs" for everything in beam search, "logits" in greedy search
fairseq         temperature on "logits", all else on "log_probs"
OpenNMT-py      "log_probs" for everything
FireRedASR      softmax smoothing on "logits", EOS penalty on "log_probs"
==============  ================================================================================

With ``counts_start=True`` a processor also counts what a hypothesis starts from, as transformers does: the
start token, or the whole prompt of a decoder-only model. By default it does not.

Three related features are elsewhere: `Request.prefix` (a forced prefix), the `min_length` of an algorithm,
which bans EOS without normalising, and the length penalties of `pybeam.scoring`. Whole searches of other
systems are in `pybeam.compat`.

A request may use other numbers or ids: ``Request(source, processors=[temperature(0.8)])`` replaces the
algorithm's processor of the same class. "Per request" below says what may differ. Functions of your own take
(logits [R, V] float32, rows) and return logits. See `from_function` and `Processor`, and
`pybeam.models.base.Rows` for what they can read.
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
from pybeam.processors.ends import eos_growth, first_token, force_eos, min_length
from pybeam.processors.gumbel import gumbel
from pybeam.processors.penalties import (
    EosPenalty,
    RepetitionPenalty,
    Temperature,
    TokenPenalty,
)
from pybeam.processors.sampling import sample

__all__ = [
    "Processor",
    "allowed_sequences",
    "allowed_tokens",
    "biased_prefix",
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
    "sample",
    "suppress_sequences",
    "suppress_tokens",
    "suppress_tokens_at_start",
    "temperature",
    "token_penalty",
]


def temperature(temperature: float) -> Temperature:
    """Divide logits: ``logits / temperature``. Above 1 probabilities become smoother, below 1 sharper.

    Per request: the temperature. FireRedASR calls it softmax_smoothing, fairseq temperature. In transformers
    and CTranslate2 it belongs to sampling, and beam search ignores it.

    Args:
        temperature: 1 changes nothing.

    Raises:
        ValueError: it is not a positive number.
    """
    return Temperature(temperature)


def eos_penalty(penalty: float) -> EosPenalty:
    """Multiply the log-prob of EOS: ``log_prob[EOS] * penalty``. Below 1 hypotheses end earlier.

    Stage "log_probs". Per request: the penalty. This is FireRedASR's eos_penalty, where 0 < penalty <= 1.

    Args:
        penalty: 1 changes nothing.

    Raises:
        ValueError: it is not a positive number.
    """
    return EosPenalty(penalty)


def token_penalty(token: int, penalty: float) -> TokenPenalty:
    """Subtract from the log-prob of one token: ``log_prob[token] - penalty``.

    Stage "log_probs". Per request: the penalty. For the token of unknown words this is fairseq's unkpen.

    Raises:
        TypeError, ValueError: `token` is no token id, or the penalty not finite.
    """
    return TokenPenalty(token, penalty)


def repetition_penalty(
    penalty: float, *, counts_start: bool = False, stage: Stage = "logits"
) -> RepetitionPenalty:
    """Penalise tokens that the hypothesis has: ``x * penalty`` if ``x < 0``, else ``x / penalty``.

    A token is penalised once, however often it occurs. The forced prefix counts. Above 1 repetitions become
    less probable. Per request: the penalty.

    This is CTranslate2's repetition_penalty. transformers also counts the start token or the prompt
    (``counts_start=True``). With models that start from EOS, such as M2M100, that penalises EOS in every
    step.

    Args:
        penalty: 1 changes nothing.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        stage: see the module. Log-probabilities are never positive, so the penalty multiplies them.

    Raises:
        ValueError: the penalty is not a positive number.

    See Keskar et al. 2019 (CTRL).
    """
    return RepetitionPenalty(penalty, counts_start, stage)


def no_repeat_ngram(
    n: int, *, counts_start: bool = False, stage: Stage = "logits"
) -> NoRepeatNgram:
    """Forbid the token that would complete an n-gram which the hypothesis already has.

    A token v is forbidden if ``(y[t-n+2], …, y[t], v)`` is ``(y[i], …, y[i+n-1])`` for some i, where y are
    the tokens so far, forced prefix included. n = 1 forbids every token of the hypothesis.

    This is CTranslate2's no_repeat_ngram_size. transformers and fairseq also count the start token and the
    prompt (``counts_start=True``). The start token matters only for n = 1, unless a model can generate it.

    Args:
        n: tokens of an n-gram.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        stage: see the module.

    Raises:
        TypeError, ValueError: n is not a whole number from 1 on.

    See Paulus et al. 2018.
    """
    return NoRepeatNgram(n, counts_start, stage)


def suppress_tokens(tokens: Iterable[int], *, stage: Stage = "logits") -> SuppressTokens:
    """Forbid these tokens. Per request: the tokens.

    transformers and CTranslate2 call it suppress_tokens.

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
    """Forbid these tokens at the beginning of a hypothesis, right behind the forced prefix.

    Per request: the tokens. transformers calls it begin_suppress_tokens, CTranslate2 suppress_blank.

    Args:
        tokens: ids.
        skips: least number of tokens behind the start token, of the prefix or generated, before that place;
            transformers skips the token of `first_token`.
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
    """Forbid the last token of each sequence if the hypothesis ends with the tokens before it.

    The forced prefix counts. Per request: the sequences. CTranslate2 calls it suppress_sequences.
    transformers' bad_words_ids is the same with ``counts_start=True`` and ``spares_eos=True``.

    Args:
        sequences: lists of token ids.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        spares_eos: whether the sequence ``[EOS]`` is ignored.
        stage: see the module.

    Raises:
        TypeError, ValueError: they are no lists of token ids, or one is empty.
    """
    sequences = _lists("sequences", sequences)
    return SuppressSequences(sequences, counts_start, spares_eos, stage)


def no_unk(unk_id: int, *, stage: Stage = "logits") -> SuppressTokens:
    """Forbid the token for unknown words: ``suppress_tokens([unk_id])``. CTranslate2 calls it disable_unk.

    Args:
        unk_id: the id of that token.
        stage: see the module.

    Raises:
        TypeError, ValueError: it is no token id.
    """
    return SuppressTokens(ids("unk_id", [unk_id]), stage)


def biased_prefix(beta: float, prefix: Iterable[int] = ()) -> BiasedPrefix:
    """Make a prefix likely: ``p' = (1 - beta) p + beta [v = prefix[t]]`` while the hypothesis follows it.

    t counts from behind `Request.prefix`. With a larger beta hypotheses leave the prefix less often. Stage
    "log_probs". Per request: beta, and usually the prefix. CTranslate2 calls it prefix_bias_beta.

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

    A token is allowed if some sequence begins with the tokens behind the forced prefix and this token. EOS is
    allowed behind a whole sequence. A hypothesis that is cut at `max_length` may be only the beginning of a
    sequence.

    transformers does the same with prefix_allowed_tokens_fn over a trie, row by row. Here every row carries
    its place in the trie along the token tree. A step costs the number of rows times the most children of a
    node of the trie.

    Args:
        sequences: lists of ids without EOS, none of them empty.
        stage: see the module.

    Raises:
        TypeError, ValueError: they are no lists of token ids, one is empty, or there is none.

    See De Cao et al. 2021 (GENRE).
    """
    return AllowedSequences(_lists("sequences", sequences), stage)


def allowed_tokens(
    function: Callable[[Rows], Tensor], *, stage: Stage = "logits", can_capture: bool = False
) -> AllowedTokens:
    """Allow the tokens of a mask: ``function(rows)`` returns bool [R, V], True for an allowed token.

    Args:
        function: for all rows at once; `Rows.history` has the tokens.
        stage: see the module.
        can_capture: as in `from_function`.

    Raises:
        TypeError: `function` is no function.
        ValueError: in a step, if the mask has another shape or dtype.
    """
    return AllowedTokens(function, stage, can_capture)


def from_function(
    function: Callable[[Tensor, Rows], Tensor],
    *,
    stage: Stage = "logits",
    can_capture: bool = False,
) -> Function:
    """Make a processor from a function of your own, with a stage.

    Args:
        function: maps (logits [R, V] float32, rows) to logits [R, V]; it may overwrite its arguments.
        stage: "log_probs" for log-probabilities in place of logits.
        can_capture: whether a CUDA graph may hold the function. It must read nothing back from the device,
            and no size in it may depend on data. False: steps are not captured.

    Raises:
        TypeError: `function` is no function.
        ValueError: `stage` is no stage.
    """
    return Function(function, stage, can_capture)


def _lists(name: str, values: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"`{name}` must be a list of lists of token ids, but is {values!r}")
    return tuple(ids(name, value) for value in values)
