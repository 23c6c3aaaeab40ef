"""Beam search of Hugging Face transformers 5 (`GenerationMixin._beam_search`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from pybeam import processors
from pybeam.arguments import at_most
from pybeam.backends.defaults import log_softmax
from pybeam.contracts import Certificate
from pybeam.limits import PrefixRule
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor, Stage
from pybeam.scoring import power
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import fixed_beam, greedy
from pybeam.stopping import Stop

__all__ = ["beam_search"]


# what is the search's own; the rest is among the model's settings
OF_SEARCH = ("num_beams", "length_penalty", "early_stopping", "max_new_tokens")


def folder_options(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `beam_search` that a folder's generation config names."""
    given = {name: generation.get(name) for name in OF_SEARCH}
    # 0 is an exponent
    found = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    # it counts the start token
    if generation.get("max_length") and "max_new_tokens" not in found:
        found["max_new_tokens"] = generation["max_length"] - 1
    return found


class DecoderPrompt(PrefixRule):
    """The rule of ``decoder_input_ids``, which count for nothing.

    A language's tag is no part of them. `generate` forces it as the first token that it generates, so it
    counts.

    Args:
        is_scored, in_length, in_limits: see `pybeam.limits.PrefixRule`.
    """

    @property
    def of_default(self) -> PrefixRule:
        return FORCED


FORCED = PrefixRule(in_length=True, in_limits=True)
DECODER_PROMPT = DecoderPrompt()


