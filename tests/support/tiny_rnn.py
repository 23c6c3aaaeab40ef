"""Tiny random attentional LSTMs, with a network of torch's own modules that they must agree with."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from examples.semantic_parsing.network import Network

VOCAB = 45
SIZES = dict(
    source_vocab_size=37, vocab_size=VOCAB, embedding_size=20, hidden_size=24, num_layers=2
)
CONFIG = dict(
    model_type="attentional_lstm",
    reverses_source=True,
    decoder_start_token_id=0,
    eos_token_id=2,
)


def save_tiny_rnn(directory: Path, seed: int = 0, **changes) -> Network:
    """Save a random LSTM and return its network; EOS is likely, so that hypotheses end at many lengths."""
    torch.manual_seed(seed)
    config = {**CONFIG, **SIZES, **changes}
    network = Network(**{name: config[name] for name in SIZES}).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape))
        network.output.bias[config["eos_token_id"]] += 1.0
    save_file(network.state_dict(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return network
