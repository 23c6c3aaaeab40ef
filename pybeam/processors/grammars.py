"""A processor that allows the outputs of a grammar, such as JSON of a schema."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.automata.grammars import NOWHERE, Grammar, GrammarError, Masks, State
from pybeam.automata.vocabulary import Vocabulary
from pybeam.backends.arrays import NULL_SLOT
from pybeam.backends.transfer import to_device
from pybeam.kvcache.token_tree import TokenTree
from pybeam.models.rows import Rows
from pybeam.platforms.system import usable_cores
from pybeam.processors.base import INF, INT, Processor, Stage, check_stage

# JSON as Python's `json.dumps` writes it: a value has one form
AS_PYTHON_WRITES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_GRAMMAR = 0
# rows whose limits are in a CPU's caches at once
ROWS_AT_ONCE = 16
# the most that eight tokens may have, for each byte of a mask: [256, 8] float32
LIMITS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, INF, -INF).astype(np.float32)
# those that some request has, by their number
_GRAMMARS: WeakValueDictionary[int, Grammar] = WeakValueDictionary()


@dataclass(frozen=True)
class GrammarConstraint(Processor):
    """Allows the outputs of a grammar. `grammar` and `json_schema` make one.

    Its state is an object of llguidance for every row, which stays on the host, so it is no number of the
    token tree. It is found by the tokens of the row.

    Args:
        text: the grammar in llguidance's dialect of Lark; None: everything is allowed.
        tokenizer: of the outputs, see `Vocabulary.of`.
        stage: see `pybeam.processors`.
    """

    text: str | None = field(repr=False)
    tokenizer: Any = field(repr=False)
    stage: Stage = "log_probs"
    per_request: ClassVar = ("text",)
    begins_behind_prefix: ClassVar = True
    allows_cuts: ClassVar = False
    works_ahead: ClassVar = True
    can_capture = False

    def __post_init__(self) -> None:
        check_stage(self.stage)
        self._trackers.clear()  # makes it now: engines that begin at once would each make their own
        if self._grammar is not None:
            _GRAMMARS[self._grammar.number] = self._grammar

    def __reduce__(self) -> tuple[Any, ...]:
        # another process reads the grammar anew
        return type(self), (self.text, self.tokenizer, self.stage)

    @cached_property
    def _grammar(self) -> Grammar | None:
        return None if self.text is None else Grammar.of(self.text, Vocabulary.of(self.tokenizer))

    @property
    def is_neutral(self) -> bool:  # type: ignore[override]
        return self.text is None

    def parameters(self) -> tuple[Tensor, ...]:
        number = NO_GRAMMAR if self._grammar is None else self._grammar.number
        return (torch.tensor(number, dtype=INT),)

    @cached_property
    def _trackers(self) -> WeakKeyDictionary[TokenTree, Tracker]:
        return WeakKeyDictionary()

    def begin(self, rows: Rows, data: tuple[Tensor, ...]) -> None:
        """Let other threads make masks while the model computes, if they do not take its processors."""
        (number,) = data
        if works_beside(number.device):
            self._tracker(rows).begin(rows, number)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (number,) = data
        found = self._tracker(rows).masks(rows, number, logits.shape[1])
        return logits if found is None else limited(logits, found)

    def _tracker(self, rows: Rows) -> Tracker:
        return self._trackers.setdefault(rows.tree, Tracker())


def works_beside(device: torch.device) -> bool:
    """Whether there are processors for the threads that make masks beside those of the model."""
    return device.type != "cpu" or usable_cores() >= 2 * torch.get_num_threads()


class Kept(NamedTuple):
    """The states of a slot's last rows, and of the rows before them, from which a step is done again."""

    num_nodes: int  # of the slot in that step
    states: dict[int, State]  # by node


class Begun(NamedTuple):
    """The part of a step's work that needs no logits."""

    node: Tensor  # [R], that of `Rows`
    is_last: np.ndarray  # [R], whether a row has room for one token
    # by grammar, its rows and what may follow them
    masks: dict[int, tuple[list[int], Callable[[], Masks]]]

    def end(self) -> None:
        """Wait until nobody uses the states any more."""
        for _, masks in self.masks.values():
            with suppress(GrammarError):
                masks()


