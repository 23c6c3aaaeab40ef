"""What is decoded while profiling: lines of a file, or random ids or frames, which need no tokenizer."""

from __future__ import annotations

from itertools import islice

import click
import torch

from pybeam.cli.job import open_input
from pybeam.cli.lines import LineReader, Sources
from pybeam.models.ensemble import Ensemble
from pybeam.models.transformer.model import Transformer
from pybeam.request import Request
from pybeam.text.tokenizer import Tokenizer


class SourceLength(click.ParamType):
    """``E`` or ``MIN:MAX``, whole numbers from 1."""

    name = "length"

    def convert(self, value, param, ctx) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        low, _, high = value.partition(":")
        try:
            bounds = int(low), int(high or low)
        except ValueError:
            bounds = (0, 0)
        if not 1 <= bounds[0] <= bounds[1]:
            self.fail(
                "must be a number of tokens such as 32, or two such as 10:60, the smaller one "
                f"first, but is {value!r}"
            )
        return bounds


def read_lines(
    path: str, tokenizer: Tokenizer, max_tokens: int | None, num_lines: int | None
) -> list[Request]:
    """The first `num_lines` lines of a file (None: all) as requests."""
    with open_input(path) as file:
        sources = Sources(
            LineReader(file.fileno()),
            tokenizer,
            max_tokens,
            lambda text: click.echo(text, err=True),
        )
        requests = []
        while not sources.has_ended and (num_lines is None or len(requests) < num_lines):
            left = None if num_lines is None else num_lines - len(requests)
            requests += islice(sources.run(), left)
    if sources.error is not None:
        raise click.ClickException(sources.error)
    if not any(len(request.source) for request in requests):
        raise click.ClickException(
            f"--input {path} must have a line that is not empty, but has none; leave it out for "
            "random sources"
        )
    return requests


def random_sources(model: Transformer | Ensemble, number: int, lengths: tuple[int, int]) -> list:
    """Sources of random ids or frames, the same in every run; lengths are uniform between the two."""
    members = model.members if isinstance(model, Ensemble) else [model]
    if (
        not model.takes_features
        and model.max_positions is not None
        and lengths[1] > model.max_positions
    ):
        raise click.UsageError(
            f"--source-length must be at most the model's {model.max_positions} positions, "
            f"but is {lengths[1]}"
        )
    generator = torch.Generator().manual_seed(0)
    length = torch.randint(lengths[0], lengths[1] + 1, (number,), generator=generator)  # [n]
    if model.takes_features:
        num_features = members[0].config.front.num_features
        return [torch.randn(size, num_features, generator=generator) for size in length.tolist()]
    vocabulary = min(member.config.source_vocab_size for member in members)
    return [
        torch.randint(vocabulary, (size,), generator=generator).tolist() for size in length.tolist()
    ]
