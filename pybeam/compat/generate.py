"""Search inside transformers 5: `model.generate(…, custom_generate=pybeam.generate)`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pybeam.compat import huggingface
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Schedule
from pybeam.models.huggingface import wrap
from pybeam.request import Request, Result
from pybeam.search.algorithms import Algorithm

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.utils import ModelOutput

__all__ = ["generate"]

# options about speed or memory, which do not change the result: any value will do
NO_MATTER = {
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "is_assistant",
    "max_cache_len",
    "pad_token_id",
    "prefill_chunk_size",
    "return_dict_in_generate",
    "transformers_version",
    "use_cache",
}
# options read in this file, or passed to `huggingface.beam_search` under other names
READ_HERE = {"eos_token_id", "forced_eos_token_id", "max_length", "min_length", "output_scores"}
# options of sampling; `generate` ignores them without `do_sample`
OF_SAMPLING = {
    "epsilon_cutoff",
    "eta_cutoff",
    "min_p",
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
}
# options of draft models; `generate` ignores them without one
OF_DRAFTS = {
    "assistant_confidence_threshold",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "speculation_type",
    "target_lookbehind",
}
# options that 1 switches off; None, False, 0 and () switch off all but `length_penalty`
OFF_AT_ONE = {
    "encoder_repetition_penalty",
    "guidance_scale",
    "num_beam_groups",
    "repetition_penalty",
}
# the option of the config that makes each of them; the option is then understood or refused
PROCESSORS = {
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
CRITERIA = {"EosTokenCriteria", "MaxLengthCriteria"}
INPUTS = {
    "attention_mask",
    "cache_params",
    "encoder_outputs",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "use_cache",
}


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: GenerationConfig | None = None,
    schedule: Schedule | None = None,
    **model_kwargs: Any,
) -> ModelOutput | Tensor:
    """Greedy and beam search for ``model.generate(…, custom_generate=pybeam.generate, num_beams=…)``.

    transformers' `generate` prepares its arguments and calls this function with them. It returns the same
    tokens and scores in the same classes: `sequences` [B * num_return_sequences, L], padded on the right,
    and with ``output_scores=True`` the `sequences_scores`. Values of single steps (`scores`,
    `beam_indices`) and the cache are None. Keys and values are kept as
    `pybeam.models.huggingface.wrap` says.

    The config may set the options of `pybeam.compat.huggingface.beam_search`.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs: the
            arguments that `generate` passes. All of them are checked.
        schedule: see `Decoder`; it may be passed to `generate`.

    Raises:
        ValueError: an option, processor, stopping criterion or model input is not understood; the
            message names it.
    """
    if generation_config is None:
        raise ValueError("`generate` of transformers calls this: pass it as `custom_generate`")
    config, num_beams = generation_config, generation_config.num_beams or 1
    _refuse_others("stopping criterion", [type(c).__name__ for c in stopping_criteria], CRITERIA)
    used = [name for name, value in model_kwargs.items() if value is not None]
    _refuse_others("model input", used, INPUTS)
    for name in ("past_key_values", "cache_params"):
        if _holds_tokens(model_kwargs.get(name)):
            raise ValueError(f"`{name}` must be empty, but holds tokens; give them as a prompt")
    # `generate` has repeated each input for every beam
    step = max(num_beams, config.num_return_sequences or 1)
    given = input_ids[::step]
    start_id, requests = _requests(model, given, model_kwargs, step)
    algorithm = _algorithm(model, config, input_ids.shape[1])
    made = {name for name, option in PROCESSORS.items() if _is_on(config, option)}
    _refuse_others("logits processor", [type(p).__name__ for p in logits_processor], made)
    wrapped = wrap(model, start_id=start_id, eos_id=_eos_ids(config))
    decoder = Decoder(wrapped, algorithm, schedule)
    results = decoder.decode(requests)
    return _output(model, config, given, results)


def _algorithm(model: PreTrainedModel, config: GenerationConfig, prompt_length: int) -> Algorithm:
    understood = inspect.signature(huggingface.beam_search).parameters
    options = {}
    # models keep other facts in the config too, so only its own names are options
    for name in vars(type(config)()):
        if name.startswith("_") or not _is_on(config, name):
            continue
        value = getattr(config, name)
        if name in understood:
            options[name] = value
        elif name not in NO_MATTER | READ_HERE | OF_SAMPLING | OF_DRAFTS:
            raise ValueError(f"`{name}` = {value!r} is not understood by pybeam; leave it out")
    least = max(options.pop("min_new_tokens", 0), (config.min_length or 0) - prompt_length)
    most = config.max_length - prompt_length
    if config.forced_eos_token_id is not None:
        if _ids(config.forced_eos_token_id) != _eos_ids(config):
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


def _requests(
    model: PreTrainedModel, given: Tensor, inputs: dict[str, Any], step: int
) -> tuple[int | None, list[Request]]:
    """Return the start token, and a request per input."""
    mask = inputs.get("attention_mask")
    mask = None if mask is None else mask[::step].bool()
    if not model.config.is_encoder_decoder:
        mask = torch.ones_like(given, dtype=torch.bool) if mask is None else mask
        positions = inputs.get("position_ids")
        if positions is not None:
            counted = (mask.cumsum(1) - 1)[mask]
            if not torch.equal(positions[::step].expand_as(mask)[mask], counted):
                raise ValueError("`position_ids` must count the prompts' tokens; leave them out")
        return None, [Request(ids[own]) for ids, own in zip(given, mask, strict=True)]
    from pybeam.models.huggingface.model import EncoderStates

    starts = sorted(set(given[:, 0].tolist()))
    if len(starts) > 1:
        raise ValueError(
            f"`decoder_input_ids` must begin with one token, but begin with {starts}; put what differs "
            "behind it"
        )
    states = inputs["encoder_outputs"].last_hidden_state[::step]
    if mask is None or mask.shape != states.shape[:2]:
        mask = states.new_ones(states.shape[:2], dtype=torch.bool)
    sources = [EncoderStates(own[real]) for own, real in zip(states, mask, strict=True)]
    pairs = zip(sources, given[:, 1:], strict=True)
    return starts[0], [Request(source, prefix) for source, prefix in pairs]


def _output(
    model: PreTrainedModel, config: GenerationConfig, given: Tensor, results: list[Result]
) -> ModelOutput | Tensor:
    from transformers.generation import utils

    num, has_beams = config.num_return_sequences or 1, (config.num_beams or 1) > 1
    pad = config._pad_token_tensor
    # as in transformers: with beams a padding token 0 counts as none
    fill = int(pad) if pad is not None and (int(pad) or not has_beams) else _eos_ids(config)[0]
    lines, scores = [], []
    for prompt, result in zip(given, results, strict=True):
        start = prompt[:1] if model.config.is_encoder_decoder else prompt
        for found in result.hypotheses:
            ids = torch.tensor([*found.tokens, *_ids(found.eos_id)], dtype=torch.long)
            lines.append(torch.cat((start.cpu(), ids)))
            scores.append(found.final_score)
        # transformers fills up with the prompt where it has found too few
        for _ in range(num - len(result.hypotheses)):
            lines.append(prompt.cpu())
            scores.append(float("-inf"))
    sequences = pad_sequence(lines, batch_first=True, padding_value=fill).to(given)
    if not config.return_dict_in_generate:
        return sequences
    kind = "EncoderDecoder" if model.config.is_encoder_decoder else "DecoderOnly"
    if not has_beams:
        return getattr(utils, f"Generate{kind}Output")(sequences=sequences)
    found_scores = torch.tensor(scores, device=given.device) if config.output_scores else None
    output = getattr(utils, f"GenerateBeam{kind}Output")
    return output(sequences=sequences, sequences_scores=found_scores)


def _is_on(config: GenerationConfig, name: str) -> bool:
    value = getattr(config, name)
    if name == "length_penalty":
        return value is not None
    return not (value in (None, False, (), []) or (name in OFF_AT_ONE and value == 1))


def _eos_ids(config: GenerationConfig) -> list[int]:
    ids = config._eos_token_tensor
    if ids is None:
        raise ValueError("`eos_token_id` must be a token id or several, but is None; give it")
    found: list[int] = ids.view(-1).tolist()
    return found


def _ids(given: int | list[int] | None) -> list[int]:
    if given is None:
        return []
    return [given] if isinstance(given, int) else list(given)


def _holds_tokens(cache: Any) -> bool:
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return any(
        getattr(layer, "is_initialized", False) and layer.keys is not None for layer in layers
    )


def _refuse_others(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    others = sorted(set(names) - set(known))
    if others:
        raise ValueError(f"{what} `{others[0]}` is not understood by pybeam; leave it out")