class Tracker:
    """The states of the rows of one decode. Each follows from the state of the row that it goes on from."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}  # by slot
        self._begun: Begun | None = None

    def begin(self, rows: Rows, number: Tensor) -> None:
        """Let other threads compute what `masks` will return for these rows."""
        self._take()
        self._begun = self._found(rows, number, masks_beside)

    def _take(self, node: Tensor | None = None) -> Begun | None:
        """Return what was begun for rows at these nodes; whatever was begun for others is over."""
        begun, self._begun = self._begun, None
        if begun is None or begun.node is node:
            return begun
        begun.end()
        return None

    def _found(
        self,
        rows: Rows,
        number: Tensor,
        compute: Callable[[Grammar, list[State]], Callable[[], Masks]],
    ) -> Begun:
        is_free = (rows.num_generated < 0) | (rows.row_slot == NULL_SLOT)
        numbers = torch.where(is_free, NO_GRAMMAR, number).tolist()
        masks: dict[int, tuple[list[int], Callable[[], Masks]]] = {}
        if not any(numbers):
            return Begun(rows.node, np.zeros(0), masks)
        states, is_last = self._advance(rows, numbers), rows.is_last.cpu().numpy()
        for one in set(numbers) - {NO_GRAMMAR}:
            place = [row for row, own in enumerate(numbers) if own == one]
            masks[one] = place, compute(_GRAMMARS[one], [states[row] for row in place])
        return Begun(rows.node, is_last, masks)

    def masks(self, rows: Rows, number: Tensor, vocab_size: int) -> np.ndarray | None:
        """Return a bit for every token of each row, [R, W] uint8; None: everything is allowed.

        Args:
            rows: the rows.
            number: [R] int32, the grammar of every row.
            vocab_size: tokens of the model.

        Raises:
            ValueError: a grammar becomes too complex to be followed.
        """
        begun = self._take(rows.node)
        if begun is None:
            begun = self._found(rows, number, masks_now)
        if not begun.masks:
            return None
        masks = np.full((len(number), -(-vocab_size // 8)), 255, dtype=np.uint8)
        for place, found in begun.masks.values():
            allowed, may_end = found()
            # the model may have more tokens than the tokenizer, or fewer
            num = min(allowed.shape[1], masks.shape[1])
            own = np.zeros((len(place), masks.shape[1]), dtype=np.uint8)
            own[:, :num] = allowed[:, :num]
            # where one token alone is left, it must end the output
            own[begun.is_last[place]] = 0
            for eos_id in rows.eos_ids:
                byte, bit = divmod(eos_id, 8)
                own[:, byte] = own[:, byte] & ~np.uint8(1 << bit) | may_end.astype(np.uint8) << bit
            masks[place] = own
        return masks

    def _advance(self, rows: Rows, numbers: Sequence[int]) -> list[State]:
        """Find the state of each row that has a grammar, and keep these in place of their slots' others."""
        tree, row_slot = rows.tree, rows.row_slot.long()
        parents = tree.parent[row_slot, rows.node.long()].tolist()
        generated, nodes = rows.num_generated.tolist(), rows.node.tolist()
        tokens, offset = rows.token.tolist(), rows.offset.tolist()
        states, moved = [NOWHERE] * len(numbers), dict[int, Kept]()
        num_nodes = tree.num_nodes.tolist()
        for slot, first, last in zip(rows.slot.tolist(), offset[:-1], offset[1:], strict=True):
            number = max(numbers[first:last], default=NO_GRAMMAR)
            if number == NO_GRAMMAR:
                continue
            grammar, kept = _GRAMMARS[number], self._kept.get(slot, Kept(0, {}))
            before = kept.states
            # a chain with state sees the guesses of a step in turn, each behind those before
            goes_on = kept.num_nodes == num_nodes[slot] and nodes[first] > max(before, default=-1)
            own = before if goes_on else {}
            moved[slot] = Kept(num_nodes[slot], own)
            for row in range(first, last):
                parent = parents[row]
                if generated[row] < 0:
                    # guesses may begin within a prefix
                    continue
                if generated[row] == 0:
                    state = grammar.start()
                else:
                    # a guess goes on from a row of its own step
                    known = own if parent in own else before
                    state = grammar.step(known[parent], tokens[row])
                    own[parent] = known[parent]
                own[nodes[row]] = states[row] = state
        waiting = self._kept.keys() - moved.keys()
        # those of slots that are empty are of nobody
        self._kept = {slot: self._kept[slot] for slot in waiting if num_nodes[slot]} | moved
        return states


def masks_now(grammar: Grammar, states: list[State]) -> Callable[[], Masks]:
    found = grammar.masks(states)
    return lambda: found


def masks_beside(grammar: Grammar, states: list[State]) -> Callable[[], Masks]:
    return _waiter(os.getpid()).submit(grammar.masks, states).result


@lru_cache(4)
def _waiter(process: int) -> ThreadPoolExecutor:
    """Return a thread that waits for masks. A copy of a process has none of the threads."""
    return ThreadPoolExecutor(1, "pybeam grammars")


