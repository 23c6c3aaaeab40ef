"""Shift-reduce parsers as pybeam models: of dependencies, and of constituents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import pybeam
from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device
from pybeam.kvcache.pools import SourceCells
from pybeam.models.base import Model, Session
from pybeam.models.linear import PackedLinear, PlainLinear, can_pack
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor

SHIFT, LEFT, RIGHT, NEVER = range(4)
# of constituents; NAME stands for the two kinds behind it
COMBINE, NAME, NAMED, NO_SPAN = 1, 2, 3, 4
INT = torch.int32
# the network looks at the top three words of the stack and at the first word of the buffer
NUM_FEATURES = 4
# a stack always has three words to look at: under the root lie two places that stand for no word
BASE = 2
# columns of a parser state: size of the stack, first word of the buffer, words on the stack
DEPTH, FIRST, STACK = 0, 1, 2


class Actions:
    """Number the actions: SHIFT is 0, then LEFT and RIGHT with each relation, then the start token.

    The start token also stands for EOS, which no derivation contains.
    """

    def __init__(self, relations: Sequence[str]) -> None:
        self.relations = list(relations)
        num = len(self.relations)
        self.start_id = 2 * num + 1
        self.vocab_size = 2 * num + 2
        self.kinds = [SHIFT, *[LEFT] * num, *[RIGHT] * num, NEVER]
        # what an action adds to the stack
        self.moves = [1, *[-1] * 2 * num, 0]

    @staticmethod
    def num_actions(num_words: int) -> int:
        """Number of actions that build a tree."""
        return 2 * num_words

    def id_of(self, kind: int, relation: str) -> int:
        return (
            0
            if kind == SHIFT
            else 1 + self.relations.index(relation) + (kind == RIGHT) * len(self.relations)
        )

    def action_of(self, token: int) -> tuple[int, str]:
        kind = self.kinds[token]
        return kind, "" if kind == SHIFT else self.relations[(token - 1) % len(self.relations)]


def legal(num_shifts: Tensor, num_actions: Tensor, num_words: Tensor) -> Tensor:
    """Say which kinds of action may follow [n, 4], so that 2n actions always build one tree.

    All arguments are counts [n].
    """
    depth = 2 * num_shifts - num_actions  # words on the stack
    has_next = num_shifts < num_words
    # the root has one dependent, and gets it with the last action
    may_reduce = (depth >= 2) | ((depth == 1) & ~has_next)
    never = torch.zeros_like(has_next)
    return torch.stack((has_next, (depth >= 1) & has_next, may_reduce, never), 1)


class SpanActions:
    """Number the actions: SHIFT is 0, COMBINE 1, no label 2, then the labels, then the start token.

    The start token also stands for EOS, which no derivation contains.
    """

    def __init__(self, relations: Sequence[str]) -> None:
        self.relations = list(relations)
        num = len(self.relations)
        self.start_id = num + 3
        self.vocab_size = num + 4
        self.kinds = [SHIFT, COMBINE, NAME, *[NAMED] * num, NO_SPAN]
        # what an action adds to the stack
        self.moves = [1, -1, *[0] * (num + 2)]

    @staticmethod
    def num_actions(num_words: int) -> int:
        """Number of actions that build a tree."""
        return 4 * num_words - 2

    def id_of(self, kind: int, label: str) -> int:
        if kind == NAME:
            return 3 + self.relations.index(label) if label else 2
        return kind

    def action_of(self, token: int) -> tuple[int, str]:
        return (NAME, self.relations[token - 3]) if token > 2 else (token, "")


def legal_spans(num_shifts: Tensor, num_actions: Tensor, num_words: Tensor) -> Tensor:
    """Say which kinds of action may follow [n, 5], so that 4n - 2 actions always build one tree.

    The span of all words must have a label. All arguments are counts [n].
    """
    is_name = num_actions % 2 == 1
    depth = 2 * num_shifts - (num_actions + 1) // 2  # spans on the stack
    has_next = num_shifts < num_words
    never = torch.zeros_like(has_next)
    kinds = (~is_name & has_next, ~is_name & (depth >= 2), is_name & ((depth > 1) | has_next))
    return torch.stack((*kinds, is_name, never), 1)


@dataclass(frozen=True)
class LegalActions(Processor):
    """Mask actions that are not legal; `num_words` differs between requests.

    The state of a hypothesis is its number of shifts. Stack and buffer sizes follow from it. `rule` has the
    arguments and the result of `legal`.
    """

    kinds: tuple[int, ...]  # kind of every action
    num_words: int = 0
    rule: Callable[[Tensor, Tensor, Tensor], Tensor] = legal
    per_request: ClassVar[tuple[str, ...]] = ("num_words",)
    can_capture = True
    state: ClassVar[tuple[torch.dtype, ...]] = (INT,)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.num_words),)

    def constants(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.kinds),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        num_words, kinds, state = data
        slot, node = rows.row_slot.long(), rows.node.long()
        before = state[slot, rows.tree.parent[slot, node].long().clamp(min=0)]
        num_shifts = torch.where(rows.position > 0, before + (rows.token == SHIFT), 0)  # [R]
        state[slot, node] = num_shifts.to(INT)
        is_legal = self.rule(num_shifts, rows.position, num_words).index_select(1, kinds)  # [R, V]
        return logits.masked_fill_(~is_legal, -torch.inf)


class Network(nn.Module):
    """Score actions with a BiLSTM over the sentence and one hidden layer.

    A word adds a vector to the hidden layer for each place in which it may stand. These vectors are
    computed once per word (Chen and Manning 2014). The BiLSTM is that of Kiperwasser and Goldberg 2016.
    """

    def __init__(
        self, table_sizes: list[int], widths: list[int], hidden_size: int, num_actions: int
    ):
        super().__init__()
        pairs = zip(table_sizes, widths, strict=True)
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size, width in pairs)
        self.lstm = nn.LSTM(sum(widths), hidden_size, 2, bidirectional=True, dropout=0.3)
        self.features = nn.Linear(2 * hidden_size, NUM_FEATURES * hidden_size)
        self.output = nn.Linear(hidden_size, num_actions)
        self.hidden_size = hidden_size

    def read(self, sentences: Sequence[Tensor], dropout: float = 0.0) -> list[Tensor]:
        """Return what the words of each sentence add to the hidden layer: [n + 2, NUM_FEATURES, hidden_size].

        Args:
            sentences: ids [n + 2, columns] of each sentence.
            dropout: share of numbers that are zeroed while training.
        """
        packed = pack_sequence(list(sentences), enforce_sorted=False)
        x = [table(packed.data[:, i]) for i, table in enumerate(self.tables)]
        x = nn.functional.dropout(torch.cat(x, 1), dropout, self.training)
        states = self.lstm(packed._replace(data=x))[0].data
        states = nn.functional.dropout(states, dropout, self.training)
        own = self.features(states).view(-1, NUM_FEATURES, self.hidden_size)
        # packed order is by time step; put it back in order of sentences
        lengths = [len(sentence) for sentence in sentences]
        place = pack_sequence(torch.arange(sum(lengths)).split(lengths), enforce_sorted=False).data
        given = torch.empty_like(own).index_copy(0, place.to(own.device), own)
        return list(given.split(lengths))


class Parser(Model):
    """Score arc-hybrid transitions with a `Network`; sources are `Sentence`s, outputs action ids.

    Give the algorithm the processor `legal_actions`, and make requests with `request`.
    """

    transitions: ClassVar = Actions
    rule = staticmethod(legal)
    can_capture = True
    can_draft = False  # a row needs the state of the row before it
    max_positions = None

    def __init__(self, network: Network, tables: Sequence[Sequence[str]], relations: Sequence[str]):
        self.network = network.eval()
        self.actions = self.transitions(relations)
        self.device = network.output.weight.device
        self.vocab_size = self.actions.vocab_size
        self.start_id = self.eos_id = self.actions.start_id
        self._numbers = [{entry: i for i, entry in enumerate(table)} for table in tables]
        weight, bias = network.output.weight.detach(), network.output.bias.detach()
        kind = PackedLinear if can_pack(self.device, weight.dtype) else PlainLinear
        self.output = kind(weight, bias)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Parser:
        """Read a directory with `config.json` and `model.safetensors`, as train.py writes them."""
        directory = Path(path)
        config = json.loads((directory / "config.json").read_text("utf-8"))
        tables = config["tables"]
        sizes = [len(table) for table in tables]
        num_actions = cls.transitions(config["relations"]).vocab_size
        network = Network(sizes, config["widths"], config["hidden_size"], num_actions)
        weights = load_file(directory / "model.safetensors")
        network.load_state_dict({name: weight.float() for name, weight in weights.items()})
        return cls(network, tables, config["relations"])

    @property
    def legal_actions(self) -> LegalActions:
        return LegalActions(tuple(self.actions.kinds), rule=self.rule)

    def request(self, sentence, **options) -> pybeam.Request:
        """Make the request for a sentence. The algorithm must have `legal_actions` among its processors."""
        num_words = len(sentence.words)
        mask = replace(self.legal_actions, num_words=num_words)
        length = self.actions.num_actions(num_words)
        return pybeam.Request(sentence, processors=[mask], max_length=length, **options)

    def check(self, source) -> Tensor:
        """Return ids [n + 2, columns] on the host: the root, the words, and a last line for no word.

        Raises:
            TypeError: the source is no sentence.
            ValueError: the numbers of words and tags differ.
        """
        if not isinstance(source, tuple) or not hasattr(source, "xpos"):
            raise TypeError(
                f"`source` must be a treebank.Sentence, but is {type(source).__name__}; "
                "give words with their tags"
            )
        num = len(source.words), len(source.upos), len(source.xpos)
        if len(set(num)) > 1:
            raise ValueError(
                f"`words`, `upos` and `xpos` must be of one length, but have {num[0]}, {num[1]} and "
                f"{num[2]} entries"
            )
        return encoded(source, self._numbers)

    def source_length(self, source: Tensor) -> int:
        """Number of words."""
        return source.shape[0] - 2

    def session(self, backend) -> ParserSession:
        """A fresh session that computes with this backend module."""
        return ParserSession(self, backend)


class SpanParser(Parser):
    """Score the transitions of constituency trees; sources are `brackets.Tree`s, with or without labels.

    A row's stack holds the first words of spans. The network looks at three of them, and at the first word
    that is in no span yet: these are the ends of the spans that Cross and Huang 2016 look at.
    """

    transitions = SpanActions
    rule = staticmethod(legal_spans)


def encoded(sentence, numbers: Sequence[dict[str, int]]) -> Tensor:
    """Number `columns(sentence)`: ids [n + 2, columns]; 0 is unknown, 1 the root, 2 no word."""
    lines = [
        [1, *(number.get(entry, 0) for entry in column), 2]
        for number, column in zip(numbers, columns(sentence), strict=True)
    ]
    return torch.tensor(lines).T.contiguous()


def columns(sentence) -> list[list[str]]:
    """List what the network reads of every word: form, ending, and both part-of-speech tags."""
    words = [word.lower() for word in sentence.words]
    return [words, [word[-3:] for word in words], sentence.upos, sentence.xpos]


class ParserSession(Session):
    """Keep stack and buffer of every row as tensors, and the vectors of the words once per source."""

    def __init__(self, model: Parser, backend) -> None:
        self._model, self._backend = model, backend
        self._output = model.output.with_backend(backend)
        # [2, S, K, columns], the state of every entry before its last action and after it
        self._state = torch.zeros(2, 0, 0, STACK, dtype=INT, device=model.device)
        shape = (0, NUM_FEATURES, model.network.hidden_size)
        self._pool = torch.zeros(shape, device=model.device)  # [cells, NUM_FEATURES, hidden]
        self._source = SourceCells(model.device)
        self._moves = torch.tensor(model.actions.moves, dtype=INT, device=model.device)  # by action

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._state = resized(self._state, (2, num_slots, width, STACK))
        self._source.reserve(num_slots)

    def buffers(self) -> Sequence[Tensor]:
        return self._state, self._pool, self._source.cell, self._source.length

    def release(self, slots: Sequence[int]) -> None:
        self._source.release(slots)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        device, lengths = self._model.device, [len(source) for source in sources]
        cells = self._source.allocate(slots, lengths)
        missing = self._source.num_cells - len(self._pool)
        if missing > 0:
            room = max(self._source.num_cells, 2 * len(self._pool))
            self._pool = resized(self._pool, (room, *self._pool.shape[1:]))
        given = self._model.network.read([source.to(device) for source in sources])
        self._backend.scatter_rows(self._pool, cells, torch.cat(given))
        # room for the longest stack, and for one more word: a row that pushes nothing writes there too
        self._state = resized(self._state, (2, 0, 0, STACK + BASE + max(lengths)))
        begin = torch.zeros(len(slots), self._state.shape[3], dtype=INT)
        begin[:, DEPTH], begin[:, FIRST] = BASE + 1, 1
        begin[:, STACK : STACK + BASE] = torch.tensor(lengths, dtype=INT)[:, None] - 1
        self._state[0, to_device(slots, torch.long, device), 0] = begin.to(device)

    def step(self, rows: Rows) -> Tensor:
        before, after = self._state.flatten(1, 2)  # [S K, columns]
        entry = rows.row_slot * self._state.shape[2] + rows.entry  # [R]
        state = before.index_select(0, entry)  # [R, columns]
        move = self._moves.index_select(0, rows.token)
        stack, depth, first = state[:, STACK:], state[:, DEPTH], state[:, FIRST]
        free = depth.long()[:, None]  # [R, 1], the place above the stack, which is free
        stack.scatter_(1, free, first[:, None])
        depth += move
        first += move > 0
        self._backend.scatter_rows(after, torch.where(rows.cell < 0, -1, entry), state)
        place = depth[:, None] - torch.arange(NUM_FEATURES - 1, 0, -1, device=depth.device)
        word = stack.gather(1, place.clamp(min=0).long())  # [R, 3]
        word = torch.cat((word, first[:, None]), 1).long()  # [R, 4]
        cell = self._source.cell.index_select(0, rows.row_slot).gather(1, word)
        part = cell * NUM_FEATURES + torch.arange(NUM_FEATURES, device=cell.device)
        hidden = self._pool.flatten(0, 1).index_select(0, part.flatten())
        hidden = hidden.view(*part.shape, -1).sum(1).relu_()
        return self._output(hidden)  # [R, V]

    def advance(self, source: Tensor, target: Tensor) -> None:
        flat = self._state.flatten(0, 2)  # [2 S K, columns]
        # continue from the states after the last action, which are the second half
        source = torch.where(source >= 0, source + flat.shape[0] // 2, -1)
        self._backend.gather_rows([flat], source, target)
