"""Folders with tiny random Wav2Vec2 networks, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

LETTERS = "|EATHS'"
VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {
    letter: 4 + i for i, letter in enumerate(LETTERS)
}
CONFIG: dict[str, Any] = dict(
    vocab_size=len(VOCABULARY),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    conv_dim=(16, 24, 16),
    conv_kernel=(10, 3, 2),
    conv_stride=(5, 2, 2),
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=4,
)


def write_wav2vec2(directory: Path, seed: int = 0, **changes: Any) -> Any:
    """Save a network with a CTC layer, and the files of its processor; return the network."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(seed)
    network = Wav2Vec2ForCTC(Wav2Vec2Config(**CONFIG | changes)).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn_like(weight)
    network.save_pretrained(directory)
    files = {
        "vocab.json": VOCABULARY,
        "tokenizer_config.json": dict(tokenizer_class="Wav2Vec2CTCTokenizer"),
        "preprocessor_config.json": dict(
            feature_extractor_type="Wav2Vec2FeatureExtractor",
            feature_size=1,
            sampling_rate=16000,
            do_normalize=True,
        ),
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return network


def sounds(*lengths: int, seed: int = 1) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [0.3 * torch.randn(num, generator=made) for num in lengths]
