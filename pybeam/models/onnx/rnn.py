"""An exported attentional LSTM: graphs compute, and the state of rows moves as in `Rnn`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.onnx.graphs import ExportedModel, counted, padded, places
from pybeam.models.rnn import LstmSession, RnnConfig, RnnSources
from pybeam.models.rows import Rows


class OnnxRnn(RnnSources, ExportedModel):
    """An `Rnn` that `pybeam.load_model` found as ONNX graphs."""

    can_draft = False
    max_positions = None

    def __init__(self, config: RnnConfig) -> None:
        super().__init__(config)
        self.config = config
        state = (None, config.num_layers, 2, config.hidden_size)
        self.encoder.check(2, {"states": (None, None, config.hidden_size), "last": state})
        self.decoder.check(7, {"logits": (None, self.vocab_size), "new_state": state})

    def __repr__(self) -> str:
        return f"OnnxRnn(V={self.vocab_size}, {self.config.path.parent})"

    def session(self, backend: Backend) -> OnnxRnnSession:
        """Make a fresh session. This backend module moves its states."""
        return OnnxRnnSession(self, backend)


class OnnxRnnSession(LstmSession):
    """A decode call of an `OnnxRnn`: graphs compute the products, a backend module moves the states."""

    def __init__(self, model: OnnxRnn, backend: Backend) -> None:
        super().__init__(model.config, model.dtype, model.device, backend)
        self._model = model

    def _read(self, sources: Sequence[Tensor], cells: Tensor) -> Tensor:
        token, length = padded(sources)
        states, last = self._model.encoder((token, length), "states", "last")
        kept = counted(token.shape[1], length)  # [B, E]
        self._pool[cells.long(), 0] = states[kept]
        return last

    def _write(self, rows: Rows, old: Tensor) -> tuple[Tensor, Tensor]:
        logits, new = old.new_empty(len(old), self._model.vocab_size), torch.empty_like(old)
        num_rows = int(rows.offset[-1])
        if not num_rows:
            return logits, new
        slot = rows.slot.long()
        length = self._source.length[slot]  # [A]
        cell = self._source.cell[slot, : max(1, int(length.max()))].long()  # [A, E]
        mask = counted(cell.shape[1], length)
        # unused places must name a cell, too, whose numbers count 0 times, and so must be numbers
        own = torch.where(length[:, None] > 0, cell[:, :1], cell[length.argmax(), 0])
        known = torch.where(mask, cell, own), mask, self._pool[:, 0]
        token, place = rows.token[:num_rows].long(), places(rows.offset, num_rows)
        inputs = token, old[:num_rows], *place, *known
        self._model.decoder(inputs, logits=logits[:num_rows], new_state=new[:num_rows])
        return logits, new
