"""A decoder-only transformer: its weights, and a decode call of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend, torch_layers
from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device
from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.prefixes import PrefixCells
from pybeam.models.base import Model
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear
from pybeam.models.prompts import PromptPool, Prompts
from pybeam.models.rows import Rows
from pybeam.models.source_ids import checked_ids
from pybeam.models.transformer.built_in import BuiltIn
from pybeam.models.transformer.causal_config import CausalConfig
from pybeam.models.transformer.layers import Stack
from pybeam.models.transformer.reading import Block, Span, blocks
from pybeam.models.transformer.running import Inputs, Seen, StackRunner, StackSession

# Keys and values of prompts that no source uses any more, kept for prompts that begin in the same way.
PREFIX_CACHE_BYTES = 1 << 28


class CausalTransformer(BuiltIn, Model):
    """A decoder of the `FAMILIES` of `pybeam.models.transformer.families`; made by `pybeam.load_model`.

    A source is a prompt, a sequence of token ids, used as it is. Hypotheses continue it and do not contain
    it. Prompts that begin with the same tokens share keys and values, which are computed once.

    Args:
        config: shapes and facts of the checkpoint.
        stack: the layers.
        output: the output layer.
        dtype: dtype of activations and logits.
        weight_dtype: dtype of matrices and token tables.
        device: where the weights are.

    Attributes:
        prefix_cache_bytes: the most memory for keys and values of prompts that no source uses any more.
            They are kept for later prompts that begin in the same way. It counts beside `memory_limit`.
    """

    def __init__(
        self,
        config: CausalConfig,
        stack: Stack,
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
        # rows are sent to experts by what they are, and the host reads that
        self.can_capture = config.stack.experts is None
        if device.type != "cpu":
            # a captured step must not fill tables
            for table in stack.rotary:
                table.fill(config.max_positions)
        self.prefix_cache_bytes = PREFIX_CACHE_BYTES

    def __repr__(self) -> str:
        config = self.config
        return (
            f"{type(self).__name__}({config.model_type}, {config.stack.num_layers} layers, "
            f"d={config.stack.hidden_size}, V={self.vocab_size}, {self._dtypes}, {self.device})"
        )

    def session(self, backend: Backend) -> CausalSession:
        """Make a fresh session that computes with this backend module."""
        return CausalSession(self.with_backend(backend), backend)

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
        long_row = self.long_row
        is_short = long_row is not None and not self.first_row(source)
        limit = long_row if is_short and long_row else self.config.max_positions
        return limit - source.numel() + 1

    @property
    def long_row(self) -> int | None:
        """Where long inputs have frequencies of their own, the row of rotary tables for their position 0."""
        return self.stack.rotary[0].long_row if self.stack.rotary else None

    def first_row(self, source: Tensor) -> int:
        """Return the row of rotary tables that belongs to position 0 of a checked source."""
        long_row = self.long_row
        return long_row if long_row is not None and source.numel() > long_row else 0


class CausalSession(StackSession):
    """Keys and values of prompts, shared by all that begin in the same way, and of what continues them."""

    def __init__(self, model: CausalTransformer, backend: Backend) -> None:
        self.model, self._backend, stack = model, backend, model.stack
        self._decoder = StackRunner(backend, stack, model.output)
        self.chooses = self._decoder.shortcut is not None
        heads = len(stack.layers), stack.num_key_heads, stack.head_size
        self._pool = PromptPool(*heads, model.cache_dtype, model.device)
        num_idle = model.prefix_cache_bytes // (PAGE_CELLS * self._pool.cell_bytes)
        self._cells = PrefixCells(model.device, num_idle)
        self._prompts = Prompts(self._pool, self._cells, needs_positions=stack.has_distances)
        # [S] int32, of tables of positions: the row of position 0 of each slot
        self._first_row = torch.zeros(0, dtype=torch.int32, device=model.device)
        self._longest = 0  # tokens of a prompt so far, the last one not counted

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
        self._longest = max(self._longest, *(prompt.numel() for prompt in prompts))
        # the last token, which is not read here, makes an input long, too
        self._fill(1 + self._longest)
        waits = self._backend.prompt_attention is torch_layers.prompt_attention
        if self.replay is not None and not waits:
            # only a GPU has graphs
            from pybeam.models.transformer.captured import read

            read(spans, self._read_block, self.replay, self.model.device)
            return
        for block in blocks(spans, self.model.device):
            self._read_block(block)

    def _read_block(self, block: Block) -> None:
        self._prompts.place(self._backend, block.cell, block.position)
        seen = Seen(block.cells, self._pool, block.cell, block.position)
        self._decoder.write((block.token, block.place), seen)

    def _seen(self, rows: Rows, own: Cells) -> tuple[Inputs, Seen, None]:
        prompts, pool, tree = self._prompts, self._pool, rows.tree
        # guesses may stand behind the longest hypothesis that there is room for
        self._fill(self._longest + tree.length + tree.row_node.shape[1])
        if self._decoder.program is not None:
            inputs, position = (rows.token, rows.position), rows.position
            seen = Seen(own, pool, rows.cell, prompts=(*prompts.given(rows), self._first_row))
        else:
            token, position, place, cells = prompts.begin(self._backend, rows, own, self._first_row)
            inputs, seen = (token, place), Seen(cells, pool, rows.cell)
        if prompts.needs_positions:
            seen = seen._replace(position=position, cell_position=pool.position[:, 0])
        return inputs, seen, None

    def _fill(self, num_positions: int) -> None:
        for table in self.model.stack.rotary:
            table.fill(num_positions)
