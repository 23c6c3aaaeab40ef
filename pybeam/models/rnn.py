"""An attentional LSTM: its weights, its model and its session."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from pybeam import backends
from pybeam.backends import Backend, torch_layers
from pybeam.backends.arrays import resized
from pybeam.backends.packing import Quantised
from pybeam.backends.transfer import to_device
from pybeam.kvcache.pools import SourceCells, cells_of_pages, forget_pages
from pybeam.models.base import InProcess, Model, Session
from pybeam.models.cells import Cells
from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import Linear
from pybeam.models.row_states import RowStates
from pybeam.models.rows import Rows
from pybeam.models.source_ids import check_length, checked_ids
from pybeam.models.weights import WeightReader
from pybeam.text.json_files import MAX_LAYERS, eos_ids, positive, read_json, token_id


@dataclass(frozen=True)
class RnnConfig:
    """Shapes and facts of one checkpoint."""

    path: Path
    source_vocab_size: int
    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_layers: int  # encoder and decoder have so many each
    reverses_source: bool  # the encoder reads the last id first
    start_id: int
    eos_id: int
    other_eos_ids: tuple[int, ...] = ()

    @classmethod
    def read(cls, directory: Path, eos_id: int | Sequence[int] | None = None) -> RnnConfig:
        """Read `config.json`. Raises ValueError if a field is missing or wrong."""
        path = directory / "config.json"
        config = read_json(path)
        sizes = ("source_vocab_size", "vocab_size", "embedding_size", "hidden_size")
        found = {name: positive(path, config, name) for name in sizes}
        found["num_layers"] = positive(path, config, "num_layers", MAX_LAYERS)
        reverses_source = config.get("reverses_source", False)
        if not isinstance(reverses_source, bool):
            raise ValueError(
                f"`reverses_source` in {path} must be true or false, but is {reverses_source!r}"
            )
        generation = {} if eos_id is None else {"eos_token_id": eos_id}
        eos_id, *others = eos_ids(path, config, generation, found["vocab_size"])
        name = "decoder_start_token_id"
        start_id = token_id(name, path, config, {}, None)
        if start_id is None or not 0 <= start_id < found["vocab_size"]:
            raise ValueError(
                f"`{name}` in {path} must be a token below vocab_size = {found['vocab_size']}, "
                f"but is {start_id}"
            )
        return cls(
            path,
            **found,
            reverses_source=reverses_source,
            start_id=start_id,
            eos_id=eos_id,
            other_eos_ids=tuple(others),
        )


@dataclass(frozen=True, slots=True)
class LstmLayer:
    """One layer; gates i, f, g and o stand one after another, as in `torch.nn.LSTM`."""

    input: Linear  # [4 H, in], with both biases
    recurrent: Linear  # [4 H, H], without
    backend: Backend | None  # computes the step; None: torch, if weights are not packed

    def with_backend(self, backend: Backend) -> LstmLayer:
        """Return the same layer, computed by this backend module."""
        return LstmLayer(
            self.input.with_backend(backend),
            self.recurrent.with_backend(backend),
            backend if self.backend is not None else None,
        )

    def __call__(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state [n, H] after one step; `gates` = input(x) [n, 4 H]."""
        kernels = torch_layers if self.backend is None else self.backend
        return kernels.lstm_cell(self.recurrent.add(gates, hidden), cell)


@dataclass(frozen=True, slots=True)
class LstmStack:
    """The encoder or the decoder."""

    token_table: Tensor | Quantised  # [V, embedding]
    layers: Sequence[LstmLayer]

    def with_backend(self, backend: Backend) -> LstmStack:
        """Return the same stack, computed by this backend module."""
        return LstmStack(self.token_table, [layer.with_backend(backend) for layer in self.layers])

    def embed(self, token: Tensor) -> Tensor:
        """Return the embeddings [n, embedding] of tokens [n]."""
        table = self.token_table
        return F.embedding(token, table) if isinstance(table, Tensor) else table.rows(token)


class RnnSources(Model):
    """A model whose sources are sequences of token ids, used as they are, of up to `max_tokens`."""

    config: RnnConfig

    def check(self, source: Any) -> Tensor:
        """Return the ids as an int64 tensor [E] on the host.

        Raises:
            TypeError: the source is not a sequence of integers.
            ValueError: it is not one-dimensional, longer than `max_tokens`, or an id is out of range.
        """
        check_length(source, self.max_tokens)
        return checked_ids(source, self.config.source_vocab_size)

    def source_length(self, source: Tensor) -> int:
        """Number of ids."""
        return source.numel()


