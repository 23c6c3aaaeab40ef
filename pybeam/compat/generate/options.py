"""Options of a transformers `GenerationConfig`: which search they ask for, and which are refused."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pybeam import processors
from pybeam.compat import huggingface
from pybeam.processors.base import Stage
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

logger = logging.getLogger("pybeam")

# options about speed or memory, which do not change the result: any value will do
NO_MATTER = {
    *("bos_token_id", "cache_config", "cache_implementation", "compile_config"),
    *("continuous_batching_config", "decoder_start_token_id", "disable_compile", "is_assistant"),
    *("max_cache_len", "pad_token_id", "prefill_chunk_size", "return_dict_in_generate"),
    *("transformers_version", "use_cache"),
}
# options read in this file, or passed to `huggingface.beam_search` under other names
READ_HERE = {
    *("encoder_no_repeat_ngram_size", "eos_token_id", "forced_eos_token_id", "max_length"),
    *("min_length", "output_scores"),
}
# options of sampling; they have no effect on a search
OF_SAMPLING = {
    *("do_sample", "epsilon_cutoff", "eta_cutoff", "min_p", "temperature", "top_h", "top_k"),
    *("top_p", "typical_p"),
}
# options of draft models; `generate` ignores them without one
OF_DRAFTS = {
    *("assistant_confidence_threshold", "assistant_ensemble_weight", "assistant_lookbehind"),
    *("max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("speculation_type", "target_lookbehind"),
}
# options that 1 switches off
OFF_AT_ONE = {
    "encoder_repetition_penalty",
    "guidance_scale",
    "num_beam_groups",
    "repetition_penalty",
}
# the option of the config that makes each of them; the option is then understood or refused
PROCESSORS = {
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size",
    "ExponentialDecayLengthPenalty": "exponential_decay_length_penalty",
    "ForcedBOSTokenLogitsProcessor": "forced_bos_token_id",
    "ForcedEOSTokenLogitsProcessor": "forced_eos_token_id",
    "LogitNormalization": "renormalize_logits",
    "MinLengthLogitsProcessor": "min_length",
    "MinNewTokensLengthLogitsProcessor": "min_new_tokens",
    "NoBadWordsLogitsProcessor": "bad_words_ids",
    "NoRepeatNGramLogitsProcessor": "no_repeat_ngram_size",
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "SuppressTokensAtBeginLogitsProcessor": "begin_suppress_tokens",
    "SuppressTokensLogitsProcessor": "suppress_tokens",
}
# what samples; only `do_sample` brings them, and a search has no use for them
WARPERS = {
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "MinPLogitsWarper", "TemperatureLogitsWarper"),
    *("TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper"),
}


def check_sampling(
    model: PreTrainedModel, config: GenerationConfig, written: Mapping[str, Any]
) -> None:
    """Raise ValueError if the caller asks for sampling. A checkpoint may, and a search leaves that out.

    Args:
        model: its own `generation_config` is the checkpoint's.
        config: that one, with what the caller wants in its place.
        written: the options that the caller wrote.
    """
    if not config.do_sample:
        return
    if written.get("do_sample") or not model.generation_config.do_sample:
        raise ValueError(
            "`do_sample` = True is not understood by pybeam, which searches and draws nothing; leave it out"
        )
    _say_that_it_searches(type(model).__name__)


@cache
def _say_that_it_searches(name: str) -> None:
    """Log it, once per class of models."""
    logger.info(
        "%s: `do_sample` of its generation_config is left out, because pybeam searches", name
    )


def algorithm_of(config: GenerationConfig, prompt_length: int) -> Algorithm:
    """Return the search that a config asks for, behind a prompt of so many tokens, start token included.

    Raises:
        ValueError, TypeError: an option is not understood, or out of range.
    """
    understood = inspect.signature(huggingface.beam_search).parameters
    options = {}
    # models keep other facts in the config too, so only its own names are options
    for name in vars(type(config)()):
        value = getattr(config, name)
        if name.startswith("_") or not _is_on(name, value):
            continue
        if name in understood:
            options[name] = value
        elif name not in NO_MATTER | READ_HERE | OF_SAMPLING | OF_DRAFTS:
            raise ValueError(f"`{name}` = {value!r} is not understood by pybeam; leave it out")
    least = max(options.pop("min_new_tokens", 0), (config.min_length or 0) - prompt_length)
    most = config.max_length - prompt_length
    if config.forced_eos_token_id is not None:
        if set(as_ids(config.forced_eos_token_id)) != set(eos_ids(config)):
            raise ValueError(
                f"`forced_eos_token_id` = {config.forced_eos_token_id} is not understood by pybeam; "
                "set it to None"
            )
        options["forced_eos"] = True
    # transformers forces it only behind a prompt of one token
    if prompt_length > 1:
        options.pop("forced_bos_token_id", None)
    options |= dict(max_new_tokens=most, min_new_tokens=least)
    return huggingface.beam_search(options.pop("num_beams", 1), **options)


def check_processors(config: GenerationConfig, logits_processor: Sequence[Any]) -> None:
    """Raise ValueError for a processor that none of the options has made."""
    made = {name for name, option in PROCESSORS.items() if _makes_processor(config, option)}
    if config.do_sample:
        made |= WARPERS
    refuse_others("logits processor", [type(own).__name__ for own in logits_processor], made)


def without_ngrams(
    config: GenerationConfig, algorithm: Algorithm, requests: list[Request], inputs: Tensor
) -> tuple[Algorithm, list[Request]]:
    """Ban the n-grams of each input, padding included, beside the sequences that all requests have banned.

    Inputs that are no token ids have none, as for transformers.
    """
    if inputs.ndim != 2 or bool((inputs < 0).any()):
        return algorithm, requests
    size, ends = config.encoder_no_repeat_ngram_size, eos_ids(config)
    banned = [list(line) for line in config.bad_words_ids or ()]
    banned = [line for line in banned if len(line) > 1 or line[0] not in ends]
    stage: Stage = "logits" if algorithm.width == 1 else "log_probs"
    ban = partial(processors.suppress_sequences, counts_start=True, stage=stage)
    chain = [own for own in algorithm.processors if type(own) is not type(ban([]))]
    changed = []
    for request, line in zip(requests, inputs.tolist(), strict=True):
        ngrams = {tuple(line[i : i + size]) for i in range(len(line) - size + 1)}
        changed.append(dataclasses.replace(request, processors=[ban([*banned, *ngrams])]))
    return dataclasses.replace(algorithm, processors=(ban([]), *chain)), changed


def _is_on(name: str, value: Any) -> bool:
    """Whether an option asks for something. 0 does where it is a token or an exponent."""
    if value is None or value is False or value in ((), []):
        return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    if name == "length_penalty" or name.endswith("_id"):
        return True
    return value != 0 and not (value == 1 and name in OFF_AT_ONE)


def _makes_processor(config: GenerationConfig, option: str) -> bool:
    """Whether `generate` makes a processor of this option; an empty list of tokens makes one."""
    value = getattr(config, option)
    return _is_on(option, value) or isinstance(value, (list, tuple))


def eos_ids(config: GenerationConfig) -> list[int]:
    """Return the tokens that end a hypothesis. Raises ValueError if there are none."""
    tensor = config._eos_token_tensor
    if tensor is None:
        raise ValueError("`eos_token_id` must be a token id or several, but is None; give it")
    found: list[int] = tensor.view(-1).tolist()
    return found


def as_ids(given: int | list[int] | None) -> list[int]:
    """Return one id, or none, as a list."""
    if given is None:
        return []
    return [given] if isinstance(given, int) else list(given)


def refuse_others(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError for the first name that is not known."""
    others = sorted(set(names) - set(known))
    if others:
        raise ValueError(f"{what} `{others[0]}` is not understood by pybeam; leave it out")
