"""The operators of automata in plain torch, on any device and in float64 too.

Automata of several requests lie in one *pool*, `pybeam.processors.automaton_pool`: their states and edges are
numbered through, so rows of different automata share one call. The tree of a catalogue is an automaton whose
states are its nodes, and whose edges lead to the next node each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pybeam.backends.arrays import SelectInputs
from pybeam.contracts import ColumnRules, ColumnTokens, Normalise, SelectOptions, Survivors

INF = float("inf")
INT = torch.int32
WORD = 32
NOWHERE = -1
# the node of every catalogue's tree that no token leads to
ROOT = 0
# lines of `PoolArrays.edge`, and columns of `PoolArrays.state`
TARGET, WEIGHT = range(2)
FAILURE, OTHER, OTHER_WEIGHT, FINAL, NEEDED, MOST_NEEDED = range(6)
NUMBERS = 6

Select = Callable[[Tensor, Tensor, Tensor, Tensor, SelectOptions], Survivors]


class CatalogueArrays(NamedTuple):
    """A catalogue's tree and its filters; see `pybeam.catalogue.levels.Levels`."""

    token: Tensor  # [E] int32, of every edge; edge e leads to node e + 1
    first: Tensor  # [F + 1] int32, edges of node n < F are first[n] .. first[n + 1]
    # [T, 2 * W] int32, per filter: bits of the nodes it enters, then of those where it may end
    words: Tensor


class PoolArrays(NamedTuple):
    """A pool of automata; `pybeam.automata.Automaton` and `Runs` say what each number means.

    A line without a state follows the last state of every automaton, and says where its edges end. State 0
    allows everything, and leads to itself.
    """

    token: Tensor  # [E] int32, of every edge; ascending among those of one state
    first: Tensor  # [F] int32, edges of state s are first[s] .. first[s + 1]
    edge: Tensor  # [2, E] int32: `TARGET`, and `WEIGHT` as bits of float32
    state: Tensor  # [F, 6] int32, its numbers; weights are bits of float32

    def number(self, state: Tensor, column: int) -> Tensor:
        """A number of these states; any for -1."""
        return self.state[:, column][state.long().clamp(min=0)]

    def weight(self, state: Tensor, column: int) -> Tensor:
        """A weight of these states, float32; any for -1."""
        return self.number(state, column).view(torch.float32)

    def targets(self, edge: Tensor, is_edge: Tensor) -> Tensor:
        """The targets of edges; -1 where there is none."""
        return torch.where(is_edge, self.edge[TARGET][edge], NOWHERE)

    def fits(self, target: Tensor, room: Tensor) -> Tensor:
        """Whether outputs may go on to these states, and end within so many tokens."""
        return (target >= 0) & (self.number(target, NEEDED) < room)


AutomatonArrays = CatalogueArrays | PoolArrays


class StepColumns(NamedTuple):
    """The columns of automata in all steps of some slots."""

    arrays: AutomatonArrays
    line: Tensor  # [S] int32, see `automaton_walk`
    # [S, N] int32, the state of each node of the token trees, or [S], that of all nodes of a slot
    node: Tensor
    rules: ColumnRules


class RowPlaces(Protocol):
    """Where rows stand: the slot and the entry [R] of each."""

    @property
    def row_slot(self) -> Tensor: ...

    @property
    def entry(self) -> Tensor: ...


