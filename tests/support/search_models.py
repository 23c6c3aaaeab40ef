"""Random `FunctionModel`s: the next logits are a fixed random function of the whole prefix."""

from functools import cache

import torch

from pybeam.models import FunctionModel

BOS, EOS = 0, 1


def random_model(
    seed: int,
    vocab_size: int = 7,
    *,
    levels: int | None = None,
    eos_bonus: float = 0.0,
    minus_inf: float = 0.0,
    contexts: int = 997,
) -> FunctionModel:
    """A model whose logits depend on source and prefix through a hash.

    With `levels`, logits take that many values only, so that ties abound; `minus_inf` is the
    share of tokens that cannot follow.
    """
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(contexts, vocab_size, generator=generator) * 1.5
    if levels is not None:
        table = (table * levels / 3).round() * 3 / levels
    table[:, EOS] += eos_bonus
    if minus_inf:
        mask = torch.rand(contexts, vocab_size, generator=generator) < minus_inf
        mask[:, EOS] = False
        table = table.masked_fill(mask, -torch.inf)
    return FunctionModel(lambda *rows: table[context(*rows, contexts)], vocab_size, BOS, EOS)


def context(prefixes, lengths, source_ids, contexts: int) -> torch.Tensor:
    """[R] hash of source and prefix: `code = code * 131 + token + 1` for each token, modulo `contexts`."""
    num_tokens = prefixes.shape[1]
    powers = _powers(contexts, num_tokens).to(lengths.device)
    lengths = lengths.long()
    # [R, T] how many tokens are behind this one
    behind = lengths.view(-1, 1) - 1 - torch.arange(num_tokens, device=lengths.device)
    # what is not of the prefix means nothing
    codes = torch.where(behind < 0, 0, powers[behind.clamp(min=0)] * (prefixes.long() + 1))
    return (powers[lengths.flatten()] * (source_ids.long() * 31 + 7) + codes.sum(1)) % contexts


@cache
def _powers(contexts: int, num_tokens: int) -> torch.Tensor:
    """[T + 1] powers of 131, modulo `contexts`."""
    return torch.tensor([pow(131, t, contexts) for t in range(num_tokens + 1)])


def next_logits(model: FunctionModel, source: int, tokens: list[int]) -> torch.Tensor:
    """Logits [V] after these generated tokens, straight from the model's function."""
    prefix = torch.tensor([[BOS, *tokens]])
    return model.fn(prefix, torch.tensor([prefix.shape[1]]), torch.tensor([source]))[0]


def constant_model(log_probs: list[float]) -> FunctionModel:
    row = torch.tensor(log_probs)
    return FunctionModel(lambda prefixes, *_: row.repeat(len(prefixes), 1), len(row), BOS, EOS)
