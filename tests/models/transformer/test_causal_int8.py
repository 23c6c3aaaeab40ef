"""int8 in a Qwen3: every layer follows the formula, and outputs of a model that is sure stay the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import pybeam
from support.causal_models import VOCAB, save_tiny_causal, teacher_forced
from support.session_driver import straight_line

PROMPT, OUTPUT = [5, 9, 30, 22, 14, 7], [3, 41, 17, 8, 8, 25]


def rounded(x: torch.Tensor, num_large: int = 0) -> torch.Tensor:
    """The numbers that integers stand for: multiples of a 127th of a row's largest one but so many."""
    magnitude = x.double().abs().sort(-1, descending=True).values
    most = torch.maximum(magnitude[..., num_large], magnitude[..., 0] / 128)
    step = most[..., None].clamp(min=1e-30) / 127
    return ((x.double() / step).round() * step).float()


@torch.no_grad()
def in_int8(network: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Let a network of transformers compute in int8: matrices, token table, and what they multiply."""

    def forward(linear: nn.Linear):
        weight, bias = rounded(linear.weight), linear.bias
        return lambda x: (
            F.linear(rounded(x, 4).double(), weight.double()).float()
            + (0 if bias is None else bias)
        )

    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.forward = forward(module)
    table = network.get_input_embeddings()
    rows = rounded(table.weight)
    table.forward = lambda ids: F.embedding(ids, rows)
    return network


def logits_in(dtype: str, folder) -> torch.Tensor:
    # what the other program does not round
    model = pybeam.load_model(folder, device="cpu", dtype=dtype, cache_dtype="float32")
    with torch.inference_mode():
        return straight_line(model, "native", PROMPT, [model.start_id, *OUTPUT])


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_another_program(tmp_path, tied):
    """Norms of queries and keys, gates and tied tables included; and the formula moves logits a little."""
    network = save_tiny_causal(tmp_path, "qwen3", tie_word_embeddings=tied)
    exact, found = logits_in("float32", tmp_path), logits_in("int8", tmp_path)
    right = teacher_forced(in_int8(network), PROMPT, OUTPUT)
    size = exact.std()
    assert (found - right).abs().max() <= 1e-3 * size
    assert 1e-3 * size < (found - exact).std() < 0.1 * size


def trained(folder) -> None:
    """Save a Qwen3 that has learnt to count in steps of three, and is sure of it."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8)
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    ids = dict(bos_token_id=0, eos_token_id=2, pad_token_id=1)
    config = transformers.Qwen3Config(vocab_size=VOCAB, **sizes, **heads, **ids)
    network = transformers.Qwen3ForCausalLM(config)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        first = torch.randint(3, VOCAB, (32, 1))
        lines = 3 + (first - 3 + 3 * torch.arange(12)) % (VOCAB - 3)
        optimizer.zero_grad()
        network(input_ids=lines, labels=lines).loss.backward()
        optimizer.step()
    network.eval().save_pretrained(folder)


@pytest.mark.slow
def test_outputs_of_a_model_that_is_sure_stay_as_they_are(tmp_path):
    """Random weights are not sure: there the best logit leads by less than int8 moves it."""
    trained(tmp_path)
    prompts = [[3 + 3 * i + n for i in range(4)] for n in (0, 1, 2, 7)]
    search = pybeam.fixed_beam(5, max_length=16, min_length=12)
    outputs = []
    for dtype in ("float32", "int8"):
        model = pybeam.load_model(tmp_path, device="cpu", dtype=dtype)
        results = pybeam.Decoder(model, search).decode(prompts)
        outputs.append([result.hypotheses[0].tokens for result in results])
    assert outputs[0] == outputs[1]
    assert outputs[0][0][:12] == [15 + 3 * i for i in range(10)] + [3, 6]
