"""Tables of position embeddings. Row i belongs to the i-th token, whatever the family's offset."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pybeam.models.transformer.config import TransformerConfig

# such a table follows from a formula: no file shows how large it should be; models have a few millions
MAX_NUMBERS = 1 << 26


def position_offset(config: TransformerConfig) -> int:
    """Return how many rows of the family's own table come before the first token."""
    offsets = {
        "learned": 2,
        "stored": 0,
        "sinusoidal": config.pad_id + 1,
        "marian": 0,
        "interleaved": 0,
    }
    return offsets[config.family.positions]


def skips_padding(config: TransformerConfig) -> bool:
    """Whether a padding token inside a hypothesis has no position, or another one than other tokens."""
    return config.family.positions == "sinusoidal"


def with_padding(config: TransformerConfig, table: Tensor) -> Tensor:
    """Return a decoder's table [positions, d] with the rows of padding tokens behind those of all others.

    The original models, decoding token by token, add nothing to a padding token, or in FSMT the position of
    the token before it. All other tokens count every token before them, padding too.
    """
    padded = torch.zeros_like(table)
    if config.model_type == "fsmt":
        padded[1:] = table[:-1]
    return torch.cat((table, padded))


def sinusoidal_table(config: TransformerConfig, num_positions: int | None = None) -> Tensor:
    """Compute the family's table [offset + num_positions, hidden_size], float32; None: those of the decoder.

    "sinusoidal" is tensor2tensor's: frequencies ``10000 ** (-j / (d / 2 - 1))``; "marian" is the
    paper's: ``10000 ** (-2 j / d)``. Both put the sines first and the cosines after them. "interleaved" has
    the paper's frequencies, and the sine and the cosine of each side by side.
    """
    if num_positions is None:
        num_positions = config.max_positions
        assert num_positions is not None
    num = position_offset(config) + num_positions
    d = config.hidden_size
    if num * d > MAX_NUMBERS:
        raise ValueError(
            f"positions, `pad_token_id` and `d_model` in {config.path} must give a table of at most "
            f"{MAX_NUMBERS:,} numbers, but are {num_positions}, {config.pad_id} and {d}"
        )
    if config.family.positions == "marian":
        exponent = torch.arange((d + 1) // 2, dtype=torch.float64) * 2 / d
        position = torch.arange(num, dtype=torch.float64)
        angle = position[:, None] / 10000**exponent  # [num, (d + 1) // 2]
        return torch.cat((angle.sin(), angle[:, : d // 2].cos()), dim=1).float()
    if config.family.positions == "interleaved":
        return interleaved_table(num, d)
    return tensor2tensor_table(num, d)


def tensor2tensor_table(num_positions: int, size: int) -> Tensor:
    """Compute [positions, d] float32: the sines of ``i * 10000 ** (-j / (d / 2 - 1))``, then the cosines."""
    half = size // 2
    # float32 throughout, as the models were trained
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angle = torch.arange(num_positions).float()[:, None] * frequency  # [num, half]
    table = torch.cat((angle.sin(), angle.cos()), dim=1)
    return torch.nn.functional.pad(table, (0, size % 2))


def interleaved_table(num_positions: int, size: int) -> Tensor:
    """Compute [positions, d] float32: sine and cosine of ``i * 10000 ** (-2 j / d)`` in turn; d is even."""
    # float32 throughout, as the models were trained
    exponent = torch.tensor(10000.0).log().item() / size
    frequency = torch.exp(torch.arange(0, size, 2).float() * -exponent)  # [d / 2]
    angle = torch.arange(num_positions).float()[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)
