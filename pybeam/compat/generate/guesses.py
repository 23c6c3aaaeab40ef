"""Prompt lookup and assistants of transformers, as guesses: outputs are those of greedy search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pybeam import drafts
from pybeam.backends.arrays import MOST_NGRAM
from pybeam.compat.generate.options import as_ids
from pybeam.contracts import MASK_WIDTH
from pybeam.decoder import Decoder
from pybeam.drafts import Draft, Initialiser
from pybeam.models.huggingface import wrap
from pybeam.models.huggingface.model import HuggingFaceModel
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.search.beams import greedy

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

# guesses of one step, if the config does not say how many
NUM_GUESSES = 20


def guessing(
    config: GenerationConfig,
    algorithm: Algorithm,
    model: HuggingFaceModel,
    requests: Sequence[Request],
    assistant: PreTrainedModel | None,
    inputs: Sequence[Tensor],
) -> tuple[Algorithm, list[Request]]:
    """Let the search guess as many tokens ahead as pay, and verify them.

    Prompt lookup looks them up in the prompt and the output. An assistant decodes all inputs beforehand, and
    its outputs are the guesses.

    Args:
        config: may ask for prompt lookup.
        algorithm: of one row.
        model: the one that is searched; one that cannot verify guesses has none.
        requests: of the model.
        assistant: another model with the same tokens, if there is one.
        inputs: what the assistant reads, for each request.
    """
    if not model.can_draft:
        return algorithm, list(requests)
    num, initialiser = config.prompt_lookup_num_tokens, None
    if assistant is not None:
        num = config.num_assistant_tokens or NUM_GUESSES
        requests, initialiser = _assisted(algorithm, model, requests, assistant, inputs)
    elif num:
        initialiser = drafts.ngram_lookup(min(config.max_matching_ngram_size or 2, MOST_NGRAM))
    if initialiser is None:
        return algorithm, list(requests)
    draft = Draft(max_window=min(1 + int(num), MASK_WIDTH), initialiser=initialiser)
    # a schedule has room for more, which would make guesses dear
    draft = draft.for_sources(len(requests))
    return dataclasses.replace(algorithm, draft=draft), list(requests)


def _assisted(
    algorithm: Algorithm,
    model: HuggingFaceModel,
    requests: Sequence[Request],
    assistant: PreTrainedModel,
    inputs: Sequence[Tensor],
) -> tuple[list[Request], Initialiser]:
    """Return numbered requests, and what the assistant guesses of each."""
    start_id = model.start_id if model.is_encoder_decoder else None
    own = wrap(assistant, start_id=start_id, eos_id=model.eos_ids)
    asked = [Request(one, r.prefix) for one, r in zip(inputs, requests, strict=True)]
    search = greedy(min_length=algorithm.min_length, max_length=algorithm.max_length)
    guesses: list[list[int]] = []
    for request, result in zip(
        asked, Decoder(own, search).decode(asked, on_error="return"), strict=True
    ):
        # one that it cannot decode has no guesses
        outputs = [[*one.tokens, *as_ids(one.eos_id)] for one in result.hypotheses]
        guesses.append(outputs[0][request.prefix_length :] if outputs else [])
    numbered = [dataclasses.replace(request, id=i) for i, request in enumerate(requests)]
    return numbered, drafts.function(lambda request: guesses[request.id])
