"""Classifier-free guidance: one model that is asked behind two prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.base import Model, Session
from pybeam.models.ensemble import Ensemble, EnsembleSession
from pybeam.models.rows import Rows
from pybeam.request import Request

if TYPE_CHECKING:
    from pybeam.compat.generate.call import Call


class Guided(Ensemble):
    """A decoder whose log-probabilities c are led away from those behind a negative prompt, u.

    Its logits are ``scale * (c - u) + u``, and a source is a pair of a prompt and a negative prompt. See
    Sanchez et al. 2023.

    Args:
        model: reads prompts.
        scale: 1 is the model alone.
    """

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__([model, model])
        self.scale = scale

    def session(self, backend: Backend) -> GuidedSession:
        members = [member.session(backend) for member in self.members]
        return GuidedSession(members, backend, self.scale)

    def check(self, source: Any) -> tuple[Any, ...]:
        return tuple(member.check(own) for member, own in zip(self.members, source, strict=True))


class GuidedSession(EnsembleSession):
    """The sessions behind the prompts and the negative prompts."""

    def __init__(self, members: Sequence[Session], backend: Backend, scale: float) -> None:
        super().__init__(members, backend)
        self._scale = scale

    def step(self, rows: Rows) -> Tensor:
        rows = dataclasses.replace(rows, wanted=None)
        asked, led_away = (member.step(rows).float().log_softmax(1) for member in self._members)
        return self._scale * (asked - led_away) + led_away


def guided(
    model: Model, scale: float, requests: Sequence[Request], call: Call
) -> tuple[Guided, list[Request]]:
    """Return the model, led away from the negative prompts, and requests of pairs.

    Args:
        model: reads prompts.
        scale: `guidance_scale`.
        requests: of prompts.
        call: has the negative prompts; without any, each is the last token of its prompt.

    Raises:
        ValueError: the model reads no prompts, or there are more or fewer negative prompts than prompts.
    """
    prompts = [request.source for request in requests]
    negative = call.negative_prompt_ids
    if negative is None:
        others = [prompt[-1:] for prompt in prompts]
    elif len(negative) == len(prompts):
        mask = call.negative_prompt_attention_mask
        mask = negative.new_ones(negative.shape) if mask is None else mask
        others = [own[real.bool()] for own, real in zip(negative, mask, strict=True)]
    else:
        raise ValueError(
            f"`negative_prompt_ids` must have a line for each of the {len(prompts)} inputs, but has "
            f"{len(negative)}"
        )
    pairs = zip(requests, prompts, others, strict=True)
    return Guided(model, scale), [
        dataclasses.replace(request, source=(prompt, other)) for request, prompt, other in pairs
    ]
