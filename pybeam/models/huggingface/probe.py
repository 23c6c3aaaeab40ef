"""Find out how a model can keep keys and values, by decoding a few tokens."""

from __future__ import annotations

import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from pybeam import backends
from pybeam.backends import Backend
from pybeam.backends.arrays import tree_survivors
from pybeam.backends.inference import inferring
from pybeam.backends.waiting import HostReadGuard, NoWaiting
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.base import Session
from pybeam.models.huggingface.attention import CannotAttend
from pybeam.models.huggingface.dense import DenseSession, can_be_padded
from pybeam.models.huggingface.encoding import EncoderOutput, encoded, padded
from pybeam.models.huggingface.model import EncoderStates, Heads, HuggingFaceModel, Memory
from pybeam.models.huggingface.positions import measured_biases, module_of
from pybeam.models.huggingface.sessions import (
    EncoderDecoderSession,
    PromptSession,
    decoder_layers,
    prompt_layers,
)
from pybeam.models.rows import Rows

# Errors of logits, relative to the largest logit. They allow for rounding and are far below what a wrong
# position or mask does.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
# tokens that are fed on trial: the second source lags behind by two, and four steps hold rows of both
NUM_TOKENS = 5
# by device, dtype and way: what a network can do, and what stands in the way of something better
Findings = dict[object, tuple[Memory, str | None]]
_known: weakref.WeakKeyDictionary[PreTrainedModel, Findings] = weakref.WeakKeyDictionary()


@inferring
def wrap(
    network: PreTrainedModel, start_id: int | None, eos_id: int | Sequence[int] | None, cache: str
) -> HuggingFaceModel:
    """See `pybeam.models.huggingface.wrap`."""
    name = type(network).__name__
    if not isinstance(network, PreTrainedModel) or not isinstance(network, GenerationMixin):
        raise TypeError(
            f"`network` must be a transformers model that generates, such as "
            f"AutoModelForCausalLM.from_pretrained gives, but is {name}"
        )
    if network.training:
        raise ValueError(
            "`network` is in training mode, where it drops units; call `.eval()` first"
        )
    if cache not in ("auto", "tree", "dense"):
        raise ValueError(f"`cache` must be 'auto', 'tree' or 'dense', but is {cache!r}")
    model = HuggingFaceModel(network, start_id, eos_id, _session)
    known = _known.setdefault(network, {})
    key = network.device, network.dtype, cache
    with model.lock:
        if key not in known:
            known[key] = _memory(model, ("tree", "dense") if cache == "auto" else (cache,))
    memory, hindrance = known[key]
    model.keep(memory)
    if hindrance is not None:
        warnings.warn(
            f"{name} keeps a dense cache per row, which moves on every step and is slow: {hindrance}",
            stacklevel=4,
        )
    return model


def _session(model: HuggingFaceModel, backend: Backend) -> Session:
    """A fresh session of the kind that the model needs."""
    if model.memory.keeps == "dense":
        return DenseSession(model, backend)
    if model.is_encoder_decoder:
        return EncoderDecoderSession(model, backend)
    return PromptSession(model, backend)


def _memory(model: HuggingFaceModel, ways: Sequence[str]) -> tuple[Memory, str | None]:
    """Return the first of these ways in which the model can keep its cache, and why earlier ones failed."""
    obstacles: dict[str, str] = {}
    for keeps in ways:
        for memory in _dense_ways(model) if keeps == "dense" else (None,):
            obstacle = _try(model, memory)
            if obstacle is None:
                return model.memory, obstacles.get("tree")
            obstacles[keeps] = obstacle
    problem = "; ".join(obstacles.values())
    are_wrong = "logits are wrong" in obstacles[ways[-1]]
    if are_wrong and not model.is_encoder_decoder and not _is_causal(model):
        problem = (
            "without a cache its logits change with the tokens behind them; does its config lack "
            "`is_decoder`?"
        )
    raise ValueError(f"{type(model.network).__name__} cannot be searched by pybeam: {problem}")


def _dense_ways(model: HuggingFaceModel) -> Iterator[Memory]:
    yield Memory("dense", pads=True)
    yield Memory("dense")
    # Kosmos-2.5 counts from its padding id on, and would look up what it is told
    if "position_ids" in model.parameters:
        yield Memory("dense", is_told=False)


def _is_causal(model: HuggingFaceModel) -> bool:
    """Whether logits do not depend on later tokens. They do in BERT, unless `is_decoder` is True."""
    long = _sources(model)[0][None].to(model.device)
    found, alone = (
        model.network(ids, use_cache=False).logits[0, 0].float() for ids in (long, long[:, :1])
    )
    tolerance = TOLERANCE[model.network.dtype] * float(alone.abs().max())
    return float((found - alone).abs().max()) <= tolerance


