"""The kernels as functions, checked at the door.

Every function takes ``backend="auto" | "reference" | "native" | "triton"``. ``auto`` is the native backend on
a CPU (the reference backend if the extension was not built), and Triton on a GPU. A backend that is named
never falls back to another one. Integer arguments that describe a layout are int32.

Words: a *slot* is the place of a source in the state. A *cell* is the place of one node's key and value in
the pool. A *page* is ``PAGE_CELLS`` neighbouring cells, which belong to one source at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from pybeam import arguments, backends
from pybeam.contracts import Cells, Distances, Finishing, Paths, SelectOptions, Survivors
from pybeam.ops import checks

# without the extension there are no operators
with suppress(ImportError):
    from pybeam.ops import fakes as fakes

__all__ = [
    "Distances",
    "Paths",
    "backtrace",
    "gather_rows",
    "scatter_rows",
    "select",
    "tree_attention",
]

# the options of `select` that are one number per beam
PER_BEAM = dict(
    max_candidates=torch.int32,
    margin=torch.float32,
    local_margin=torch.float32,
    best_finished=torch.float32,
    forced=torch.int32,
    ban_eos=torch.bool,
)


# the parameters are the contract of the kernel; the library itself hands over `SelectOptions`
def select(
    logits: Tensor,
    score: Tensor,
    offset: Tensor,
    *,
    width: Tensor,
    is_ended: Tensor | None = None,
    max_candidates: Tensor | None = None,
    margin: Tensor | None = None,
    local_margin: Tensor | None = None,
    best_finished: Tensor | None = None,
    forced: Tensor | None = None,
    ban_eos: Tensor | None = None,
    eos_id: int | Sequence[int] = -1,
    finishing: Finishing = Finishing.NONE,
    capacity: int | None = None,
    normalise: bool = True,
    backend: str = "auto",
) -> Survivors:
    """Keep the best continuations of every beam: log-softmax, top-M, top-K and pruning in one read.

    ``score'[b, v] = score[b] + ((logit[r, v] - max_r) - log(sum(exp(logit[r] - max_r))))`` where row
    ``r`` of the logits belongs to the r-th entry that has not ended. An ended entry is one candidate
    of its own: token ``eos_id`` (the first of several), its score unchanged, log_prob 0.

    Order. Within a row: logit descending, then token ascending (-0.0 counts as +0.0). Across the
    entries of a beam: score descending, then parent ascending, then rank within the parent. -inf is
    never selected. The order is exact on every backend; scores may differ by about 4 ulp.

    Rules, in this order, for each beam of width ``K``:

    1. at most ``max_candidates`` candidates of every row (EOS counts as one of them);
    2. the best ``K`` candidates (``REFILL``: ``2K``, or ``(1 + n) K`` with n EOS ids);
    3. finishing (see `Finishing`); under ``REFILL`` the first ``K`` that go on are kept;
    4. of those that go on or are held: drop if ``score' <= best - margin``, where ``best`` is the best
       of them, of those that finished now (``HELD`` only) and of ``best_finished``;
    5. drop those that go on if ``log_prob <= max(log_prob) - local_margin``, the maximum over
       the candidates of this step that rule 3 left in the beam (held entries have no log_prob and
       are exempt).

    A negative margin ``-d`` is the margin ``d`` that keeps ties: ``<`` in place of ``<=``.

    Args:
        logits: [R, V] float32, bfloat16 or float16 (reference: float64 too), any row stride.
        score: [B] float32, accumulated log-probability of every beam entry, beams one after another.
        offset: [S + 1] int32, entries of beam s are ``offset[s] .. offset[s + 1]``.
        width: [S] int32, ``K`` of every beam, 0 to 4,096.
        is_ended: [B] bool, held entries, which have no row of logits; None: none.
        max_candidates: [S] int32, ``M``; None: no limit.
        margin: [S] float32 in nats, ``inf`` for none. An absolute threshold ``d`` is the margin ``d``;
            a relative threshold ``rp`` (a ratio of probabilities) is the margin ``-log(rp)``.
        local_margin: [S] float32 in nats, ``-log(rpl)``; None: none.
        best_finished: [S] float32, best score finished earlier, ``-inf`` for none.
        forced: [S] int32; a token >= 0 is the only continuation of every row, at log_prob 0.
        ban_eos: [S] bool, EOS is no candidate (its probability is not given to others).
        eos_id: the token that ends a hypothesis, or up to 8 of them; -1: none.
        finishing: the rule for candidates that end.
        capacity: columns of the result, at least the survivors of any beam (on a GPU ``K``, or ``2K``
            under ``REFILL``); None: the largest number that can be needed.
        normalise: False: the logits are log-probabilities already, whatever they sum to, and
            ``score'[b, v] = score[b] + logit[r, v]``.
        backend: see the module.

    Returns:
        `Survivors`.

    Raises:
        ValueError: a shape, dtype, device or value is wrong.

    See Freitag and Al-Onaizan 2017 (pruning), Yang et al. 2020 (held finishing).
    """
    num_beams = checks.select(logits, score, offset, width, is_ended)
    finishing = Finishing(finishing)
    if capacity is None:
        most = int(width.max()) if num_beams else 0
        capacity = 2 * most if finishing == Finishing.REFILL else most
    options = SelectOptions(
        capacity=capacity,
        eos_ids=(-1,) if eos_id == -1 else arguments.eos_ids(eos_id),
        finishing=int(finishing),
        normalise=normalise,
        is_ended=is_ended,
        max_candidates=max_candidates,
        margin=margin,
        local_margin=local_margin,
        best_finished=best_finished,
        forced=forced,
        ban_eos=ban_eos,
    )
    for name, dtype in PER_BEAM.items():
        checks.per_beam(name, getattr(options, name), num_beams, dtype, logits.device)
    return backends.resolve(backend, logits.device).select(logits, score, offset, width, options)


# the parameters are the tensors of attention, which kernels take one by one
def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offset: Tensor,
    slot: Tensor,
    cell: Tensor,
    num_cells: Tensor,
    *,
    mask: Tensor | None = None,
    entry: Tensor | None = None,
    paths: Paths | None = None,
    scale: float | None = None,
    distances: Distances | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend with every row over the cells of its source. Each cell is read once for the whole beam.

    ``out[r, h] = sum_u p[r, h, u] value[cell_u, g]``, ``p = softmax_u(scale * query[r, h] . key[cell_u, g])``
    over the cells ``u < num_cells[slot]`` of row r's source whose mask has bit ``entry[r]``; head h uses
    key head ``g = h // (H // G)``. Lengths are ragged, nothing is padded; a row that sees no cell gets
    zeros. Sums are float32 whatever the dtype. Without ``mask`` every row sees every cell: that is
    cross-attention, and, with cells numbered as the rows are, encoder self-attention.

    In place of ``mask``, ``paths`` name the few cells that a row sees behind those that all rows see: u is
    below ``num_shared[slot]``, or ``u - num_shared[slot]`` is in ``place[slot, entry[r], :length[slot]]``. On
    a CPU the result is that of the same tree with masks, to the last bit.

    ``distances`` change the scores s of the products, in this order. With ``soft_cap`` c, s becomes
    ``c * tanh(s / c)``. With ``bias``, ``bias[h, clip(d + origin, 0, L - 1)]`` is added, where d is
    ``position[r] - cell_position[cell_u]``. With ``window``, r sees cells of ``0 <= d < window`` alone.

    Args:
        query: [R, H, D], any strides with the last one 1.
        key, value: [cells, G, D] pools, same dtype as query, any strides with the last one 1. On a CPU
            they may be bfloat16 where the query is float32; they are widened as they are read.
        offset: [A + 1] int32, rows of the a-th source are ``offset[a] .. offset[a + 1]``.
        slot: [A] int32, where the a-th source's cells are listed.
        cell: [S, U] int32, cells of every slot.
        num_cells: [S] int32.
        mask: [S, U, W] int64, bit b of word w: entry ``64 w + b`` of the beam sees this cell.
        entry: [R] int32, the entry of its beam that each row stands for; needed with ``mask`` and ``paths``.
        paths: `Paths`, ``place`` [S, K, T], ``length`` [S] and perhaps ``num_shared`` [S], all int32.
        scale: default ``D ** -0.5``.
        distances: ``position`` [R] int32 and ``cell_position`` [cells] int32, both needed with ``bias``
            [H, L] float32 or ``window``, which is at least 1; ``soft_cap`` is positive.

    Returns:
        [R, H, D], contiguous, dtype of query.

    Raises:
        ValueError: a shape, dtype, device or index is wrong.
    """
    cells = Cells(offset, slot, cell, num_cells, mask, entry, paths)
    checks.tree_attention(query, key, value, cells)
    if distances is not None:
        checks.distances(distances, query, key)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    own = backends.resolve(backend, query.device)
    return own.tree_attention(query, key, value, cells, scale, distances)