# the parameters are the options of the system that this reproduces
def beam_search(
    num_beams: int,
    *,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    num_return_sequences: int = 1,
    max_new_tokens: int = 20,
    min_new_tokens: int = 0,
    repetition_penalty: float = 1.0,
    no_repeat_ngram_size: int = 0,
    bad_words_ids: Iterable[Sequence[int]] = (),
    forced_bos_token_id: int | None = None,
    forced_eos: bool = False,
    exponential_decay_length_penalty: tuple[int, float] | None = None,
    suppress_tokens: Iterable[int] = (),
    begin_suppress_tokens: Iterable[int] = (),
    renormalize_logits: bool = False,
    sequence_bias: Mapping[Sequence[int], float] | Iterable[tuple[Sequence[int], float]] = (),
    encoder_repetition_penalty: float = 1.0,
    encoder_no_repeat_ngram_size: int = 0,
) -> Algorithm:
    """The search of ``model.generate(num_beams=…, do_sample=False)``.

    ``final_score = score / n**length_penalty``, which transformers calls ``sequences_scores``. Hypotheses
    that end among the best `num_beams` candidates of a step finish, and the best `num_beams` of them are
    kept. Once there are `num_beams` of them the search stops

    * with ``early_stopping=True``: at once.
    * with ``False``: when the worst of them is at least as good as the best live row would be if it
      ended at its present length. This is a heuristic, and `Result.stop_reason` is "heuristic".
    * with ``"never"``: when the worst of them is at least as good as that row could be at
      `max_new_tokens`. For ``length_penalty > 0`` this is a proof ("optimal"), else the same heuristic.

    Processors change log-probabilities, which are not normalised again. ``temperature`` has no effect
    without sampling, so there is no such option.

    `Request.prefix` is what follows the start token in ``decoder_input_ids``. It counts in no length, but
    n-grams and penalties see it. With decoder-only models they see the prompt, which is the source; they do
    not see the padding of a batch. The tag that `Tokenizer.encode` asks for, and the `forced_bos_token_id` of
    the model's folder, count in every length, as in `generate`.

    With ``num_beams=1`` the search is greedy and processors change logits. `length_penalty` and
    `early_stopping` then have no effect.

    Args:
        num_beams: rows of the beam, 1 to 4,096.
        length_penalty, early_stopping: see above.
        num_return_sequences: hypotheses to return.
        max_new_tokens: generated tokens, EOS included, at which rows are cut (``max_length`` of
            transformers counts the start token too).
        min_new_tokens: EOS is banned until so many tokens have been generated; nothing is renormalised.
        repetition_penalty, no_repeat_ngram_size: see `pybeam.processors`. The start token or prompt counts.
        bad_words_ids: sequences that are never generated. The start token or prompt counts, ``[EOS]`` does
            not.
        forced_bos_token_id: the first token, at log-prob 0; it counts in n. Not together with
            `Request.prefix`, nor with a prompt of several tokens (`generate` alone sees to that).
        forced_eos: whether the token at `max_new_tokens` is EOS, at log-prob 0; ``forced_eos_token_id`` of
            transformers.
        exponential_decay_length_penalty: see `pybeam.processors.eos_growth`.
        suppress_tokens: tokens that are never generated.
        begin_suppress_tokens: tokens that are not generated first, or right after `forced_bos_token_id`.
        renormalize_logits: whether a log-softmax follows all other processors.
        sequence_bias: see `pybeam.processors.sequence_bias`. The start token or prompt counts.
        encoder_repetition_penalty, encoder_no_repeat_ngram_size: see `pybeam.processors`. A request says what
            the source is: ``Request(source, processors=[encoder_repetition_penalty(1.2, source)])``, with the
            numbers and the stage of the algorithm's.

    Raises:
        ValueError, TypeError: an option is out of range or of the wrong type.
    """
    is_greedy = num_beams == 1
    growth = exponential_decay_length_penalty
    _check(early_stopping, growth, is_greedy=is_greedy)
    remedy = "widen the beam or ask for fewer"
    at_most("num_return_sequences", num_return_sequences, "`num_beams`", num_beams, remedy)
    at_most("min_new_tokens", min_new_tokens, "`max_new_tokens`", max_new_tokens, "lower it")
    # the kernel of `fixed_beam` bans EOS too, but behind all processors and never at the last token
    bans_first = renormalize_logits or min_new_tokens == max_new_tokens
    stage: Stage = "logits" if is_greedy else "log_probs"
    counted: dict[str, Any] = {"counts_start": True, "stage": stage}
    # in the order of transformers; an option that changes nothing has no processor
    chain: list[Processor] = []
    bias = processors.sequence_bias(sequence_bias, **counted)
    if bias.sequences:
        chain.append(bias)
    if encoder_repetition_penalty != 1:
        chain.append(processors.encoder_repetition_penalty(encoder_repetition_penalty, stage=stage))
    if repetition_penalty != 1:
        chain.append(processors.repetition_penalty(repetition_penalty, **counted))
    if no_repeat_ngram_size:
        chain.append(processors.no_repeat_ngram(no_repeat_ngram_size, **counted))
    if encoder_no_repeat_ngram_size:
        chain.append(processors.encoder_no_repeat_ngram(encoder_no_repeat_ngram_size, **counted))
    if sequences := list(bad_words_ids):
        chain.append(processors.suppress_sequences(sequences, spares_eos=True, **counted))
    if bans_first:
        chain.append(processors.min_length(min_new_tokens, stage=stage))
    if forced_bos_token_id is not None:
        chain.append(processors.first_token(forced_bos_token_id))
    if forced_eos:
        chain.append(processors.force_eos(is_scored=False))
    if growth is not None:
        chain.append(processors.eos_growth(*growth))
    if never := list(suppress_tokens):
        chain.append(processors.suppress_tokens(never, stage=stage))
    if not_first := list(begin_suppress_tokens):
        skips = int(forced_bos_token_id is not None)
        chain.append(processors.suppress_tokens_at_start(not_first, skips=skips, stage=stage))
    if renormalize_logits and not is_greedy:
        chain.append(processors.from_function(_renormalised, can_capture=True, stage=stage))
    min_length = 0 if bans_first else min_new_tokens
    if is_greedy:
        # processors that force a token work on log-probabilities, so they come last
        chain.sort(key=lambda processor: processor.stage == "log_probs")
        return greedy(
            processors=chain,
            min_length=min_length,
            max_length=max_new_tokens,
            prefix=DECODER_PROMPT,
        )
    return fixed_beam(
        num_beams,
        n_best=num_return_sequences,
        min_length=min_length,
        max_length=max_new_tokens,
        scoring=power(length_penalty),
        processors=chain,
        stop=_stop(early_stopping, length_penalty),
        prefix=DECODER_PROMPT,
    )


def _check(early_stopping: object, growth: object, *, is_greedy: bool) -> None:
    """Raises ValueError or TypeError unless these options have a meaning."""
    if early_stopping not in (True, False, "never"):
        raise ValueError(
            f"`early_stopping` must be True, False or 'never', but is {early_stopping!r}"
        )
    if growth is not None and not (isinstance(growth, (tuple, list)) and len(growth) == 2):
        raise TypeError(
            "`exponential_decay_length_penalty` must be a pair, from which token on and the factor, but "
            f"is {growth!r}"
        )
    if is_greedy and growth:
        raise ValueError(
            "`exponential_decay_length_penalty` needs `num_beams` of at least 2, but that is 1; leave it out"
        )


class FullBeamStop(Stop):
    """A stop rule that waits for `num_beams` hypotheses and compares the worst of them.

    Args:
        patience, keeps_best, top, certificate: see `pybeam.stopping.Stop`.
    """

    @property
    def needs_full_beam(self) -> bool:
        return True


def _stop(early_stopping: bool | str, length_penalty: float) -> Stop:
    if early_stopping is True:
        return Stop(patience=1)
    is_bound = early_stopping == "never" and length_penalty > 0
    certificate = Certificate.BOUND if is_bound else Certificate.CURRENT
    return FullBeamStop(certificate=certificate)


def _renormalised(log_probs: Tensor, rows: Rows) -> Tensor:
    return log_softmax(log_probs)
