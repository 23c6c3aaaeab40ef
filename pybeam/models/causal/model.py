"""A decoder-only transformer: its weights, and a decode call of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import resized
from pybeam.backends.defaults import write_nodes
from pybeam.backends.layer_program import CausalProgram
from pybeam.backends.transfer import to_device
from pybeam.contracts import PAGE_CELLS, NewNodes
from pybeam.kvcache.prefixes import PrefixCells
from pybeam.models.base import InProcess, Model, Session
from pybeam.models.causal.attention import Seen
from pybeam.models.causal.config import CausalConfig
from pybeam.models.causal.fused import fused
from pybeam.models.causal.layers import CausalLayer, CausalStack
from pybeam.models.causal.reading import Span, blocks
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.norms import RMSNorm
from pybeam.models.prompts import PromptPool, Prompts
from pybeam.models.residual import add_and_norm
from pybeam.models.rows import Rows
from pybeam.models.source_ids import checked_ids

# Keys and values of prompts that no source uses any more, kept for prompts that begin in the same way.
PREFIX_CACHE_BYTES = 1 << 28


class CausalTransformer(InProcess, Model):
    """Qwen 2 and 3, Llama, Mistral, Gemma 2 and 3; made by `pybeam.load_model`.

    A source is a prompt, a sequence of token ids, used as it is. Hypotheses continue it and do not contain
    it. Prompts that begin with the same tokens share keys and values, which are computed once.

    Args:
        config: shapes and facts of the checkpoint.
        stack: the layers.
        output: the output layer.
        dtype: dtype of activations, keys and values, and logits.
        weight_dtype: dtype of matrices and token tables.
        device: where the weights are.

    Attributes:
        prefix_cache_bytes: the most memory for keys and values of prompts that no source uses any more.
            They are kept for later prompts that begin in the same way. It counts beside `memory_limit`.
    """

    can_capture = True

    def __init__(
        self,
        config: CausalConfig,
        stack: CausalStack,
        output: Linear,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.stack, self.output = config, stack, output
        self.dtype, self.weight_dtype, self.device = dtype, weight_dtype, device
        self.vocab_size, self.pad_id = config.vocab_size, config.pad_id
        self.eos_id, *others = config.eos_ids
        self.other_eos_ids = tuple(others)
        # the prompt's last token stands in for the start token
        self.start_id = self.eos_id
        self.max_positions = config.max_positions
        if device.type != "cpu":
            # a captured step must not fill tables
            for table in stack.rotary:
                table.fill(config.max_positions)
        self.prefix_cache_bytes = PREFIX_CACHE_BYTES

    def __repr__(self) -> str:
        config = self.config
        weights = "" if self.weight_dtype == self.dtype else f", {self.weight_dtype} weights"
        return (
            f"{type(self).__name__}({config.model_type}, {config.num_layers} layers, "
            f"d={config.hidden_size}, V={self.vocab_size}, {self.dtype}{weights}, {self.device})"
        )

    def session(self, backend: Backend) -> CausalSession:
        """Make a fresh session that computes with this backend module."""
        return CausalSession(self.with_backend(backend), backend)

    def with_backend(self, backend: Backend) -> Self:
        """Return a model with the same weights, computed by this backend module."""
        model = copy.copy(self)
        model.stack = self.stack.with_backend(backend)
        model.output = self.output.with_backend(backend)
        return model

    def check(self, source: Any) -> Tensor:
        """Return the ids as an int64 tensor [P] on the host.

        Raises:
            TypeError: the source is not a sequence of integers.
            ValueError: it is not one-dimensional, too long, or an id is out of range.
        """
        ids = checked_ids(source, self.vocab_size)  # [P]
        limit = self.config.max_positions
        if ids.numel() > limit:
            raise ValueError(
                f"`source` must have at most {limit} ids (`max_position_embeddings`), but has "
                f"{ids.numel()}; shorten the prompt"
            )
        return ids

    def source_length(self, source: Tensor) -> int:
        """Number of ids."""
        return source.numel()

    def prompt(self, source: Tensor) -> Tensor:
        """Return the source."""
        return source.int()

    def room(self, source: Tensor) -> int:
        """Return the positions that are left, the prompt's last one counted.

        Where long inputs have frequencies of their own, a short prompt stays a short input.
        """
        long_row = self.stack.rotary[0].long_row
        is_short = long_row is not None and not self.first_row(source)
        limit = long_row if is_short and long_row else self.config.max_positions
        return limit - source.numel() + 1

    def first_row(self, source: Tensor) -> int:
        """Return the row of rotary tables that belongs to position 0 of a checked source."""
        long_row = self.stack.rotary[0].long_row
        return long_row if long_row is not None and source.numel() > long_row else 0


class CausalSession(Session):
    """Keys and values of prompts, shared by all that begin in the same way, and of what continues them."""

    def __init__(self, model: CausalTransformer, backend: Backend) -> None:
        self.model, self._backend, stack = model, backend, model.stack
        self._program = fused(backend, stack, model.output)
        heads = len(stack.layers), stack.num_key_heads, stack.head_size
        self._pool = PromptPool(*heads, model.dtype, model.device)
        num_idle = model.prefix_cache_bytes // (PAGE_CELLS * self._pool.cell_bytes)
        self._cells = PrefixCells(model.device, num_idle)
        has_windows = any(layer.window is not None for layer in stack.layers)
        self._prompts = Prompts(self._pool, self._cells, needs_positions=has_windows)
        # [S] int32, of rotary tables: the row of position 0 of each slot
        self._first_row = torch.zeros(0, dtype=torch.int32, device=model.device)
        # kept between steps, because on a CPU fresh memory of this size costs a page fault every few rows
        self._logits = torch.empty(0, model.vocab_size, dtype=model.dtype, device=model.device)

    @cached_property
    def _states(self) -> CausalProgram:
        """The stack without its output layer."""
        states = fused(self._backend, self.model.stack, None)
        assert states is not None, "there is one with the output layer"
        return states

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._prompts.reserve(num_slots, num_cells)
        self._first_row = resized(self._first_row, (num_slots,))

    def release(self, slots: Sequence[int]) -> None:
        self._prompts.release(slots)

    def buffers(self) -> Sequence[Tensor]:
        return *self._prompts.buffers(), self._first_row

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        return self._prompts.max_bytes(num_cells, source_length)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        model, cells = self.model, self._cells
        self._prompts.keep_last(sources, slots)
        first_rows = [model.first_row(source) for source in sources]
        index = to_device(slots, torch.long, model.device)
        self._first_row.index_copy_(0, index, to_device(first_rows, torch.int32, model.device))
        prompts = [source[:-1] for source in sources]
        # inputs whose rotary embeddings differ share nothing
        placed = cells.place(slots, [prompt.tolist() for prompt in prompts], first_rows)
        try:
            self._pool.grow_prompts(cells.num_cells)
            self._read(prompts, slots, placed.num_known, first_rows)
        except BaseException:
            cells.forget(placed.new_pages)
            raise

    def _read(
        self,
        prompts: Sequence[Tensor],
        slots: Sequence[int],
        num_known: Sequence[int],
        first_rows: Sequence[int],
    ) -> None:
        """Compute keys and values of these prompts, behind the first `num_known` tokens of each."""
        spans = [
            Span(
                prompt, self._pool.of_prompts(torch.tensor(self._cells.cells(slot))).tolist(), *rest
            )
            for prompt, slot, *rest in zip(prompts, slots, num_known, first_rows, strict=True)
        ]
        # the last token, which is not read here, makes an input long, too
        self._fill(1 + max(prompt.numel() for prompt in prompts))
        for block in blocks(spans, self.model.device):
            self._prompts.place(self._backend, block.cell, block.position)
            seen = Seen(block.cells, block.position, None)
            self._run(self._program, None, block.token, block.rotary_row, block.cell, seen)

    def step(self, rows: Rows) -> Tensor:
        token, position = self._prompts.begin(self._backend, rows)  # [R]
        cells, longest = self._prompts.visible(rows, position)
        if longest is not None:
            self._fill(longest)
        row = position + self._first_row[rows.row_slot.long()]
        at = self._pool.position[:, 0] if self._prompts.needs_positions else None
        out, seen = self._logits_of(token.shape[0]), Seen(cells, position, at)
        if self._program is None or rows.wanted is None:
            self._run(self._program, out, token, row, rows.cell, seen)
            return out  # [R, V]
        x = torch.empty(token.shape[0], self.model.stack.hidden_size)
        self._run(self._states, x, token, row, rows.cell, seen)
        return self._some_logits(x, rows.wanted, out)

    def _some_logits(self, x: Tensor, wanted: Tensor, out: Tensor) -> Tensor:
        """Return the logits of states x [R, d] in `out` [R, V]; tokens that nobody reads may be missing."""
        model = self.model
        assert isinstance(model.output, PackedLinear), "others are not fused"
        out, cap = model.output.some(x, wanted, out), model.stack.output_soft_cap
        if cap is not None:
            column = torch.unique(wanted.long())
            capped = out[:, column]
            self._backend.soft_cap(capped, cap)
            out[:, column] = capped
        return out

    def _run(
        self,
        program: CausalProgram | None,
        out: Tensor | None,
        token: Tensor,
        row: Tensor,
        cell: Tensor,
        seen: Seen,
    ) -> None:
        """Send rows through all layers.

        Args:
            program: runs them; None: one operator after another does.
            out: [R, V], takes the logits, or [R, d] the states, if the program has no output layer; None:
                only keys and values are wanted.
            token: [R] int32.
            row: [R] int32, of rotary tables.
            cell: [R] int32, where keys and values go; -1: nowhere.
            seen: what the rows see.
        """
        if program is not None:
            at = seen.position if seen.is_prompt or self._prompts.needs_positions else None
            memory, cells = self._pool.memory, seen.cells.given
            program.run(out, token, row, memory, cell, cells, at, seen.cell_position)
            return
        model, stack = self.model, self.model.stack
        x = stack.embed(token)  # [R, d]
        norms = [layer.self_norm for layer in stack.layers] + [stack.final_norm]
        y = norms[0](x)
        for i, layer in enumerate(stack.layers):
            query, new = self._projected(layer, y, row, cell)
            pool = self._pool.key[i], self._pool.value[i]
            if out is None and i + 1 == len(stack.layers):
                write_nodes(self._backend.scatter_rows, *pool, new)
                return
            y = seen.attend(self._backend, stack, layer, query, pool, new)
            own = layer.self_out, layer.after_self_norm
            x, y = self._joined(*own, layer.inner_norm, x, y.flatten(1))
            y = stack.gate(layer.gate_up(y))  # [R, F]
            own = layer.inner_out, layer.after_inner_norm
            x, y = self._joined(*own, norms[i + 1], x, y)
        assert out is not None
        model.output(y, out)
        if stack.output_soft_cap is not None:
            self._backend.soft_cap(out, stack.output_soft_cap)

    def _joined(
        self, linear: Linear, after: RMSNorm | None, norm: RMSNorm, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add ``after(linear(y))`` to the states x [R, d]. Returns them and their norm [R, d]."""
        if after is None:
            return add_and_norm(self._backend, linear, norm, x, y)
        x = x.add_(after(linear(y)))
        return x, norm(x)

    def _projected(
        self, layer: CausalLayer, y: Tensor, row: Tensor, cell: Tensor
    ) -> tuple[Tensor, NewNodes]:
        """Return the queries [R, H, D] of rows whose normalised states are y [R, d], and their new nodes."""
        stack = self.model.stack
        qkv = layer.qkv(y).view(y.shape[0], -1, stack.head_size)
        heads, key_heads = stack.num_heads, stack.num_key_heads
        query, key, value = qkv.split((heads, key_heads, key_heads), 1)
        query, key = query.contiguous(), key.contiguous()
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = layer.query_norm(query), layer.key_norm(key)
        query, key = (stack.turn(layer, part, row) for part in (query, key))
        return query, NewNodes(key, value, cell)

    def _fill(self, num_positions: int) -> None:
        for table in self.model.stack.rotary:
            table.fill(num_positions)

    def _logits_of(self, num_rows: int) -> Tensor:
        """Return memory [R, V] for the logits of so many rows."""
        if self._logits.is_cuda:
            return self._logits.new_empty(num_rows, self.model.vocab_size)
        if self._logits.shape[0] < num_rows:
            self._logits = self._logits.new_empty(num_rows, self.model.vocab_size)
        return self._logits[:num_rows]
