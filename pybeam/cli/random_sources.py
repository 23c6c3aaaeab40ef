"""Make random ids or frames as sources, which need no tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pybeam.models import Model


class SourceLength(click.ParamType):
    """An option ``E`` or ``MIN:MAX``, whole numbers from 1."""

    name = "length"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
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


def random_sources(model: Model, number: int, lengths: tuple[int, int]) -> list[Any]:
    """Make sources of random ids or frames, the same in every run, with lengths uniform between two bounds.

    Raises UsageError if sources are longer than the model can read.
    """
    import torch

    from pybeam.models import Ensemble

    members: list[Any] = list(model.members) if isinstance(model, Ensemble) else [model]
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
