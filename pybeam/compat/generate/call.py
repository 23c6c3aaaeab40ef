"""Arguments of transformers' `generate` that it keeps from a custom search, and streamers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationMixin

from pybeam.decoder import DecodeError, Decoder
from pybeam.request import Partial, Request, Result

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer

_CODE = inspect.unwrap(GenerationMixin.generate).__code__


class Call(NamedTuple):
    """Arguments of the `generate` that is running."""

    streamer: BaseStreamer | None
    options: Mapping[str, Any]  # all that has no parameter of its own, such as `do_sample`


def running() -> Call:
    """Return the arguments of the innermost `generate` that this thread is in.

    transformers 5 hands a custom search neither the streamer nor what the caller wrote, only a config in
    which the caller's options and the checkpoint's are one. So they are read where they are: in the frame.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _CODE:
        frame = frame.f_back
    if frame is None:
        return Call(None, {})
    return Call(frame.f_locals.get("streamer"), frame.f_locals.get("kwargs", {}))


@contextmanager
def ending(streamer: BaseStreamer | None) -> Iterator[None]:
    """A context behind which the streamer has ended, whatever was raised: its reader waits for that."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


def decoded(
    decoder: Decoder, requests: list[Request], streamer: BaseStreamer | None
) -> list[Result]:
    """Decode, and tell the streamer each token as soon as no later step can take it back.

    Raises:
        DecodeError: a request has failed.
        ValueError: there is a streamer, and not one request.
    """
    if streamer is None:
        return decoder.decode(requests)
    if len(requests) != 1:
        raise ValueError(
            f"`streamer` follows one input, but there are {len(requests)}; generate them one at a time, or "
            "use Decoder.stream(requests, partial=True)"
        )
    (request,) = requests
    # the caller has put the prefix, as it puts a prompt
    num_told = request.prefix_length
    results = []
    for found in decoder.stream(requests, partial=True):
        if isinstance(found, Partial):
            tokens = found.tokens
        else:
            results.append(found)
            tokens = []
            if found.hypotheses:
                best = found.hypotheses[0]
                tokens = [*best.tokens, *([] if best.eos_id is None else [best.eos_id])]
        for token in tokens[num_told:]:
            streamer.put(torch.tensor([token]))
        num_told = max(num_told, len(tokens))
    if any(result.error is not None for result in results):
        raise DecodeError(results)
    return results
