"""Select the survivors of a step apart from its program, where more than logits decides."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pybeam.backends.arrays import SelectInputs
from pybeam.backends.tensor_beams import select_among, select_options
from pybeam.contracts import Survivors
from pybeam.models.rows import Rows
from pybeam.processors.chain import restore_log_probs
from pybeam.state.forced_decoding import Entries, demote_eos, force, next_forced, revive
from pybeam.state.live_arrays import LiveArrays


def survivors_apart(
    arrays: LiveArrays, given: Sequence[Tensor], rows: Rows, logits: Tensor
) -> Survivors:
    """Select the survivors of rows by their logits [R, V], so that targets, samplers and rules have a say.

    Args:
        arrays: the beams, and what they are searched by.
        given: the tensors of `SelectInputs`, as the program has read them.
        rows: those of the step.
        logits: processed ones; `select` normalises them unless they are log-probabilities.
    """
    active, chain, inputs = arrays.active, arrays.processors, SelectInputs(*given)
    target, score = None, inputs.score
    if active.target:
        target = next_forced(arrays.beams, rows.slot)
        score = revive(score, inputs.offset, target)
    options = select_options(arrays.rules, active, inputs, arrays.width_capacity)
    if target is not None and options.ban_eos is not None:
        # the target's token has its log-prob from the best one, which may be EOS
        options = options._replace(ban_eos=options.ban_eos & (target < 0))
    columns = None if chain.columns is None else chain.columns.tokens
    selected = logits, columns, inputs._replace(score=score), options
    places, select = (rows.slot, rows, arrays.beams.is_alive), arrays.backend.select
    if chain.rule is not None:
        own = chain.rule.data(rows)
        select = chain.rule.processor.selector(select, arrays.beams, rows, own)
    chosen = select_among(select, *selected, *places)
    if arrays.demotes and (active.prefix or active.target):
        chosen = demote_eos(chosen, arrays.beams, rows.slot, inputs.width)
    log_probs = chain.log_probs if chain.perturbs else None
    if log_probs is not None:
        is_alive = arrays.beams.is_alive
        chosen = restore_log_probs(arrays.backend, chosen, rows, is_alive, log_probs)
    if target is None:
        return chosen
    entries = Entries(inputs.score, inputs.offset)
    return force(chosen, target, rows, entries, logits, chain.normalises, log_probs)
