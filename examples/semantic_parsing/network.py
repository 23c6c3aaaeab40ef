"""The network of `pybeam.models.rnn`, written with torch's modules so that it can be trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Stack(nn.Module):
    """Token table and LSTM of the encoder or the decoder."""

    def __init__(self, vocab_size: int, embedding_size: int, hidden_size: int, num_layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.lstm = nn.LSTM(embedding_size, hidden_size, num_layers, batch_first=True)


class Network(nn.Module):
    """The attentional LSTM of Dong and Lapata 2016, section 3. `pybeam.load_model` reads its state dict.

    The arguments are those of `config.json`, and `dropout`, which applies to embeddings and to the
    outputs of LSTMs.
    """

    def __init__(
        self,
        source_vocab_size: int,
        vocab_size: int,
        embedding_size: int,
        hidden_size: int,
        num_layers: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = Stack(source_vocab_size, embedding_size, hidden_size, num_layers)
        self.decoder = Stack(vocab_size, embedding_size, hidden_size, num_layers)
        self.attention = nn.Linear(2 * hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, vocab_size)
        self._dropout = dropout

    def forward(self, source: Tensor, length: Tensor, target: Tensor) -> Tensor:
        """Teacher-forced logits [B, T, V].

        Args:
            source: [B, E] in reading order (reversed where the config says so), padded on the right.
            length: [B] ids of each source, on the host.
            target: [B, T] start token, then tokens, padded on the right.
        """
        x = self._drop(self.encoder.embedding(source))
        packed = pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
        packed, state = self.encoder.lstm(packed)
        states, _ = pad_packed_sequence(packed, batch_first=True)  # [B, E, H]
        y, _ = self.decoder.lstm(self._drop(self.decoder.embedding(target)), state)  # [B, T, H]
        y = self._drop(y)
        weight = y @ states.transpose(1, 2)  # [B, T, E]
        is_padding = torch.arange(states.shape[1]) >= length[:, None]
        weight = weight.masked_fill(is_padding.to(weight.device)[:, None], -torch.inf).softmax(2)
        mixed = torch.tanh(self.attention(torch.cat((y, weight @ states), 2)))  # [B, T, H]
        return self.output(self._drop(mixed))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self._dropout, self.training)