def gather_rows(
    tensors: list[Tensor], source: Tensor, target: Tensor, *, backend: str = "auto"
) -> None:
    """Move rows of per-row state in place: ``t[target[i]] = old t[source[i]]`` for every tensor.

    Safe when a source is also a target. Rows that are no target stay as they are, and where source or
    target is -1 nothing is moved.

    Args:
        tensors: each [N, ...], contiguous in all but the first dimension, any dtypes.
        source, target: [n] int32, row numbers or -1; no row is a target twice.

    Raises:
        ValueError: a shape, dtype, device or index is wrong.
    """
    checks.gather_rows(tensors, source, target)
    if tensors:
        backends.resolve(backend, tensors[0].device).gather_rows(tensors, source, target)


def scatter_rows(pool: Tensor, index: Tensor, rows: Tensor, *, backend: str = "auto") -> None:
    """Write rows into a pool: ``pool[index[i]] = rows[i]``; a row whose index is -1 is dropped.

    Args:
        pool: [N, ...], contiguous in all but the first dimension.
        index: [n] int32, numbers of the pool's rows, none twice, or -1.
        rows: [n, ...], contiguous in all but the first dimension, dtype of pool.

    Raises:
        ValueError: a shape, dtype, device or index is wrong.
    """
    checks.scatter_rows(pool, index, rows)
    backends.resolve(backend, pool.device).scatter_rows(pool, index, rows)


def backtrace(
    token: Tensor,
    parent: Tensor,
    slot: Tensor,
    node: Tensor,
    *,
    capacity: int,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Read hypotheses out of the token tree, from the root (included) down to the node.

    Args:
        token, parent: [S, N] int32, the nodes of every slot; the root's parent is -1.
        slot, node: [n] int32, the hypotheses asked for; node -1 gives an empty one.
        capacity: columns of the result, at least the longest hypothesis.

    Returns:
        tokens [n, capacity] int32, padded with -1 on the right, and length [n] int32.

    Raises:
        ValueError: a shape, dtype, device or index is wrong, or a hypothesis is longer than capacity.
    """
    checks.backtrace(token, parent, slot, node)
    tokens, length = backends.resolve(backend, token.device).backtrace(
        token, parent, slot, node, capacity
    )
    if length.numel() and int(length.max()) > capacity:
        raise ValueError(
            f"`capacity` must be at least the longest hypothesis, {int(length.max())}, but is {capacity}"
        )
    return tokens, length
