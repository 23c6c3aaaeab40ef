"""Rank the best tokens of one row of logits, after all its slices have been read, and find its beam."""

import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import EMPTY, LAST, index_of, keep_largest, key_of, sort_keys
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
def count_live(p_is_ended, begin, end, has_ended):
    """Count the entries from begin to end that have not ended."""
    num_live = end - begin
    if has_ended:
        for start in range(begin, end, BLOCK):
            o_entry = start + tl.arange(0, BLOCK)
            b_ended = tl.load(p_is_ended + o_entry, mask=o_entry < end, other=0).to(tl.int32)
            num_live -= tl.sum(b_ended, 0)
    return num_live


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
    MAX_GROUPS: tl.constexpr,
    LIST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the keys of the `limit` best logits of a row, in order; their index is the token.

    They stand behind LIST keys at `p_list`. LIST and CHUNK are those of `rank_candidates`.
    """
    p_ranked = p_list + LIST
    o_group = tl.arange(0, MAX_GROUPS)
    b_delegate = tl.load(
        p_key + o_group, mask=o_group < num_groups, other=EMPTY, cache_modifier=".cg"
    )
    # more than the limit, because banned tokens may be among the best
    num_best, _ = keep_largest(b_delegate, limit + num_banned, p_ranked)
    num_logits = num_best * (row.num_tiles * DEPTH) * PACK
    o_chunk = tl.arange(0, CHUNK)
    num_kept = num_best * 0
    bound = num_kept.to(tl.int64) + EMPTY
    for start in range(0, num_logits, CHUNK - LIST):
        o_logit = start + o_chunk - LIST
        m_logit = (o_chunk >= LIST) & (o_logit < num_logits)
        b_token = token_of(row, p_ranked, o_logit, m_logit, PACK)
        m_banned = (num_banned > 0) & ends(b_token, eos)
        m_logit = m_logit & (b_token >= 0) & (b_token < row.num_columns) & ~m_banned
        p_logit = row.pack0 + row.shift + b_token
        b_logit = tl.load(p_logit, mask=m_logit, other=-float("inf")).to(tl.float32)
        b_key = key_of(b_logit, b_token)
        if tl.max(b_key, 0) > bound:
            b_kept = tl.load(
                p_list + o_chunk, mask=o_chunk < num_kept, other=EMPTY, cache_modifier=".cg"
            )
            num_kept, bound = keep_largest(tl.maximum(b_key, b_kept), limit, p_list)
    sort_keys(p_list, num_kept, p_ranked, limit, LIST)


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