def edges_of(arrays: AutomatonArrays, node: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of states [...], int64: the first one and the one behind the last. -1 has none."""
    last = arrays.first.numel() - 1
    begin = arrays.first[node.long().clamp(0, last)].long()
    end = arrays.first[(node.long() + 1).clamp(0, last)].long()
    return begin, torch.where(node < 0, begin, end)


# the parameters are the arrays of a step, which kernels take one by one
def automaton_walk(
    arrays: AutomatonArrays,
    parent: Tensor,
    state: Tensor,
    row_slot: Tensor,
    node: Tensor,
    token: Tensor,
    position: Tensor,
    line: Tensor,
    prefix_length: Tensor,
    max_length: Tensor,
) -> Tensor:
    """Return the states of rows and their lines, [2, R] int32. A state is -1 where a token was forbidden.

    States are noted in `state` [S, N], by slot and node of the token trees, whose parents are `parent`
    [S, N]. A row goes on from the state of its parent by its token [R]. One that has generated none is where
    its automaton starts: at the root of a tree, or in the state line[S] of a pool.

    The line of a row is that of its slot in a tree, whose filter it is. In a pool it says how many tokens
    there is room for behind the next one, EOS included. Rows within the prefix are returned in state 0 there,
    which allows everything, and so are those of slots that start in it.

    Args:
        arrays: a tree, or a pool.
        parent, state, row_slot, node, token: see above.
        position: [R], tokens before each row.
        line, prefix_length, max_length: [S].
    """
    slot, own = row_slot.long(), node.long()
    before = state[slot, parent[slot, own].long().clamp(min=0)]
    done, given = position - prefix_length[slot], line[slot]
    is_tree = isinstance(arrays, CatalogueArrays)
    start = torch.full_like(given, ROOT) if is_tree else given
    moves = (done > 0) if is_tree else (done > 0) & (start > 0)
    here, _ = automaton_step(arrays, torch.where(moves, before, NOWHERE), token)
    here = torch.where(moves, here, start)
    state[slot, own] = here
    if is_tree:
        return torch.stack((here, given))
    return torch.stack((torch.where(done < 0, 0, here), max_length[slot] - done - 1))


def automaton_step(arrays: AutomatonArrays, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states [R] int32 that tokens [R] lead to from states [R], and their weights [R] float32.

    Tokens that are forbidden lead to -1, and have any weight.
    """
    out, weight = torch.full_like(state, NOWHERE), torch.zeros_like(state, dtype=torch.float32)
    if isinstance(arrays, CatalogueArrays):
        edge, is_there = _edge_of(arrays, state, token)
        return torch.where(is_there, edge + 1, NOWHERE).to(INT), weight
    while bool((state >= 0).any()):
        edge, is_there = _edge_of(arrays, state, token)
        failure = arrays.number(state, FAILURE)
        target = torch.where(is_there, arrays.edge[TARGET][edge], arrays.number(state, OTHER))
        is_here = state >= 0
        out = torch.where(is_here & (is_there | (failure < 0)), target, out)
        own = arrays.edge[WEIGHT][edge].view(torch.float32)
        added = torch.where(is_there, own, arrays.weight(state, OTHER_WEIGHT))
        weight = torch.where(is_here, weight + added, weight)
        state = torch.where(is_here & ~is_there, failure, NOWHERE)
    return out, weight


def _edge_of(arrays: AutomatonArrays, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges [R] that have these tokens, and whether they are there."""
    low, high = edges_of(arrays, state)
    end, last = high, arrays.token.numel() - 1
    # the first edge whose token is not smaller lies from `low` to `high`
    for _ in range(int(last + 1).bit_length()):
        middle = (low + high) // 2
        is_smaller = arrays.token[middle.clamp(max=last)] < token
        is_open = low < high
        low = torch.where(is_open & is_smaller, middle + 1, low)
        high = torch.where(is_open & ~is_smaller, middle, high)
    edge = low.clamp(max=last)
    return edge, (low < end) & (arrays.token[edge] == token)


def automaton_columns(
    arrays: AutomatonArrays, logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    """Return log-probabilities [R, M + 1] of EOS and of the tokens that may follow states [R].

    A token's column is its edge, counted from the first edge of its state, behind that of EOS if
    `rules.eos_first`. Lines [R], as `automaton_walk` gives them, say what is allowed; the rest is -inf.
    Weights of a pool, which must be sparse, are added at the end. A row with a NaN or +inf is NaN.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    begin, end = edges_of(arrays, node)
    num = rules.num_columns or max([1, *(end - begin).tolist()])
    edge = begin[:, None] + torch.arange(num, device=node.device)  # [R, M]
    is_edge = edge < end[:, None]
    edge = torch.where(is_edge, edge, 0)
    weight = end_weight = torch.zeros(())
    if isinstance(arrays, CatalogueArrays):
        words = arrays.words.shape[1] // 2
        is_alive = _bit(arrays.words, line[:, None], 0, edge + 1)
        is_end = _bit(arrays.words, line, words, node.clamp(min=0).long())
    else:
        is_alive = arrays.fits(arrays.targets(edge, is_edge), line[:, None])
        weight = arrays.edge[WEIGHT][edge].view(torch.float32)
        end_weight = arrays.weight(node, FINAL)
        is_end = end_weight > -INF
    value = logits.gather(1, arrays.token[edge].long()).to(dtype)
    value = value.masked_fill(~(is_edge & is_alive), -INF)
    eos = logits[:, rules.eos_id].to(dtype).masked_fill(~((node >= 0) & is_end), -INF)[:, None]
    summed = logits.to(dtype) if rules.normalise == Normalise.VOCABULARY else None
    value, eos = _normalised(value, eos, summed, rules.normalise)
    if isinstance(arrays, PoolArrays):
        value, eos = value + weight, eos + end_weight[:, None]
    return torch.cat((eos, value) if rules.eos_first else (value, eos), 1)


def _normalised(
    value: Tensor, eos: Tensor, logits: Tensor | None, normalise: int
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of columns, over the logits if there are some, else over the columns."""
    if normalise == Normalise.NOTHING:
        return value, eos
    logits = torch.cat((eos, value), 1) if logits is None else logits
    peak = logits.amax(1, keepdim=True)
    # a row that allows nothing stays -inf
    floor = torch.where(peak == -INF, 0.0, peak)
    # one after another, so that columns without an edge change nothing
    log_sum = (logits - floor).exp().cumsum(1)[:, -1:].log()
    is_sound = (logits.isnan() | (logits == INF)).any(1, keepdim=True).logical_not()

    def less(some: Tensor) -> Tensor:
        own = torch.where(is_sound, (some - floor) - log_sum, float("nan"))
        return torch.where(is_sound & (some == -INF), some, own)

    return less(value), less(eos)


def _bit(words: Tensor, line: Tensor, offset: int, node: Tensor) -> Tensor:
    return (words[line.long(), offset + node // WORD] >> (node % WORD) & 1).bool()


# the parameters are those of a walk, beside logits
def automaton_logits(
    logits: Tensor,
    arrays: PoolArrays,
    parent: Tensor,
    state: Tensor,
    row_slot: Tensor,
    node: Tensor,
    token: Tensor,
    position: Tensor,
    line: Tensor,
    prefix_length: Tensor,
    max_length: Tensor,
    eos_ids: tuple[int, ...],
) -> None:
    """Do `automaton_walk`, and shape logits [R, V] where they stand: add weights, forbid with -inf.

    A token is allowed if its target from the state of the row can end within the tokens that there is room
    for. EOS is allowed in states that may end.
    """
    places = row_slot, node, token, position, line, prefix_length, max_length
    here, room = automaton_walk(arrays, parent, state, *places)
    logits.copy_(shaped(logits, arrays, here, room, eos_ids))


def shaped(
    logits: Tensor, arrays: PoolArrays, node: Tensor, line: Tensor, eos_ids: tuple[int, ...]
) -> Tensor:
    """Return logits [R, V] of what may follow states node[R] of a pool and end within line[R] tokens."""
    num_rows, vocab_size = logits.shape
    # a column more is for edges that are not there
    out = logits.new_full((num_rows, vocab_size + 1), -INF)
    is_open = torch.ones_like(out, dtype=torch.bool)
    added = torch.zeros_like(line, dtype=torch.float32)
    here = node
    while bool((here >= 0).any()):
        begin, end = edges_of(arrays, here)
        edge = begin[:, None] + torch.arange(int((end - begin).max()), device=begin.device)
        is_edge = edge < end[:, None]
        edge = torch.where(is_edge, edge, 0)
        token = torch.where(is_edge, arrays.token[edge], vocab_size).long()
        fits = arrays.fits(arrays.targets(edge, is_edge), line[:, None])
        weight = added[:, None] + arrays.edge[WEIGHT][edge].view(torch.float32)
        value = logits.gather(1, token.clamp(max=vocab_size - 1)) + weight
        value = torch.where(fits, value, -INF)
        out.scatter_(1, token, torch.where(is_open.gather(1, token), value, out.gather(1, token)))
        is_open.scatter_(1, token, False)
        failure = arrays.number(here, FAILURE)
        weight = added + arrays.weight(here, OTHER_WEIGHT)
        leads_on = (here >= 0) & (failure < 0) & arrays.fits(arrays.number(here, OTHER), line)
        takes_others = is_open[:, :vocab_size] & leads_on[:, None]
        own = out[:, :vocab_size]
        own.copy_(torch.where(takes_others, logits + weight[:, None], own))
        here, added = torch.where(here >= 0, failure, NOWHERE), weight
    final = torch.where(node >= 0, arrays.weight(node, FINAL), -INF)
    for eos_id in eos_ids:
        out[:, eos_id] = logits[:, eos_id] + final
    return out[:, :vocab_size]


def select_columns(
    select: Select,
    logits: Tensor,
    columns: ColumnTokens,
    inputs: SelectInputs,
    options: SelectOptions,
    slot: Tensor,
    rows: RowPlaces,
    is_alive: Tensor,
) -> Survivors:
    """`select` among columns: its survivors, with tokens in place of columns.

    Args:
        select: that of a backend.
        logits: [R, M + 1], those of columns.
        columns: which tokens they are.
        inputs, options: as for the vocabulary.
        slot: [A], the slots of the beams.
        rows: where they are.
        is_alive: [S, K], which entries of the beams are rows.
    """
    width, forced = logits.shape[1], options.forced
    eos, other = (0, width - 1) if columns.eos_first else (width - 1, 0)
    options = options._replace(eos_ids=(eos,))
    if forced is not None:
        options = options._replace(forced=torch.where(forced >= 0, other, -1).to(INT))
    chosen = select(logits, inputs.score, inputs.offset, inputs.width, options)
    if not columns.node.shape[0]:
        return chosen  # nothing moves
    # [A, 1], [A, C]
    slots, parent = slot.long()[:, None], chosen.parent.clamp(min=0).long()
    node_of = torch.zeros(is_alive.shape, dtype=INT, device=slot.device)
    node_of[rows.row_slot.long(), rows.entry.long()] = columns.node
    token = column_tokens(columns, node_of[slots, parent], chosen.token, width).to(INT)
    if forced is not None:
        token = torch.where(forced[:, None] >= 0, forced[:, None], token)
    return chosen._replace(token=torch.where(chosen.token < 0, -1, token))


def column_tokens(columns: ColumnTokens, node: Tensor, column: Tensor, width: int) -> Tensor:
    """Return the tokens [...] of these columns, of `width` in all, of rows at these nodes [...]."""
    eos_column = 0 if columns.eos_first else width - 1
    begin = columns.first[node.long().clamp(0, columns.first.numel() - 1)].long()
    edge = begin + column - int(columns.eos_first)
    token = columns.token[edge.clamp(0, columns.token.numel() - 1)]
    return torch.where(column == eos_column, columns.eos_id, token)
