"""Search inside transformers: `model.generate(…, custom_generate=pybeam.generate)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pybeam.compat.generate.options import (
    about_inputs,
    algorithm_of,
    as_ids,
    check_criteria,
    check_processors,
    drawn,
    eos_ids,
    is_guided,
    refuse_others,
    samples,
)
from pybeam.decoder import Decoder
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.models.huggingface import check_transformers, wrap
from pybeam.request import Request, Result

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation.streamers import BaseStreamer
    from transformers.utils import ModelOutput

__all__ = ["generate"]

CRITERIA = {"EosTokenCriteria", "MaxLengthCriteria"}
INPUTS = {
    *("attention_mask", "cache", "cache_params", "encoder_outputs", "logits_to_keep"),
    *("mm_encoder_outputs", "past_key_values", "position_ids", "use_cache"),
}


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: GenerationConfig | None = None,
    schedule: Schedule | None = None,
    streamer: BaseStreamer | None = None,
    inputs_tensor: Tensor | None = None,
    **model_kwargs: Any,
) -> ModelOutput | Tensor:
    """Search and sample for ``model.generate(…, custom_generate=pybeam.generate, num_beams=…)``.

    transformers' `generate` prepares its arguments and calls this function with them. It returns the same
    tokens and scores in the same classes: `sequences` [B * num_return_sequences, L], padded on the right,
    and with ``output_scores=True`` the `sequences_scores`. Values of single steps (`scores`,
    `beam_indices`) and the cache are None. Keys and values are kept as
    `pybeam.models.huggingface.wrap` says.

    The config may set the options of `pybeam.compat.huggingface.beam_search`, and with one beam:

    * `do_sample`, with `temperature`, `top_k`, `top_p` and `min_p`. Samples have the distribution that they
      have in transformers, and the random numbers of `pybeam.processors.sample`. Their seed is drawn from
      torch's default generator. A `do_sample` of the checkpoint, which nobody asked for, is left out with
      all that it brings, and the logger "pybeam" says so once per class of models.
    * `max_time` and `stopping_criteria`, which are asked about each line alone, without scores. A stop string
      is a `StopStringCriteria`, because transformers keeps the tokenizer that `stop_strings` needs.
    * `guidance_scale` and `negative_prompt_ids`, of decoders.
    * `prompt_lookup_num_tokens` and `assistant_model`: several tokens a step, and the same outputs.

    ``generate(…, streamer=…)`` works for one input: the streamer is told a token as soon as no later step can
    take it back, and it is always told the end. With beams, transformers itself would hand `TextStreamer` a
    prompt per beam, which it refuses. So there give the streamer to this function:
    ``custom_generate=functools.partial(pybeam.generate, streamer=streamer)``.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor, model_kwargs:
            the arguments that `generate` passes. All of them are checked.
        schedule: see `Decoder`; it may be passed to `generate`.
        streamer: is told the prompt and the best hypothesis; see above.

    Raises:
        ImportError: transformers is too old.
        ValueError: an option, processor, stopping criterion or model input is not understood; the
            message names it.
    """
    if generation_config is None:
        raise ValueError("`generate` of transformers calls this: pass it as `custom_generate`")
    check_transformers()
    from pybeam.compat.generate.call import Stops, decoded, ending, running
    from pybeam.compat.generate.guesses import guessing
    from pybeam.compat.generate.guidance import guided

    config, call = generation_config, running()
    # `generate` has repeated each input for every beam or sample
    num = config.num_return_sequences or 1
    step = max(config.num_beams or 1, num)
    given = input_ids[::step]
    listener = call.streamer if streamer is None else streamer
    with ending(listener):
        if streamer is not None:
            streamer.put(given.cpu())
        _check_inputs(model_kwargs)
        start_id, requests = _requests(model, given, model_kwargs, step)
        draws = samples(model, config, call)
        algorithm = algorithm_of(config, input_ids.shape[1], draws=draws)
        check_processors(config, logits_processor, draws=draws)
        requests = about_inputs(config, algorithm, requests, inputs_tensor)
        found = wrap(model, start_id=start_id, eos_id=eos_ids(config))
        wrapped: Model = found
        assistant = call.assistant_model
        # as in transformers, a search with beams leaves them out
        if algorithm.width == 1 and (assistant is not None or config.prompt_lookup_num_tokens):
            inputs = _inputs(requests, inputs_tensor, model_kwargs, step)
            algorithm, requests = guessing(config, algorithm, found, requests, assistant, inputs)
        if is_guided(model, config):
            wrapped, requests = guided(found, config.guidance_scale, requests, call)
        if draws:
            algorithm, requests = drawn(config, algorithm, requests)
            given, num = given.repeat_interleave(num, 0), 1
        starts = given[:, :1] if model.config.is_encoder_decoder else given
        criteria = [one for one in stopping_criteria if type(one).__name__ not in CRITERIA]
        check_criteria(config, criteria)
        stops = Stops(requests, list(starts), criteria) if criteria else None
        results = decoded(Decoder(wrapped, algorithm, schedule), requests, listener, stops)
    return _output(model, config, given, results, num)


def _check_inputs(inputs: dict[str, Any]) -> None:
    """Raise ValueError for inputs of the model that this search does not use."""
    encoded = inputs.get("mm_encoder_outputs")
    if encoded and any(states is not None for states in encoded.values()):
        raise ValueError(
            f"pybeam searches multimodal models with text alone, but the input has {sorted(encoded)}; leave "
            "it out, or let transformers search"
        )
    used = [name for name, value in inputs.items() if value is not None]
    refuse_others("model input", used, INPUTS)
    for name in ("cache", "past_key_values", "cache_params"):
        if _holds_tokens(inputs.get(name)):
            raise ValueError(f"`{name}` must be empty, but holds tokens; give them as a prompt")


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
            # some models have a line of positions per axis of an image; for text all are the same
            axes = positions.view(-1, *positions.shape[-2:])[:, ::step]
            if any(not torch.equal(axis.expand_as(mask)[mask], counted) for axis in axes):
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
    known = inputs["encoder_outputs"].get("attention_mask")
    mask = _mask_of_states(model, states, mask if known is None else known[::step].bool())
    sources = [EncoderStates(own[real]) for own, real in zip(states, mask, strict=True)]
    pairs = zip(sources, given[:, 1:], strict=True)
    return starts[0], [Request(source, prefix) for source, prefix in pairs]


def _inputs(
    requests: list[Request], inputs: Tensor | None, others: dict[str, Any], step: int
) -> list[Tensor]:
    """Return what another model reads in place of this one, for each request."""
    if "encoder_outputs" not in others or inputs is None:
        return [request.source for request in requests]
    mask = others.get("attention_mask")
    if mask is None or inputs.ndim != 2:
        return list(inputs)
    return [line[own.bool()] for line, own in zip(inputs, mask[::step], strict=True)]


def _mask_of_states(model: PreTrainedModel, states: Tensor, mask: Tensor | None) -> Tensor:
    """Return which encoder states [A, E] are real, by a mask of the inputs."""
    size = states.shape[:2]
    if mask is None or bool(mask.all()) or model.config.model_type == "whisper":
        return states.new_ones(size, dtype=torch.bool)
    if mask.shape == size:
        return mask
    for part in (model, model.get_encoder()):
        shorten = getattr(part, "_get_feature_vector_attention_mask", None)
        if shorten is not None:
            found: Tensor = shorten(size[1], mask.long())
            return found.bool()
    raise ValueError(
        f"`attention_mask` {list(mask.shape)} leaves inputs out, and pybeam does not know which of the "
        f"encoder's states {list(size)} those are; give one input at a time, without padding"
    )


def _output(
    model: PreTrainedModel,
    config: GenerationConfig,
    given: Tensor,
    results: list[Result],
    num: int,
) -> ModelOutput | Tensor:
    """Return `num` sequences of each result, which belong to the prompts that were given."""
    from transformers.generation import utils

    has_beams = (config.num_beams or 1) > 1
    pad = config._pad_token_tensor
    # as in transformers: with beams a padding token 0 counts as none
    fill = int(pad) if pad is not None and (int(pad) or not has_beams) else eos_ids(config)[0]
    lines, scores = [], []
    for prompt, result in zip(given, results, strict=True):
        start = prompt[:1] if model.config.is_encoder_decoder else prompt
        for found in result.hypotheses:
            ids = torch.tensor([*found.tokens, *as_ids(found.eos_id)], dtype=torch.long)
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


def _holds_tokens(cache: Any) -> bool:
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return any(
        getattr(layer, "is_initialized", False) and layer.keys is not None for layer in layers
    )
