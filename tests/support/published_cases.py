"""A class of transformers with its default config: it is searched as by `generate`, or refused."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import pybeam
from pybeam.models.huggingface import wrap
from pybeam.models.transformer.config import FAMILIES
from pybeam.models.transformer.families import FAMILIES as CAUSAL_FAMILIES
from pybeam.text.seeing import SEEING
from support.published_classes import CannotBuild, generative_classes, networks

# model types that `load_model` knows
BUILT_IN = {*FAMILIES, *CAUSAL_FAMILIES, *SEEING}
SEARCHES = {"greedy": {}, "beams": dict(num_beams=4, num_return_sequences=2)}
# whatever transformers' own `generate` takes, if the config does not say what its model takes
SHAPES = (
    (80, 3000),
    (128, 3000),
    (40, 80),
    (40, 128),
    (16000,),
    (3, 224, 224),
    (3, 384, 384),
    (32, 770),
)
SPECIAL = re.compile(r".*(token_id|token_index|token)s?")
# the text of an error says sizes and numbers too, which are nobody's concern
NUMBER = re.compile(r"(?<!\w)-?\d+(\.\d+)?(e-?\d+)?(?!\w)")
# the row has the name already
PREFACE = re.compile(r"^\w+ cannot be searched by pybeam: ")


def outcome(name: str) -> dict[str, Any]:
    """Say what pybeam does with this class, and compare its searches with those of `generate`.

    Returns:
        `how`: "tree" or "dense", the cache with which the class is searched; "refused" by pybeam; or
        "not tried", because there is no network, or transformers itself generates nothing with it. `why`: in
        the last two cases.

    Raises:
        AssertionError: a search is not that of `generate`.
    """
    try:
        with _silently():
            return _outcome(name)
    except CannotBuild as error:
        return dict(how="not tried", why=f"{error}")


def _outcome(name: str) -> dict[str, Any]:
    why = "transformers generates nothing with it here"
    for place, network in enumerate(networks(name)):
        # other sizes help where layers are of several kinds, and not where nobody knows what features to give
        if place and network.main_input_name != "input_ids":
            break
        if not isinstance(network, transformers.GenerationMixin):
            return dict(how="not tried", why="transformers gives it no `generate`")
        missing = _missing(network)
        for given in _inputs(network):
            options = dict(missing, max_new_tokens=6, do_sample=False, return_dict_in_generate=True)
            try:
                expected = _generated(network, given, options)
            # the next input or network may do
            except Exception as error:
                why = f"`generate` of transformers fails ({type(error).__name__}: {_line(error)})"
                continue
            try:
                found = _generated(network, given, options, custom_generate=pybeam.generate)
            except ValueError as error:
                return dict(how="refused", why=_line(error))
            _assert_same(name, found, expected)
            model = wrap(
                network,
                eos_id=missing.get("eos_token_id"),
                start_id=missing.get("decoder_start_token_id"),
            )
            return dict(how=model.memory.keeps)
    return dict(how="not tried", why=why)


def _generated(network: Any, given: dict, options: dict, **more: Any) -> dict[str, Any]:
    # classes such as Whisper have a `generate` of their own around this one
    generate = transformers.GenerationMixin.generate
    return {
        search: generate(network, **given, **options, **own, output_scores=True, **more)
        for search, own in SEARCHES.items()
    }


def _assert_same(name: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    for search, own in expected.items():
        assert found[search].sequences.tolist() == own.sequences.tolist(), (name, search)
    torch.testing.assert_close(
        found["beams"].sequences_scores, expected["beams"].sequences_scores, atol=1e-3, rtol=1e-3
    )


def _missing(network: Any) -> dict[str, int]:
    """Special tokens that the config does not name, so that a caller must give them."""
    config, missing = network.generation_config, {}
    if config.eos_token_id is None:
        missing["eos_token_id"] = 2
    if network.config.is_encoder_decoder and config.decoder_start_token_id is None:
        if config.bos_token_id is None:
            missing["decoder_start_token_id"] = 0
    return missing


def _inputs(network: Any) -> Iterator[dict[str, Tensor]]:
    """Yield what may be two inputs of this network: features, if that is what it takes, or text."""
    generator = torch.Generator().manual_seed(1)
    config, name = network.config, network.main_input_name
    if name != "input_ids":
        own = (
            getattr(config, "num_mel_bins", 80),
            2 * (getattr(config, "max_source_positions", None) or 1500),
        )
        for shape in (own, *SHAPES):
            yield {name: torch.rand(2, *shape, generator=generator)}
    table = _table_of_ids(network)
    if table is None:
        return
    num = min(table.num_embeddings, 30_000)
    special = set(_special(config.to_dict()))
    words = [
        word
        for word in torch.randint(3, num, (400,), generator=generator).tolist()
        if word not in special
    ]
    ids = torch.tensor(words[:12]).view(2, 6)
    mask = torch.ones_like(ids)
    if config.is_encoder_decoder:
        mask[1, 4:] = 0
    yield dict(input_ids=ids, attention_mask=mask)


def _table_of_ids(network: Any) -> Any:
    """Return the embeddings of the ids that this network takes, or None."""
    parts = [network.get_encoder()] if network.config.is_encoder_decoder else []
    if network.main_input_name == "input_ids":
        parts.append(network)
    for part in parts:
        # the encoder may take no ids, or not know its table
        with suppress(AttributeError, NotImplementedError):
            if hasattr(part.get_input_embeddings(), "num_embeddings"):
                return part.get_input_embeddings()
    return None


def _special(values: dict[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _special(value)
        elif SPECIAL.fullmatch(str(name)):
            yield from [value] if isinstance(value, int) else value or ()


def _line(error: Exception) -> str:
    lines = f"{error}".strip().splitlines() or [""]
    return NUMBER.sub("N", PREFACE.sub("", lines[0]))


class _silently:
    """A context in which networks warn of nothing: with random weights and odd inputs they do."""

    def __enter__(self) -> None:
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        self._level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity(logging.CRITICAL)

    def __exit__(self, *error: object) -> None:
        transformers.logging.set_verbosity(self._level)
        self._warnings.__exit__(*error)


def loads_natively(name: str, directory: Path) -> bool:
    """Whether `load_model` reads what this class saves. If so, and it takes text, its beams are compared.

    Raises:
        AssertionError: the beams are not those of `generate`, or the reason why it is not read is not true.
    """
    with _silently():
        if name not in generative_classes(BUILT_IN):
            getattr(transformers, name).config_class().save_pretrained(directory)
            with pytest.raises(ValueError, match=r"`model_type` in .* must be one of"):
                pybeam.load_model(directory)
            return False
        network = next(networks(name))
        network.generation_config.update(**_missing(network))
        network.save_pretrained(directory)
        if network.config.model_type in FAMILIES and not network.config.is_encoder_decoder:
            with pytest.raises(ValueError, match=r"`is_encoder_decoder` in .* must be true"):
                pybeam.load_model(directory)
            return False
        model = pybeam.load_model(directory)
        if network.main_input_name == "input_ids":
            _assert_same_beams(name, network, model)
    return True


def _assert_same_beams(name: str, network: Any, model: pybeam.models.Model) -> None:
    (given,) = _inputs(network)
    ids, config = given["input_ids"], network.generation_config
    # one input at a time, so that nothing is padded
    for line, mask in zip(ids, given["attention_mask"], strict=True):
        source = line[mask.bool()]
        options = dict(max_new_tokens=6, num_beams=4, do_sample=False)
        expected = network.generate(source[None], **options)[0].tolist()
        forces = config.forced_eos_token_id is not None
        search = pybeam.compat.huggingface.beam_search(4, max_new_tokens=6, forced_eos=forces)
        (best,) = pybeam.Decoder(model, search).decode([source])[0].hypotheses
        begin = 1 if network.config.is_encoder_decoder else len(source)
        assert expected[begin : begin + len(best.tokens)] == best.tokens, name
