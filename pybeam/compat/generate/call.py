"""Arguments of transformers' `generate` that it keeps from a custom search, and streamers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationMixin

from pybeam.decoder import DecodeError, Decoder
from pybeam.engine.arrivals import IterableArrivals
from pybeam.engine.failures import Interrupted
from pybeam.engine.schedule import LoadLevel
from pybeam.request import Hypothesis, Partial, Request, Result

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel
    from transformers.generation.streamers import BaseStreamer

_CODE = inspect.unwrap(GenerationMixin.generate).__code__
# the innermost decorator around it, which is torch's; from 5.24 on there are others
_OUTER = inspect.unwrap(
    GenerationMixin.generate,
    stop=lambda outer: not hasattr(vars(outer)["__wrapped__"], "__wrapped__"),
).__code__
_SIGNATURE = inspect.signature(GenerationMixin.generate)


class Call(NamedTuple):
    """Arguments of the `generate` that is running."""

    streamer: BaseStreamer | None = None
    assistant_model: PreTrainedModel | None = None
    negative_prompt_ids: Tensor | None = None
    negative_prompt_attention_mask: Tensor | None = None
    # all that has no parameter of its own, such as `do_sample`
    kwargs: Mapping[str, Any] = {}
    # the caller's own, before the checkpoint's values are put in
    generation_config: GenerationConfig | None = None


def running() -> Call:
    """Return the arguments of the innermost `generate` that this thread is in.

    transformers 5 hands a custom search neither the streamer nor what the caller wrote, only a config in
    which the caller's options and the checkpoint's are one. So they are read where they are: in the frame.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _CODE:
        frame = frame.f_back
    if frame is None:
        return Call()
    known, outer = dict(frame.f_locals), frame.f_back
    known["generation_config"] = None
    if outer is not None and outer.f_code is _OUTER:
        args, kwargs = outer.f_locals["args"], outer.f_locals["kwargs"]
        known["generation_config"] = _SIGNATURE.bind(*args, **kwargs).arguments.get(
            "generation_config"
        )
    return Call(**{name: known[name] for name in Call._fields if name in known})


@contextmanager
def ending(streamer: BaseStreamer | None) -> Iterator[None]:
    """A context behind which the streamer has ended, whatever was raised: its reader waits for that."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


class Stops(IterableArrivals):
    """Requests that leave as soon as stopping criteria say so of their tokens.

    transformers asks about all lines of a batch at once, and pads those that are over. Here each line is
    asked about alone, without padding behind it, whenever it has a token more.

    Args:
        requests: of one row each.
        prompts: the beginnings [L] of their `input_ids`, before the tokens of hypotheses.
        criteria: ``(input_ids [1, L], scores) -> bool``, or a tensor of one; `scores` is None.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        prompts: Sequence[Tensor],
        criteria: Sequence[Callable[[Tensor, None], Any]],
    ) -> None:
        super().__init__(requests)
        self._prompts, self._criteria = prompts, criteria
        self._num_asked = [request.prefix_length for request in requests]
        self._cut: dict[int, int] = {}
        self._leaving: dict[int, Exception] = {}

    def between_steps(self, load: LoadLevel) -> Mapping[int, Exception]:
        leaving, self._leaving = self._leaving, {}
        return leaving

    def kept(self, index: int, tokens: list[int]) -> list[int]:
        """Return the tokens of a request up to where it stops."""
        while index not in self._cut and self._num_asked[index] < len(tokens):
            self._num_asked[index] += 1
            num, prompt = self._num_asked[index], self._prompts[index]
            ids = torch.cat((prompt, prompt.new_tensor(tokens[:num])))[None]
            if any(bool(criterion(ids, None)) for criterion in self._criteria):
                self._cut[index], self._leaving[index] = num, Interrupted()
        return tokens[: self._cut.get(index)]

    def ended(self, index: int, found: Hypothesis) -> Hypothesis:
        """Return a request's output as it was when it stopped."""
        tokens = self.kept(index, found.tokens)
        if index not in self._cut:
            return found
        return replace(found, tokens=tokens, ended=False, eos_id=None)


def decoded(
    decoder: Decoder,
    requests: list[Request],
    streamer: BaseStreamer | None,
    stops: Stops | None = None,
) -> list[Result]:
    """Decode, and tell the streamer each token as soon as no later step can take it back.

    Raises:
        DecodeError: a request has failed.
        ValueError: there is a streamer, and not one request.
    """
    if streamer is None and stops is None:
        return decoder.decode(requests)
    if streamer is not None and len(requests) != 1:
        raise ValueError(
            f"`streamer` follows one input, but there are {len(requests)}; generate them one at a time, or "
            "use Decoder.stream(requests, partial=True)"
        )
    # the caller has put the prefix, as it puts a prompt
    num_told = requests[0].prefix_length
    results = []
    for found in decoder.stream(requests if stops is None else stops, partial=True):
        if isinstance(found, Partial):
            tokens = found.tokens if stops is None else stops.kept(found.index, found.tokens)
        else:
            if stops is not None:
                outputs = [stops.ended(found.index, one) for one in found.hypotheses]
                found = replace(found, hypotheses=outputs)
            results.append(found)
            tokens = []
            if found.hypotheses:
                best = found.hypotheses[0]
                tokens = [*best.tokens, *([] if best.eos_id is None else [best.eos_id])]
        if streamer is not None:
            for token in tokens[num_told:]:
                streamer.put(torch.tensor([token]))
            num_told = max(num_told, len(tokens))
    results.sort(key=lambda result: result.index)
    if any(result.error is not None for result in results):
        raise DecodeError(results)
    return results