class Rnn(InProcess, RnnSources):
    """An LSTM that reads the source, and a second one that writes and attends to what the first has read.

    Made by `pybeam.load_model`.

    The decoder starts from the encoder's final state. With ``s_e`` the encoder's last layer at position e and
    ``d_t`` the decoder's: ``a = softmax_e(s_e . d_t)``, ``c = sum_e a_e s_e``,
    ``logits = W tanh(U [d_t; c] + u) + w``. A source is a sequence of token ids, used as it is. There are
    no positions, but a request may have up to `max_tokens`.

    See Dong and Lapata 2016, section 3.
    """

    can_capture = True
    can_draft = False  # a row needs the state of the row before it
    max_positions = None

    def __init__(
        self,
        config: RnnConfig,
        encoder: LstmStack,
        decoder: LstmStack,
        attention: Linear,
        output: Linear,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.encoder, self.decoder = config, encoder, decoder
        # [H, 2 H], tanh(U y + u) of the decoder's state and what it attends to
        self.attention = attention
        self.output = output  # [V, H]
        self.dtype = dtype  # dtype of states and logits
        self.weight_dtype = weight_dtype  # dtype of matrices and token tables
        self.device = device
        self.vocab_size = config.vocab_size
        self.start_id, self.eos_id = config.start_id, config.eos_id
        self.other_eos_ids = config.other_eos_ids

    def __repr__(self) -> str:
        config = self.config
        weights = "" if self.weight_dtype == self.dtype else f", {self.weight_dtype} weights"
        return (
            f"Rnn({config.num_layers}+{config.num_layers} layers, H={config.hidden_size}, "
            f"V={self.vocab_size}, {self.dtype}{weights}, {self.device})"
        )

    def session(self, backend: Backend) -> RnnSession:
        """Make a fresh session that computes with this backend module."""
        return RnnSession(self.with_backend(backend), backend)

    def with_backend(self, backend: Backend) -> Rnn:
        """Return a model with the same weights, computed by this backend module."""
        model = copy.copy(self)
        model.encoder = self.encoder.with_backend(backend)
        model.decoder = self.decoder.with_backend(backend)
        model.attention = self.attention.with_backend(backend)
        model.output = self.output.with_backend(backend)
        return model


class LstmSession(Session):
    """Keep the state of every row, which follows its hypothesis, and encoder states once per source."""

    def __init__(
        self, config: RnnConfig, dtype: torch.dtype, device: torch.device, backend: Backend
    ) -> None:
        self._config, self._device, self._backend = config, device, backend
        # hidden and cell state of each layer
        shape = (config.num_layers, 2, config.hidden_size)
        self._states = RowStates(shape, dtype, device, backend)
        # [cells, 1, H]
        self._pool = torch.zeros(0, 1, config.hidden_size, dtype=dtype, device=device)
        self._source = SourceCells(device)

    @abstractmethod
    def _read(self, sources: Sequence[Tensor], cells: Tensor) -> Tensor:
        """Encode sources that have tokens. States go to cells [n]; return last states [A, layers, 2, H]."""

    @abstractmethod
    def _write(self, rows: Rows, old: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [R, V] of rows in these states [R, layers, 2, H], and their next states."""

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._states.reserve(num_slots, width)
        self._source.reserve(num_slots)

    def buffers(self) -> Sequence[Tensor]:
        return self._states.memory, self._pool, self._source.cell, self._source.length

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        """Return the bytes of encoder states. The states of rows are not counted."""
        return cells_of_pages(source_length) * self._config.hidden_size * self._pool.itemsize

    def release(self, slots: Sequence[int]) -> None:
        forget_pages([self._pool], self._source.release(slots))
        self._states.forget(slots)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        begin = self._states.begin(slots)  # [S, layers, 2, H]
        lengths = [source.numel() for source in sources]
        cells = self._source.allocate(slots, lengths)
        if self._source.num_cells > self._pool.shape[0]:
            room = max(self._source.num_cells, 2 * self._pool.shape[0])
            self._pool = resized(self._pool, (room, *self._pool.shape[1:]))
        kept = [a for a, length in enumerate(lengths) if length]
        if not kept:
            return
        states = self._read([sources[a] for a in kept], cells)
        begin[to_device([slots[a] for a in kept], torch.long, self._device)] = states

    def step(self, rows: Rows) -> Tensor:
        logits, new = self._write(rows, self._states.read(rows))
        self._states.write(rows, new)
        return logits

    def advance(self, source: Tensor, target: Tensor) -> None:
        self._states.advance(source, target)


class RnnSession(LstmSession):
    """A decode call of an `Rnn`."""

    def __init__(self, model: Rnn, backend: Backend) -> None:
        super().__init__(model.config, model.dtype, model.device, backend)
        self._model = model

    def _read(self, sources: Sequence[Tensor], cells: Tensor) -> Tensor:
        model, device = self._model, self._device
        ids = [source.flip(0) if self._config.reverses_source else source for source in sources]
        # first tokens of all sources, longest source first, then second tokens: each step is a slice
        packed = pack_sequence(ids, enforce_sorted=False)
        lengths = [source.numel() for source in sources]
        place = pack_sequence(torch.arange(cells.numel()).split(lengths), False)
        assert packed.unsorted_indices is not None
        x = model.encoder.embed(to_device(packed.data, torch.long, device))  # [n, embedding]
        state = x.new_zeros(len(sources), *self._states.memory.shape[3:])
        for layer, (hidden, cell) in zip(
            model.encoder.layers, (one.unbind(1) for one in state.unbind(1)), strict=True
        ):
            given = []
            for gates in layer.input(x).split(packed.batch_sizes.tolist()):
                n = gates.shape[0]
                after = layer(gates, hidden[:n], cell[:n])
                hidden[:n], cell[:n] = after
                given.append(after[0])
            x = torch.cat(given)  # [n, H]
        cells = cells.index_select(0, to_device(place.data, torch.long, device))
        self._backend.scatter_rows(self._pool, cells, x[:, None])
        return state[packed.unsorted_indices.to(device)]

    def _write(self, rows: Rows, old: Tensor) -> tuple[Tensor, Tensor]:
        model = self._model
        x = model.decoder.embed(rows.token)  # [R, embedding]
        new = []
        for layer, (hidden, cell) in zip(
            model.decoder.layers, (one.unbind(1) for one in old.unbind(1)), strict=True
        ):
            x, cell = layer(layer.input(x), hidden, cell)
            new += [x, cell]
        cells = Cells.of_encoder(rows, self._source)
        mixed = cells.attend(self._backend, x[:, None], self._pool, self._pool, 1.0)  # [R, 1, H]
        logits = model.output(model.attention(torch.cat((x, mixed[:, 0]), 1)))  # [R, V]
        return logits, torch.stack(new, 1).view_as(old)


def build_rnn(
    config: RnnConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype | None
) -> Rnn:
    """Assemble the model from `config.json` and its weights; arguments as for `load_model`.

    Tensors: ``{encoder,decoder}.embedding.weight``, ``{encoder,decoder}.lstm.`` with torch's names,
    ``attention.{weight,bias}`` and ``output.{weight,bias}``.

    Raises:
        ValueError: a file, field or tensor is missing or wrong.
    """
    d, h = config.embedding_size, config.hidden_size
    reader = WeightReader(checkpoint, device, dtype, "encoder.embedding.weight")
    native = backends.resolve("auto", device) if reader.is_packed else None

    def linear(
        name: str, bias: Tensor | None, *shape: int, activation: str | None = None
    ) -> Linear:
        return reader.linear(reader.matrix([name], *shape, is_layer=True), bias, activation)

    def stack(name: str, vocab_size: int) -> LstmStack:
        layers = []
        for i in range(config.num_layers):
            biases = [
                reader.vector(f"{name}.lstm.bias_{part}_l{i}", 4 * h) for part in ("ih", "hh")
            ]
            layers.append(
                LstmLayer(
                    linear(
                        f"{name}.lstm.weight_ih_l{i}", biases[0] + biases[1], 4 * h, h if i else d
                    ),
                    linear(f"{name}.lstm.weight_hh_l{i}", None, 4 * h, h),
                    native,
                )
            )
        table = reader.table(reader.matrix([f"{name}.embedding.weight"], vocab_size, d))
        if isinstance(table, Tensor):
            table = table.to(reader.dtype)
        return LstmStack(table, layers)

    return Rnn(
        config,
        encoder=stack("encoder", config.source_vocab_size),
        decoder=stack("decoder", config.vocab_size),
        attention=linear(
            "attention.weight", reader.vector("attention.bias", h), h, 2 * h, activation="tanh"
        ),
        output=reader.linear(
            reader.matrix(["output.weight"], config.vocab_size, h),
            reader.vector("output.bias", config.vocab_size),
        ),
        dtype=reader.dtype,
        weight_dtype=reader.weight_dtype,
        device=device,
    )
