"""Frequencies of rotary embeddings, under every scaling that configs of these models name.

The formulas are those of transformers (`modeling_rope_utils.py`). Angles are ``position * frequency``, and
cosines and sines are multiplied by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.models.fields import Fields

# without a field, and where a config has one base for each type of layer
THETA = 10_000.0
THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
# their names in old configs
OLD_THETAS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}


class Frequencies(NamedTuple):
    """The speeds at which the pairs of a head turn.

    Attributes:
        short: [D / 2] float32, radians per position.
        factor: of cosines and sines.
        long: [D / 2] of prompts that are longer than `short_positions`, None if they are as `short`.
        short_positions: how many positions `short` is for; None: all.
    """

    short: Tensor
    factor: float = 1.0
    long: Tensor | None = None
    short_positions: int | None = None


@dataclass(frozen=True)
class _Given:
    """The facts that a scaling depends on."""

    fields: Fields
    head_size: int
    max_positions: int
    theta: float

    @property
    def plain(self) -> Tensor:
        """``theta ** (-2 i / D)`` [D / 2], without scaling."""
        return 1.0 / self.wavelength

    @property
    def wavelength(self) -> Tensor:
        """``theta ** (2 i / D)`` [D / 2]."""
        exponent = torch.arange(0, self.head_size, 2, dtype=torch.int64).float() / self.head_size
        return self.theta**exponent

    @property
    def original_positions(self) -> int:
        """Positions that the model was trained on before it was scaled."""
        return self.fields.size("original_max_position_embeddings", self.max_positions)


def read_frequencies(
    fields: Fields,
    head_size: int,
    max_positions: int,
    layer_types: Sequence[str | None],
    *,
    may_be_partial: bool = False,
) -> tuple[Frequencies, ...]:
    """Return the frequencies of every type of layer, from the old or the new layout of a config.

    Old: `rope_theta`, `rope_scaling`, and `rope_local_base_freq` for layers with a window. New:
    `rope_parameters`, with an object per type of layer where there are several.

    Args:
        fields: the config.
        head_size: D, or the numbers of a head that are turned.
        max_positions: positions of the model.
        layer_types: types with frequencies of their own; None stands for all.
        may_be_partial: whether a config may say that a part of a head is turned.

    Raises:
        ValueError: a field is wrong, or a scaling is unknown.
    """
    return tuple(
        _read(fields, head_size, max_positions, one, may_be_partial) for one in layer_types
    )


def _read(
    fields: Fields,
    head_size: int,
    max_positions: int,
    layer_type: str | None,
    may_be_partial: bool,
) -> Frequencies:
    own, theta = _parameters(fields, layer_type)
    name = "type" if own.config.get("rope_type") is None else "rope_type"
    kind = own.choice(name, "default", SCALINGS)
    # the first files of Phi-3 call it so
    if kind == "yarn" and own.get("short_factor") is not None:
        kind = "longrope"
    if not may_be_partial:
        own.expect("partial_rotary_factor", (None, 1, 1.0))
    if kind == "longrope" and layer_type is not None:
        raise own.error("rope_type", "another one, because windows have frequencies of their own")
    # where a config has it outside, transformers prefers that
    outside = fields.config.get("original_max_position_embeddings")
    if outside is not None and layer_type is None:
        own = replace(own, config={**own.config, "original_max_position_embeddings": outside})
    given = _Given(own, head_size, max_positions, own.number("rope_theta", theta))
    return SCALINGS[kind](given)


def _parameters(fields: Fields, layer_type: str | None) -> tuple[Fields, float]:
    """Return the parameters of a type of layer, and the base where they have none."""
    name = "rope_parameters"
    if fields.config.get(name) is None or (
        layer_type is None and fields.config.get("rope_scaling")
    ):
        name = "rope_scaling"
        # in the old layout only layers without a window are scaled
        if layer_type == "sliding_attention":
            return Fields(fields.path, {}), fields.number(
                OLD_THETAS[layer_type], THETAS[layer_type]
            )
    found = fields.config.get(name)
    if found is not None and not isinstance(found, dict):
        raise fields.error(name, "an object or null")
    place, own = f"{name}.", found or {}
    default = fields.number("rope_theta", THETA if layer_type is None else THETAS[layer_type])
    if layer_type is not None and name == "rope_parameters":
        default = fields.number(OLD_THETAS[layer_type], THETAS[layer_type])
        own, place = own.get(layer_type) or {}, f"{name}.{layer_type}."
    if not isinstance(own, dict) or any(isinstance(value, dict) for value in own.values()):
        raise fields.error(name, "the parameters of one rotary embedding")
    return Fields(fields.path, own, place), default


def _default(given: _Given) -> Frequencies:
    return Frequencies(given.plain)


def _linear(given: _Given) -> Frequencies:
    return Frequencies(given.plain / given.fields.number("factor"))


def _dynamic(given: _Given) -> Frequencies:
    """The base grows with inputs longer than `max_position_embeddings`, and there are none."""
    given.fields.number("factor")
    return Frequencies(given.plain)


def _llama3(given: _Given) -> Frequencies:
    """Long wavelengths are scaled, short ones are not, and those between are mixed."""
    fields, plain, positions = given.fields, given.plain, given.original_positions
    factor, low, high = (
        fields.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if high <= low:
        raise fields.error("high_freq_factor", f"above `low_freq_factor` = {low}")
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > positions / low, plain / factor, plain)
    smooth = (positions / wavelength - low) / (high - low)
    mixed = (1 - smooth) * scaled / factor + smooth * scaled
    is_between = (wavelength >= positions / high) & (wavelength <= positions / low)
    return Frequencies(torch.where(is_between, mixed, scaled))


def _yarn(given: _Given) -> Frequencies:
    """Slow pairs are scaled, fast ones are not, with a ramp between them."""
    fields, size, positions = given.fields, given.head_size, given.original_positions
    factor = fields.number("factor", given.max_positions / positions)

    def pair(rotations: float) -> float:
        """The dimension whose pair turns so many times over the original positions."""
        turns = math.log(positions / (rotations * 2 * math.pi))
        return size * turns / (2 * math.log(given.theta))

    low, high = (pair(fields.number(name, n)) for name, n in (("beta_fast", 32), ("beta_slow", 1)))
    if fields.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001  # against a division by zero
    ramp = ((torch.arange(size // 2).float() - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    scaled = 1.0 / (factor * given.wavelength)
    return Frequencies(scaled * (1 - kept) + given.plain * kept, _yarn_factor(fields, factor))


def _yarn_factor(fields: Fields, factor: float) -> float:
    given = fields.config.get("attention_factor")
    if given is not None:
        return fields.number("attention_factor")

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if fields.config.get("mscale") and fields.config.get("mscale_all_dim"):
        return grown(fields.number("mscale")) / grown(fields.number("mscale_all_dim"))
    return grown(1)


def _longrope(given: _Given) -> Frequencies:
    """Inputs that are longer than the original positions have frequencies of their own."""
    fields, positions = given.fields, given.original_positions
    factor = fields.number("factor", given.max_positions / positions)
    own = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(positions))
    if fields.config.get("attention_factor") is not None:
        own = fields.number("attention_factor")
    short, long = (
        1.0 / (torch.tensor(fields.numbers(name, given.head_size // 2)) * given.wavelength)
        for name in ("short_factor", "long_factor")
    )
    return Frequencies(short, own, long, positions)


SCALINGS: dict[str, Callable[[_Given], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "llama3": _llama3,
}
