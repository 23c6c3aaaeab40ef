"""Options of a transformers `GenerationConfig`: which search they ask for, and which are refused."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pybeam import processors
from pybeam.arguments import LARGEST
from pybeam.compat import huggingface
from pybeam.processors.base import Processor, Stage
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from pybeam.compat.generate.call import Call

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
    *("eos_token_id", "forced_eos_token_id", "guidance_scale", "max_length", "max_time"),
    *("min_length", "output_scores", "prompt_lookup_num_tokens"),
}
# options of sampling; they have no effect on a search
OF_SAMPLING = {
    *("do_sample", "epsilon_cutoff", "eta_cutoff", "min_p", "temperature", "top_h", "top_k"),
    *("top_p", "typical_p"),
}
# options about guesses; `generate` ignores them where nothing is guessed
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
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty",
    "ExponentialDecayLengthPenalty": "exponential_decay_length_penalty",
    "ForcedBOSTokenLogitsProcessor": "forced_bos_token_id",
    "ForcedEOSTokenLogitsProcessor": "forced_eos_token_id",
    "LogitNormalization": "renormalize_logits",
    "MinLengthLogitsProcessor": "min_length",
    "MinNewTokensLengthLogitsProcessor": "min_new_tokens",
    "NoBadWordsLogitsProcessor": "bad_words_ids",
    "NoRepeatNGramLogitsProcessor": "no_repeat_ngram_size",
    "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
    "SequenceBiasLogitsProcessor": "sequence_bias",
    "SuppressTokensAtBeginLogitsProcessor": "begin_suppress_tokens",
    "SuppressTokensLogitsProcessor": "suppress_tokens",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
}
# what samples; only `do_sample` brings them, and a search has no use for them
DRAWN = {"MinPLogitsWarper", "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper"}
WARPERS = DRAWN | {
    *("EpsilonLogitsWarper", "EtaLogitsWarper", "TopHLogitsWarper", "TypicalLogitsWarper"),
}


def samples(model: PreTrainedModel, config: GenerationConfig, call: Call) -> bool:
    """Whether the caller asks for samples. A checkpoint may ask for them, too, and a search leaves that out.

    Args:
        model: its own `generation_config` is the checkpoint's.
        config: that one, with what the caller wants in its place.
        call: what the caller wrote. A config of the caller's own asks, too, but not for samples of a beam,
            since many are copies of the checkpoint's.

    Raises:
        ValueError: the caller asks for samples of a beam.
    """
    if not config.do_sample:
        return False
    own, has_beams = call.generation_config, (config.num_beams or 1) > 1
    asks = call.kwargs.get("do_sample") or (own is not None and own.do_sample and not has_beams)
    if not asks and model.generation_config.do_sample:
        _say_that_it_searches(type(model).__name__)
        return False
    if has_beams:
        raise ValueError(
            f"`do_sample` with `num_beams` = {config.num_beams} is not understood by pybeam, which draws "
            "each output by itself; leave one of them out, or take pybeam.stochastic_beam"
        )
    return True


def drawn(
    config: GenerationConfig, algorithm: Algorithm, requests: Sequence[Request]
) -> tuple[Algorithm, list[Request]]:
    """Return an algorithm that samples, and for each request as many as there shall be samples of it.

    The seed is drawn from torch's default generator, so that `torch.manual_seed` repeats a call.
    """
    own = partial(
        processors.sample,
        1.0 if config.temperature is None else config.temperature,
        int(torch.randint(LARGEST, ())),
        top_k=config.top_k or 0,
        top_p=1.0 if config.top_p is None else config.top_p,
        min_p=config.min_p or 0.0,
    )
    repeated = [one for one in requests for _ in range(config.num_return_sequences or 1)]
    numbered = [
        dataclasses.replace(one, processors=[*(one.processors or ()), own(draw=i)])
        for i, one in enumerate(repeated)
    ]
    return dataclasses.replace(algorithm, processors=(*algorithm.processors, own())), numbered


@cache
def _say_that_it_searches(name: str) -> None:
    """Log it, once per class of models."""
    logger.info(
        "%s: `do_sample` of its generation_config is left out, because pybeam searches", name
    )


def algorithm_of(config: GenerationConfig, prompt_length: int, *, draws: bool = False) -> Algorithm:
    """Return the search that a config asks for, behind a prompt of so many tokens, start token included.

    With `draws`, the sequences to return are as many samples, and not the best of a beam.

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
    if draws:
        options.pop("num_return_sequences", None)
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


def check_processors(
    config: GenerationConfig, logits_processor: Sequence[Any], *, draws: bool
) -> None:
    """Raise ValueError for a processor that none of the options has made."""
    made = {name for name, option in PROCESSORS.items() if _makes_processor(config, option)}
    if config.do_sample:
        made |= DRAWN if draws else WARPERS
    refuse_others("logits processor", [type(own).__name__ for own in logits_processor], made)


def about_inputs(
    config: GenerationConfig, algorithm: Algorithm, requests: list[Request], inputs: Tensor | None
) -> list[Request]:
    """Tell processors about inputs what the input of each request is, padding included.

    Inputs that are no token ids have none, as for transformers.
    """
    if inputs is None or inputs.ndim != 2 or bool((inputs < 0).any()):
        return requests
    stage: Stage = "logits" if algorithm.width == 1 else "log_probs"
    build: list[Callable[[list[int]], Processor]] = []
    if _is_on("encoder_repetition_penalty", penalty := config.encoder_repetition_penalty):
        build.append(partial(processors.encoder_repetition_penalty, penalty, stage=stage))
    if size := config.encoder_no_repeat_ngram_size:
        ban = partial(processors.encoder_no_repeat_ngram, size, counts_start=True, stage=stage)
        build.append(ban)
    if not build:
        return requests
    return [
        dataclasses.replace(request, processors=[one(line) for one in build])
        for request, line in zip(requests, inputs.tolist(), strict=True)
    ]


def check_criteria(config: GenerationConfig, criteria: Sequence[Any]) -> None:
    """Raise ValueError for stopping criteria of a search with beams, where they would act as EOS does."""
    if (config.num_beams or 1) > 1:
        refuse_others("stopping criterion of beams", [type(one).__name__ for one in criteria], ())


def is_guided(model: PreTrainedModel, config: GenerationConfig) -> bool:
    """Whether a negative prompt guides the search.

    Raises:
        ValueError: the model reads no prompts, or the search has beams.
    """
    if not _is_on("guidance_scale", config.guidance_scale):
        return False
    if model.config.is_encoder_decoder:
        raise ValueError(
            "`guidance_scale` needs a decoder, which reads a negative prompt in place of the prompt, but "
            f"a {type(model).__name__} has an encoder; leave it out"
        )
    if (config.num_beams or 1) > 1:
        raise ValueError(
            f"`guidance_scale` with `num_beams` = {config.num_beams} is not understood by pybeam, since "
            "transformers guides each row by the keys and values of another one; leave one of them out"
        )
    return True


def _is_on(name: str, value: Any) -> bool:
    """Whether an option asks for something. 0 does where it is a token or an exponent."""
    if value is None or value is False or value in ((), []):
        return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    if name == "length_penalty" or name.endswith("_id"):
        return True
    if name == "guidance_scale":
        # 0 leaves nothing but the negative prompt
        return value != 1
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
