"""`Ensemble`: several models that are searched as one, by the mean of their probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend, torch_layers
from pybeam.models.base import Alignment, InProcess, Model, Session
from pybeam.models.rows import Rows
from pybeam.text.tokenizer import load_vocabularies


class Ensemble(InProcess, Model):
    """Models whose probabilities are averaged at every step.

    ``p(y | prefix, x) = 1 / n * sum_i p_i(y | prefix, x)``, so `EnsembleSession.step` returns
    ``log(1 / n * sum_i softmax(logits_i))``. Every member keeps its own cache of the one token tree.
    Members may be of different kinds. They must agree only in what is checked here.

    Args:
        members: at least one model. A model that comes several times has more weight.

    Raises:
        TypeError: a member is not a model.
        ValueError: there is none, or members differ in `vocab_size`, `start_id`, `eos_ids` or `device`.

    See Sutskever et al. 2014, section 3.6, and fairseq (Ott et al. 2019).
    """

    def __init__(self, members: Iterable[Model]) -> None:
        self.members = tuple(members)
        if not self.members:
            raise ValueError("`members` must be at least one model, but there is none")
        for i, member in enumerate(self.members):
            if not isinstance(member, Model):
                raise TypeError(f"`members` must be pybeam models, but member {i} is {member!r}")
            self._compare(i, member)
        first = self.members[0]
        self.vocab_size, self.start_id, self.device = first.vocab_size, first.start_id, first.device
        self.eos_id, self.other_eos_ids = first.eos_id, first.other_eos_ids
        limits = [m.max_positions for m in self.members if m.max_positions is not None]
        self.max_positions = min(limits, default=None)
        self.max_tokens = min(member.max_tokens for member in self.members)
        self.pad_id = first.pad_id
        self.can_capture = all(member.can_capture for member in self.members)
        self.has_attention = all(member.has_attention for member in self.members)
        self.takes_features, self.settings = first.takes_features, first.settings
        self.can_draft = all(member.can_draft for member in self.members)
        self.can_fork = all(member.can_fork for member in self.members)

    def _compare(self, i: int, member: Model) -> None:
        for name in ("vocab_size", "start_id", "eos_ids", "device"):
            expected, found = getattr(self.members[0], name), getattr(member, name)
            if found != expected:
                raise ValueError(
                    f"`{name}` of all members must be that of member 0, {expected}, but that of "
                    f"member {i} is {found}; only models with one target vocabulary, on one device, "
                    "can be averaged"
                )

    def __repr__(self) -> str:
        return f"Ensemble({', '.join(map(repr, self.members))})"

    def session(self, backend: Backend) -> EnsembleSession:
        """Make a fresh session of every member that computes with this backend module."""
        return EnsembleSession([member.session(backend) for member in self.members], backend)

    def check(self, source: Any) -> tuple[Any, ...]:
        """Turn a source into what each member takes. Raises the first error of a member."""
        checked = []
        for i, member in enumerate(self.members):
            try:
                checked.append(member.check(source))
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"member {i} of the ensemble: {error}") from error
        return tuple(checked)

    def check_alignment(self, alignment: Alignment) -> None:
        """Raise the first error of a member that has no such attention."""
        for member in self.members:
            member.check_alignment(alignment)

    def source_length(self, source: tuple[Any, ...]) -> int:
        """Return the longest of the members' lengths. Members that read token ids agree."""
        pairs = zip(self.members, source, strict=True)
        return max(member.source_length(own) for member, own in pairs)

    def prompt(self, source: tuple[Any, ...]) -> Tensor | None:
        """Return the prompt of the first member that has one. All members continue the same source."""
        prompts = [member.prompt(own) for member, own in zip(self.members, source, strict=True)]
        return next((prompt for prompt in prompts if prompt is not None), None)

    def room(self, source: tuple[Any, ...]) -> int | None:
        """Return the room of the member that has least."""
        rooms = [member.room(own) for member, own in zip(self.members, source, strict=True)]
        return min((room for room in rooms if room is not None), default=None)


class EnsembleSession(Session):
    """A session of every member; they share slots, rows and cells."""

    def __init__(self, members: Sequence[Session], backend: Backend) -> None:
        self._members, self._backend = members, backend
        self.can_read = all(member.can_read for member in members)
        # kept between steps, because fresh memory of this size costs a page fault every few rows
        self._memory = torch.empty(0, 0)

    def buffers(self) -> Sequence[Tensor]:
        return [buffer for member in self._members for buffer in member.buffers()]

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        return sum(member.max_bytes(num_cells, source_length) for member in self._members)

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        for member in self._members:
            member.reserve(num_slots, width, num_cells)

    def encode(
        self, sources: Sequence[tuple[Any, ...]], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        for member, own in zip(self._members, zip(*sources, strict=True), strict=True):
            member.encode(own, indices, slots)

    def step(self, rows: Rows) -> Tensor:
        # a mixture normalises what members give
        rows = dataclasses.replace(rows, wanted=None) if rows.wanted is not None else rows
        logits = [member.step(rows) for member in self._members]  # n times [R, V]
        if len(logits) == 1:
            return logits[0]
        is_double = all(own.dtype == torch.float64 for own in logits)
        if all(own.dtype == torch.float32 and not own.is_cuda for own in logits):
            out = self._room_for(*logits[0].shape)
            self._backend.mixture(out, logits)
        else:
            out = torch.empty_like(logits[0], dtype=torch.float64 if is_double else torch.float32)
            torch_layers.mixture(out, logits)
        return out  # [R, V]

    def read(self, rows: Rows) -> None:
        for member in self._members:
            member.read(rows)

    def _room_for(self, num_rows: int, vocab_size: int) -> Tensor:
        if self._memory.shape[0] < num_rows:
            self._memory = torch.empty(num_rows, vocab_size)
        return self._memory[:num_rows]

    def release(self, slots: Sequence[int]) -> None:
        for member in self._members:
            member.release(slots)

    def attention(
        self,
        sources: Sequence[tuple[Any, ...]],
        hypotheses: Sequence[Sequence[Sequence[int]]],
        alignment: Alignment,
    ) -> list[list[Tensor]]:
        """Return the mean of the members' attention, as in fairseq."""
        columns = zip(self._members, zip(*sources, strict=True), strict=True)
        own = [member.attention(column, hypotheses, alignment) for member, column in columns]
        return [
            [torch.stack(rows).mean(0) for rows in zip(*lines, strict=True)]
            for lines in zip(*own, strict=True)
        ]

    def advance(self, source: Tensor, target: Tensor) -> None:
        for member in self._members:
            member.advance(source, target)


def check_vocabularies(directories: Sequence[Path]) -> None:
    """Raise ValueError if an id stands for different tokens in two of these models."""
    found = [(directory, load_vocabularies(directory)) for directory in directories]
    known = [(directory, vocabularies) for directory, vocabularies in found if vocabularies]
    for directory, vocabularies in known[1:]:
        first, expected = known[0]
        for side, ours, theirs in zip(("source", "target"), vocabularies, expected, strict=True):
            if ours == theirs:
                continue
            token = min(t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t))
            raise ValueError(
                f"members of an ensemble must have one {side} vocabulary, but {token!r} is "
                f"{theirs.get(token, 'no token')} in {first} and {ours.get(token, 'no token')} in "
                f"{directory}; average only models that were trained with the same tokenizer"
            )
