"""Values on which search, state and kernels agree: limits, rules as numbers, results as tuples."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

PAGE_CELLS = 16
MAX_WIDTH = 4096
# threads or processes that are asked for: what the system cannot start ends the program
MAX_THREADS = 1024
# rows of a beam that the masks of a token tree can tell apart
MASK_WIDTH = 128
# candidates of one beam that the finishing rule sees on a GPU
MAX_CANDIDATES_ON_GPU = 8192


class Finishing(IntEnum):
    """How a candidate that ends in EOS finishes (kernel data of `select`)."""

    NONE = 0  #: EOS is a token like any other
    HELD = 1  #: it stays in the beam as a no-op; a leading run of ended candidates is popped
    #: at rank < width it finishes and its place is refilled; at rank >= width it is dropped
    REFILL = 2
    SHRINK = 3  #: it finishes and leaves the beam; nothing takes its place


class Certificate(IntEnum):
    """The bound that a stop rule compares finished hypotheses with (kernel data of a commit)."""

    NONE = 0
    BOUND = 1  # the most that any continuation of the beam can still reach
    CURRENT = 2  # the score of the beam if it ended now: a heuristic, no proof


class Top(IntEnum):
    """Whether a stop rule looks at a best candidate that ends in EOS (kernel data of a commit)."""

    IGNORED = 0
    NOW = 1  # in this step (OpenNMT)
    EVER = 2  # in this step or an earlier one (CTranslate2)


class Normalise(IntEnum):
    """The tokens whose probabilities sum to 1 among columns (kernel data)."""

    NOTHING = 0  # they are log-probabilities already
    VOCABULARY = 1
    COLUMNS = 2  # what is allowed


class Edit(IntEnum):
    """How a processor changes few logits of a row (kernel data of `edit_logits`)."""

    REPETITION = 0  # penalise the tokens that there are
    NGRAM = 1  # ban what would repeat an n-gram
    TOKENS = 2  # ban tokens, everywhere or where a hypothesis starts
    SEQUENCES = 3  # ban the ends of sequences
    MIN_LENGTH = 4  # ban EOS in hypotheses that are too short
    EOS_PENALTY = 5  # multiply EOS
    TOKEN_PENALTY = 6  # subtract from one token
    BIASED_PREFIX = 7  # make the next token of a prefix likely
    FIRST_TOKEN = 8  # allow one token behind the start
    LAST_TOKEN = 9  # allow only EOS at the limit
    LOG_SOFTMAX = 10  # go on with log-probabilities, in a list of edits of both stages
    MARKS = 11  # keep marks, the ids from one on, in order around segments of text
    RECORD = 12  # write down the log-probabilities of some tokens at one place, and change nothing
    AUTOMATON = 13  # allow what an automaton allows, by its weights, where steps follow one another
    COUNTS = 14  # penalise tokens by how often they are there
    SEQUENCE_BIAS = 15  # add to the ends of sequences


class EditRule(NamedTuple):
    """One edit: what a kernel is told beside the parameters of the processor."""

    edit: Edit
    numbers: tuple[int, ...] = ()  # two at most
    reads_history: bool = False
    counts_start: bool = False  # what a hypothesis goes on from is part of its history

    @property
    def words(self) -> list[int]:
        """The edit and two numbers."""
        return [int(self.edit), *[*map(int, self.numbers), 0, 0][:2]]


class EditList(NamedTuple):
    """Edits, one after another, as C++ takes them."""

    rules: list[int]  # `EditRule.words` of each
    arrays: tuple[Tensor, ...]  # of all, in their order


class ColumnRules(NamedTuple):
    """How logits become columns, one for EOS and one for every token that may follow."""

    eos_id: int
    eos_first: bool  # its column is the first one, else the last
    # for tokens; 0: at least as many as a row of the call needs, which the host must know
    num_columns: int
    normalise: int  # a `Normalise`


class ColumnTokens(NamedTuple):
    """The tokens of the columns of each row: those of the edges of its state, and EOS."""

    token: Tensor  # [E] int32, of every edge
    first: Tensor  # [F + 1] int32, edges of state s < F are first[s] .. first[s + 1]
    node: Tensor  # [R] int32, the state of each row; -1 outside
    eos_id: int
    eos_first: bool  # see `ColumnRules`


class SelectOptions(NamedTuple):
    """The rules of one `select`; `pybeam.ops.select` says what each means. None: the rule is off."""

    capacity: int
    eos_ids: Sequence[int] = (-1,)
    finishing: int = Finishing.NONE
    normalise: bool = True
    is_ended: Tensor | None = None  # [B] bool, per entry; the others are per beam
    max_candidates: Tensor | None = None  # [S] int32
    margin: Tensor | None = None  # [S] float32
    local_margin: Tensor | None = None  # [S] float32
    best_finished: Tensor | None = None  # [S] float32
    forced: Tensor | None = None  # [S] int32
    ban_eos: Tensor | None = None  # [S] bool

    @property
    def most_places(self) -> int:
        """The places of the widest beam whose survivors fit in `capacity`."""
        return -(-self.capacity // 2) if self.finishing == Finishing.REFILL else self.capacity

    @property
    def most_candidates(self) -> int:
        """The candidates of such a beam that the finishing rule sees."""
        per_place = 1 + len(self.eos_ids) if self.finishing == Finishing.REFILL else 1
        return self.most_places * per_place


class Paths(NamedTuple):
    """Which cells rows see beside those that all rows of a source see (an argument of `tree_attention`)."""

    #: [S, K, T] int32, by slot and entry: rising places in the list of cells, counted behind those that all
    #: rows see; -1: none
    place: Tensor
    length: Tensor  #: [S] int32, columns of `place` that are in use
    #: [S] int32, cells that all rows see, first in the list; None: none
    num_shared: Tensor | None = None


class Cells(NamedTuple):
    """The cells that R rows of A sources attend over: see `pybeam.ops.tree_attention`.

    Masks or paths say which cells a row sees. Without both it sees all.
    """

    offset: Tensor  #: [A + 1] int32, rows of the a-th source are ``offset[a] .. offset[a + 1]``
    slot: Tensor  #: [A] int32, the line of each source in the tables below
    cell: Tensor  #: [S, U] int32
    num_cells: Tensor  #: [S] int32
    mask: Tensor | None = None  #: [S, U, W] int64, which entries see a cell
    entry: Tensor | None = None  #: [R] int32, the entry of each row, where there are masks or paths
    paths: Paths | None = None  #: in place of masks


class NewNodes(NamedTuple):
    """The nodes that R rows of a step stand for: keys and values that attention writes to their cells.

    They stand last in the list of cells of their source, in the order of its rows.
    """

    key: Tensor  #: [R, G, D], any strides with the last one 1
    value: Tensor  #: [R, G, D]
    cell: Tensor  #: [R] int32; -1: nowhere


class Distances(NamedTuple):
    """Distances of rows and cells, and their part in attention: see `pybeam.ops.tree_attention`."""

    position: Tensor | None = None  #: [R] int32, of each row
    cell_position: Tensor | None = None  #: [cells] int32, of the token in each cell of the pool
    bias: Tensor | None = None  #: [H, L] float32, by distance
    origin: int = 0  #: the column of `bias` for distance 0
    window: int | None = None
    soft_cap: float | None = None


class Survivors(NamedTuple):
    """The candidates that `select` keeps, best first. ``C`` is the capacity, ``S`` the number of beams.

    The first ``num_finished[s]`` entries of beam ``s`` have finished, the entries up to ``count[s]``
    are its next beam. The rest is filled with token -1, parent -1, score and log_prob -inf.
    """

    token: Tensor  #: [S, C] int32
    parent: Tensor  #: [S, C] int32, entry of the beam it continues
    score: Tensor  #: [S, C] float32 (float64 on the reference backend with float64 logits)
    log_prob: Tensor  #: [S, C] log-probability of `token`; 0 for a held entry
    # a tuple's method of that name is hidden
    #: [S] int32
    count: Tensor  # type: ignore[assignment]
    num_finished: Tensor  #: [S] int32
    #: [S] bool, a row of this beam holds a NaN or +inf; the beam then has no survivors
    has_nan: Tensor