def limited(logits: Tensor, masks: np.ndarray) -> Tensor:
    """Write -inf where a mask [R, W] has no bit."""
    if logits.device.type != "cpu":
        return _limited_on_device(logits, masks)
    array = logits.numpy()
    for first in range(0, len(masks), ROWS_AT_ONCE):
        rows = array[first : first + ROWS_AT_ONCE]
        limit = LIMITS.take(masks[first : first + ROWS_AT_ONCE], axis=0).reshape(len(rows), -1)
        np.minimum(rows, limit[:, : rows.shape[1]], out=rows)
    return logits


def _limited_on_device(logits: Tensor, masks: np.ndarray) -> Tensor:
    # masks go there as bits
    found = to_device(masks, torch.uint8, logits.device).flatten().int()
    limits = torch.from_numpy(LIMITS).to(logits.device).index_select(0, found)
    limit = limits.view(len(masks), -1)[:, : logits.shape[1]]
    return torch.minimum(logits, limit, out=logits)


def grammar(text: str | None, tokenizer: Any, *, stage: Stage = "log_probs") -> GrammarConstraint:
    """Allow the texts of a grammar, and nothing else. It needs ``pip install "pybeam-search[grammars]"``.

    ``start`` is the rule of a whole text. A token is allowed if some text of the grammar goes on with it.
    EOS is allowed behind a whole text. The last token that there is room for must be EOS, so a search may
    find nothing if its `max_length` is short. Then its `stop_reason` is "empty_beam".

    ::

        start: greeting ", " NAME
        greeting: "Hello" | "Good morning"
        NAME: /[A-Z][a-z]{1,20}/

    A text has many spellings in tokens, all of which are allowed. vLLM and SGLang mask samples so, and fill
    in what must follow. In beams every row has a state of its own, which it takes from the row that it goes
    on from.

    Per request: the grammar. An algorithm may have None, so that requests bring theirs.

    Args:
        text: a grammar in `llguidance's dialect of Lark
            <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>`_; None: everything is
            allowed.
        tokenizer: of the outputs: a `pybeam.Tokenizer`, one of transformers, or an object whose method
            `vocab()` gives the text of each id.
        stage: see `pybeam.processors`.

    Raises:
        ImportError: the package llguidance is missing.
        TypeError: `text` or `tokenizer` is something else.
        ValueError: the grammar is wrong or too large, or a token of the tokenizer has no text of its own.
    """
    if not (text is None or isinstance(text, str)):
        raise TypeError(f"`text` must be a grammar, but is {text!r}")
    return _made(text, tokenizer, stage, "text")


def json_schema(schema: Any, tokenizer: Any, *, stage: Stage = "log_probs") -> GrammarConstraint:
    """Allow JSON of a schema, and nothing else. It needs ``pip install "pybeam-search[grammars]"``.

    It is `grammar`, with rules that follow from the schema. JSON has the form in which Python's `json.dumps`
    writes it, so that beams do not hold one value in many forms. ``"x-guidance"`` in the schema may change
    that: ``{"whitespace_flexible": true}`` allows any white space.

    A keyword that llguidance does not know is refused, because outputs might break it.

    Per request: the schema, as the text of `grammar`.

    Args:
        schema: a `JSON schema <https://json-schema.org>`_: a dict, its JSON, or a pydantic model.
        tokenizer: as for `grammar`.
        stage: see `pybeam.processors`.

    Raises:
        ImportError: the package llguidance is missing.
        TypeError: `schema` or `tokenizer` is something else.
        ValueError: the schema is wrong, too large, or has a keyword that is not known.
    """
    return _made(schema_grammar(schema), tokenizer, stage, "schema")


def schema_grammar(schema: Any) -> str:
    """Return the grammar of a JSON schema. Raises TypeError or ValueError if it is none."""
    found = schema
    if hasattr(schema, "model_json_schema"):
        found = schema.model_json_schema()
    elif isinstance(schema, str | bytes):
        try:
            found = json.loads(schema)
        except ValueError as error:
            raise ArgumentError("schema", f"must be JSON, but is not: {error}") from error
    if found is True:
        found = {}
    if not isinstance(found, Mapping):
        raise TypeError(
            f"`schema` must be a JSON schema, which is a dict or its JSON, but is {schema!r}"
        )
    own = found.get("x-guidance", {})
    if not isinstance(own, Mapping):
        raise TypeError(f"`x-guidance` of `schema` must be a dict, but is {own!r}")
    # with white space of its own, a separator has none
    form = {} if own.get("whitespace_flexible") else AS_PYTHON_WRITES
    return f"start: %json {json.dumps({**found, 'x-guidance': {**form, **own}})}"


def _made(text: str | None, tokenizer: Any, stage: Stage, name: str) -> GrammarConstraint:
    try:
        return GrammarConstraint(text, tokenizer, stage)
    except GrammarError as error:
        raise ArgumentError(name, f"must be one that llguidance knows: {error}") from error