def _try(model: HuggingFaceModel, memory: Memory | None) -> str | None:
    """Say why the model cannot keep its cache in this way, or without one in a tree; None if it can."""
    keeps = memory.keeps if memory else "tree"
    try:
        if memory and memory.pads and not can_be_padded(model):
            return "its lines cannot be padded"
        model.keep(memory or _measured(model))
        expected = [_without_cache(model)]
        if keeps == "dense" and model.is_encoder_decoder:
            # ProphetNet has other logits with a cache than without one, and `generate` uses one
            expected.append(_one_by_one(model))
        found, obstacle = _in_steps(model)
    except CannotAttend as error:
        return str(error)
    # a network may fail in any way at what it does not take
    except Exception as error:
        return f"with a {keeps} cache it fails ({_failure(error)})"
    tolerance = TOLERANCE[model.network.dtype] * max(float(own.abs().max()) for own in found)
    off = min(
        max(float((ours - own).abs().max()) for ours, own in zip(found, logits, strict=True))
        for logits in expected
    )
    if not off <= tolerance:
        return f"with a {keeps} cache its logits are wrong by up to {off:.3g}"
    model.keep(model.memory._replace(obstacle=obstacle))
    return None


def _obstacle(model: HuggingFaceModel, step: Callable[[], Tensor]) -> str | None:
    """Say why no CUDA graph may hold this step, which the model has taken before; None if one may.

    All that it computes must follow from tensors of the device.
    """
    memory = model.memory
    if memory.keeps == "dense":
        return "its dense cache moves with its rows"
    if memory.biases is not None and not memory.biases.are_bounded:
        return "its relative positions have no `relative_attention_max_distance`"
    try:
        with _never_waiting(model.network):
            step()
    # whatever is wrong, the step works without a graph
    except Exception as error:
        return _failure(error)
    return None


def _failure(error: Exception) -> str:
    """Return the kind of an exception, and its text or the line of code that raised one without a text."""
    text = str(error)
    if not text:
        place = traceback.extract_tb(error.__traceback__)[-1]
        # there is no code where a module was compiled elsewhere
        code = f"`{place.line}`" if place.line else f"line {place.lineno}"
        text = f"{code} in `{place.name}` of {Path(place.filename).name}"
    return f"{type(error).__name__}: {text}"


@contextmanager
def _never_waiting(network: PreTrainedModel) -> Iterator[None]:
    """A context in which calls of the network raise `Waits` where they would wait for the device."""
    own = vars(network).get("forward")
    forward = network.forward

    def guarded(**given: Any) -> Any:
        with NoWaiting(), HostReadGuard():
            return forward(**given)

    network.forward = guarded
    try:
        yield
    finally:
        del network.forward
        if own is not None:
            network.forward = own


def _measured(model: HuggingFaceModel) -> Memory:
    """Find the shapes of the keys and values that the model keeps of a token."""
    if not model.network._can_set_attn_implementation():
        raise CannotAttend("its attention does not go through transformers' AttentionInterface")
    if model.is_encoder_decoder:
        looks_up = module_of(model.decoder) is not None and model.max_positions is not None
        biases = None
        if not looks_up and "decoder_position_ids" not in model.parameters:
            biases = measured_biases(model)
        batch = next(encoded(model, _sources(model)[:1]))
        own, cross = decoder_layers(model, batch.states)
        config = model.network.config.get_text_config(decoder=True)
        is_windowed = any(DynamicCache(config=config).is_sliding)
        return Memory("tree", _heads(own), _heads(cross), is_windowed, biases, looks_up)
    own = _heads(prompt_layers(model, *padded(model, _sources(model)[:1])))
    is_windowed = any(DynamicCache(config=model.network.config).is_sliding)
    return Memory("tree", own, is_windowed=is_windowed)


def _heads(layers: Sequence[Any]) -> Heads:
    """Return the shape of keys and values. Raises CannotAttend if it is not the same for all layers."""
    shapes = {
        (states.shape[1], states.shape[3], states.dtype)
        for layer in layers
        if layer.keys is not None
        for states in (layer.keys, layer.values)
    }
    if not shapes or any(layer.keys is None for layer in layers):
        raise CannotAttend("it does not keep keys and values of every layer in its cache")
    if len(shapes) > 1:
        raise CannotAttend(
            "its layers, or keys and values, differ in their number or size of heads"
        )
    return Heads(len(layers), *shapes.pop())


def _sources(model: HuggingFaceModel) -> list[Any]:
    """Make two inputs, of different lengths if the model takes any length."""
    vocab_size = model.vocab_size
    if model.is_encoder_decoder and not model.takes_features:
        vocab_size = model.embeddings.num_embeddings
    if not model.takes_features:
        return [_tokens(6, vocab_size, 3), _tokens(3, vocab_size, 5)]
    generator = torch.Generator().manual_seed(7)
    if model.feature_shape:
        shapes = [[size or other for size in model.feature_shape] for other in (40, 24)]
        return [torch.randn(shape, generator=generator) for shape in shapes]
    # it is not known what the encoder takes, but what it gives
    assert model.encoder is not None
    width = model.encoder.config.hidden_size
    states = [torch.randn(num, width, generator=generator) for num in (6, 3)]
    return [EncoderStates(own.to(model.device, model.network.dtype)) for own in states]


