"""Rank the best tokens of one row of logits, after all its slices have been read, and find its beam."""

import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import EMPTY, LAST, add_keys, index_of, key_of, sort_keys
from pybeam.triton_kernels.select.options import ends
from pybeam.triton_kernels.select.slice import DEPTH, LANES

ENTRIES = tl.constexpr(1024)
# entries of a beam, or columns of its survivors, that are handled at once
BLOCK = tl.constexpr(256)


@triton.jit
def entry_of(p_is_ended, i_row, num_entries):
    """Find the entry of a row: the live entry with i_row live entries before it.

    Returns `num_entries` if there is none.
    """
    entry = i_row * 0
    num_live = i_row * 0
    start = i_row * 0
    while (num_live <= i_row) & (start < num_entries):
        o_entry = start + tl.arange(0, ENTRIES)
        m_entry = o_entry < num_entries
        b_live = 1 - tl.load(p_is_ended + o_entry, mask=m_entry, other=1).to(tl.int32)
        b_row = num_live + tl.cumsum(b_live, 0) - 1
        entry += tl.sum(tl.where((b_live > 0) & (b_row == i_row), o_entry, 0), 0)
        num_live += tl.sum(b_live, 0)
        start += ENTRIES
    return tl.where(num_live > i_row, entry, num_entries)


@triton.jit
def beam_of(p_offset, entry, num_beams):
    """Find the beam of an entry. Its number is the number of beams that end at or before the entry."""
    beam = entry * 0
    for start in range(0, num_beams, ENTRIES):
        o_beam = start + tl.arange(0, ENTRIES)
        b_end = tl.load(p_offset + 1 + o_beam, mask=o_beam < num_beams, other=LAST)
        beam += tl.sum((b_end <= entry).to(tl.int32), 0)
    return beam


@triton.jit
def count_live(p_is_ended, begin, entry, end, has_ended):
    """Count the entries that have not ended: from begin to an entry, and from begin to end."""
    num_before, num_live = entry - begin, end - begin
    if has_ended:
        for start in range(begin, end, BLOCK):
            o_entry = start + tl.arange(0, BLOCK)
            b_ended = tl.load(p_is_ended + o_entry, mask=o_entry < end, other=0).to(tl.int32)
            num_before -= tl.sum(tl.where(o_entry < entry, b_ended, 0), 0)
            num_live -= tl.sum(b_ended, 0)
    return num_before, num_live


@triton.jit
def rank_tokens(
    row,
    p_key,
    num_groups,
    p_list,
    limit,
    num_banned,
    eos,
    PACK: tl.constexpr,
    LIST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the keys of the `limit` best logits of a row, in order; their index is the token.

    They stand behind LIST keys at `p_list`. LIST and CHUNK are those of `rank_candidates`.
    """
    p_ranked = p_list + LIST
    o_chunk = tl.arange(0, CHUNK)
    # more groups than the limit, because banned tokens may be among the best
    num_keys, wanted = num_groups, limit + num_banned
    num_kept = num_groups * 0
    # the best groups, then their best logits; one loop for both, because finding the largest keys is long
    for has_groups in range(2):
        p_kept = p_list + tl.where(has_groups > 0, 0, LIST)
        num_kept = num_groups * 0
        bound = num_kept.to(tl.int64) + EMPTY
        start = num_kept
        while start < num_keys:
            o_key = start + o_chunk - num_kept
            m_key = (o_chunk >= num_kept) & (o_key < num_keys)
            if has_groups > 0:
                b_key = logit_keys(row, p_ranked, o_key, m_key, num_banned, eos, PACK)
            else:
                b_key = tl.load(p_key + o_key, mask=m_key, other=EMPTY, cache_modifier=".cg")
            start += CHUNK - num_kept
            num_kept, bound, _ = add_keys(b_key, num_kept, bound, wanted, p_kept)
        num_keys = num_kept * (row.num_tiles * DEPTH) * PACK
        wanted -= tl.where(has_groups > 0, 0, num_banned)
    sort_keys(p_list, num_kept, p_ranked, wanted, LIST)


@triton.jit
def logit_keys(row, p_group, o_logit, m_logit, num_banned, eos, PACK: tl.constexpr):
    """Return the keys of these logits of the groups in a list."""
    b_token = token_of(row, p_group, o_logit, m_logit, PACK)
    m_banned = (num_banned > 0) & ends(b_token, eos)
    m_logit = m_logit & (b_token >= 0) & (b_token < row.num_columns) & ~m_banned
    p_logit = row.pack0 + row.shift + b_token
    return key_of(tl.load(p_logit, mask=m_logit, other=-float("inf")).to(tl.float32), b_token)


@triton.jit
def token_of(row, p_group, o_logit, m_logit, PACK: tl.constexpr):
    """Return the token of the o-th logit of the groups in a list, or one beyond the row if there is none."""
    group_packs = row.num_tiles * DEPTH
    b_item = o_logit % PACK
    b_depth = o_logit // PACK % group_packs
    b_group = o_logit // PACK // group_packs
    b_key = tl.load(p_group + b_group, mask=m_logit, other=EMPTY, cache_modifier=".cg")
    b_first = index_of(b_key)
    slice_packs = group_packs * LANES
    b_pack = b_first // slice_packs * slice_packs + b_depth * LANES + b_first % LANES
    return b_pack * PACK + b_item - row.shift