def _tokens(num: int, vocab_size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (num,), generator=generator)


def _targets(model: HuggingFaceModel) -> list[Tensor]:
    """The tokens that are fed after the start token, or after the prompt."""
    targets = [_tokens(NUM_TOKENS, model.vocab_size, seed) for seed in (11, 13)]
    if model.pad_id is not None:
        # in some models the padding token has no position
        targets[0][-1] = model.pad_id
    return targets


def _without_cache(model: HuggingFaceModel) -> list[Tensor]:
    """Return the logits [T, V] behind every token of both sources, each from one call without a cache."""
    logits = []
    for source, target in zip(_sources(model), _targets(model), strict=True):
        if model.is_encoder_decoder:
            states = EncoderOutput(next(encoded(model, [source])).states)
            fed = torch.cat((torch.tensor([model.start_id]), target))[None].to(model.device)
            # some networks would hide what looks like padding, but only without a cache
            name = "decoder_attention_mask"
            inputs = {name: torch.ones_like(fed)} if name in model.parameters else {}
            out = model.network(
                encoder_outputs=states, decoder_input_ids=fed, use_cache=False, **inputs
            )
        else:
            fed = torch.cat((source, target))[None].to(model.device)
            mask = torch.ones_like(fed)
            out = model.network(input_ids=fed, attention_mask=mask, use_cache=False)
        logits.append(out.logits[0, -NUM_TOKENS - 1 :].float().cpu())
    return logits


def _one_by_one(model: HuggingFaceModel) -> list[Tensor]:
    """Return the same logits from calls on one token each, with the model's own cache that nothing moves."""
    logits = []
    for source, target in zip(_sources(model), _targets(model), strict=True):
        states = EncoderOutput(next(encoded(model, [source])).states)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        outs = [
            model.network(
                encoder_outputs=states,
                decoder_input_ids=torch.tensor([[token]], device=model.device),
                use_cache=True,
                **{model.cache_name: cache},
            )
            for token in (model.start_id, *target.tolist())
        ]
        logits.append(torch.cat([out.logits[0, -1:] for out in outs]).float().cpu())
    return logits


def _in_steps(model: HuggingFaceModel) -> tuple[list[Tensor], str | None]:
    """Return the same logits from a session, and what keeps its steps from being captured.

    The second source always lags behind the first.
    """
    backend = backends.resolve("auto", model.device)
    trial, tree = model.session(backend), TokenTree(backend, model.device)
    slots, targets = [1, 2], _targets(model)
    tree.reserve(3, 2, NUM_TOKENS + 2)
    tree.reserve_pages(4 * tree.pages_of(1))
    trial.reserve(3, 2, tree.num_cells)
    trial.encode([model.check(source) for source in _sources(model)], [0, 1], slots)

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=model.device)

    tree.open(ints(*slots), model.start_id)
    logits: list[list[Tensor]] = [[], []]
    for t in range(NUM_TOKENS + 3):
        moving = [i for i in (0, 1) if 0 <= t - 2 * i <= NUM_TOKENS]
        slot = ints(*(slots[i] for i in moving))
        fed = [[model.start_id, *targets[i].tolist()][t - 2 * i] for i in moving]
        rows = Rows(
            tree=tree,
            slot=slot,
            offset=ints(*range(len(moving) + 1)),
            token=ints(*fed),
            position=ints(*(t - 2 * i for i in moving)),
            row_slot=slot,
            entry=slot * 0,
            node=tree.row_node[slot.long(), 0],
            cell=tree.row_cell[slot.long(), 0],
            longest=NUM_TOKENS + 2,
            prefix_length=ints(0, 0, 0),
            max_length=ints(0, 0, 0),
            min_length=ints(0, 0, 0),
            eos_ids=(-1,),
        )
        for i, own in zip(moving, trial.step(rows), strict=True):
            logits[i].append(own.float().cpu())
        if t == NUM_TOKENS:
            obstacle = _obstacle(model, partial(trial.step, rows))
        following = [i for i in moving if t - 2 * i < NUM_TOKENS]
        if following:
            slot = ints(*(slots[i] for i in following))
            token = ints(*(int(targets[i][t - 2 * i]) for i in following))[:, None]
            log_prob = torch.zeros(token.shape, device=model.device)
            # to the one row of each slot
            tree.append(slot, tree_survivors(token, torch.zeros_like(token), log_prob), -1)
            trial.advance(2 * slot, 2 * slot)
    needs = getattr(trial, "windows", None)
    if model.memory.is_windowed and needs is not None and not needs:
        raise CannotAttend("its layers have windows, but do not tell the attention function")
    return [torch.stack(own) for own in logits], obstacle
