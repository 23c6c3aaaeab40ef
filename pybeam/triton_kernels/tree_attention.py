"""`tree_attention`: a tile of a source's rows attends over its live cells, and reads each cell once.

One program runs per (tile, key head, split). A tile is `BLOCK_M` query rows of one source: rows of its beam
times the query heads that share the key head. A source with few rows has one tile, so its whole beam
reads every key and value together. Where there are too few tiles to fill the device the cells are
split; the last program of a tile merges the parts in their order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.contracts import Distances, Paths
from pybeam.triton_kernels.attention_scores import finite_or_zero, logits_of
from pybeam.triton_kernels.attention_variants import MIN_BLOCKS, splits_of, variant_of
from pybeam.triton_kernels.counters import counters
from pybeam.triton_kernels.path_attention import add_paths

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK_SOURCES = tl.constexpr(128)


@triton.jit
def first_tile(offset, i_source, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Number the first tile of a source, without a scan: each source gets at least the tiles it needs."""
    return offset * GROUP // BLOCK_M + i_source


@triton.jit
def source_of(i_tile, p_offset, num_sources, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The source that a tile belongs to."""
    num_before = 0
    for start in range(0, num_sources, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        m_source = o_source < num_sources
        b_offset = tl.load(p_offset + o_source, mask=m_source, other=0)
        b_begins = m_source & (first_tile(b_offset, o_source, GROUP, BLOCK_M) <= i_tile)
        num_before += tl.sum(b_begins.to(tl.int32), 0)
    return num_before - 1


@triton.jit
def sees(p_mask, o_n, m_n, b_bit, MASK_WORDS: tl.constexpr):
    """[BLOCK_M, BLOCK_N]: bit ``bit % 64`` of word ``bit // 64`` of each cell's mask is set."""
    p_word = p_mask + o_n.to(tl.int64) * MASK_WORDS
    b_word = tl.load(p_word, mask=m_n, other=0)[None, :]
    for w in tl.static_range(1, MASK_WORDS):
        b_next = tl.load(p_word + w, mask=m_n, other=0)[None, :]
        b_word = tl.where((b_bit // 64 == w)[:, None], b_next, b_word)
    return (b_word >> (b_bit % 64).to(tl.int64)[:, None]) & 1 != 0


@triton.jit
def add_weighted(b_sum, b_weight, b_value):
    """``b_sum + b_weight @ b_value`` with float32 weights, whatever the dtype of the values."""
    if b_value.dtype == tl.float32:
        b_sum = tl.dot(b_weight, b_value, b_sum, input_precision="ieee")
    else:
        # one 16-bit number would round a weight to 8 or 11 bits, so a second one holds the remainder
        b_high = b_weight.to(b_value.dtype)
        b_low = (b_weight - b_high.to(tl.float32)).to(b_value.dtype)
        b_sum = tl.dot(b_low, b_value, tl.dot(b_high, b_value, b_sum))
    return b_sum


@triton.jit
def merge(p_sum, p_peak, p_total, num_parts, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Merge all parts in their order: weighted sum [BLOCK_M, BLOCK_D] and total weight [BLOCK_M]."""
    o_m, o_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    b_peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    for i in range(0, num_parts):
        # .cg: another multiprocessor wrote this, so it is not in the first-level cache
        b_peak = tl.maximum(b_peak, tl.load(p_peak + i * BLOCK_M + o_m, cache_modifier=".cg"))
    b_shift = finite_or_zero(b_peak)
    b_total = tl.zeros([BLOCK_M], tl.float32)
    b_sum = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for i in range(0, num_parts):
        o_part = i * BLOCK_M + o_m
        b_scale = tl.exp2(tl.load(p_peak + o_part, cache_modifier=".cg") - b_shift)
        b_total += b_scale * tl.load(p_total + o_part, cache_modifier=".cg")
        p_part = p_sum + o_part[:, None] * BLOCK_D + o_d[None, :]
        b_sum += b_scale[:, None] * tl.load(p_part, cache_modifier=".cg")
    return b_sum, b_total


@triton.jit(
    do_not_specialize=[
        "num_sources",
        "num_key_heads",
        "max_cells",
        "max_entries",
        "max_path",
        "num_splits",
        "bias_size",
        "bias_origin",
        "window",
    ],
    do_not_specialize_on_alignment=[
        "p_offset",
        "p_slot",
        "p_num_cells",
        "p_bit",
        "p_path",
        "p_path_length",
        "p_num_shared",
        "p_position",
        "p_cell_position",
    ],
)
def tree_attention_kernel(
    p_query,
    p_key,
    p_value,
    p_out,
    p_offset,
    p_slot,
    p_cell,
    p_num_cells,
    p_mask,
    p_bit,  # the rows' entries: bits of masks, or lines of paths
    p_path,
    p_path_length,
    p_num_shared,
    p_sum,  # [tiles * G, splits, BLOCK_M, BLOCK_D], unnormalised parts of the result
    p_peak,  # [tiles * G, splits, BLOCK_M], largest logit of each part
    p_total,  # [tiles * G, splits, BLOCK_M], weight of each part
    p_count,  # [tiles * G], parts that are written
    p_position,
    p_cell_position,
    p_bias,
    scale,
    soft_cap,
    bias_size,
    bias_origin,
    window,
    num_sources,
    num_key_heads,
    max_cells,
    max_entries,
    max_path,
    num_splits,
    query_row_stride,
    query_head_stride,
    key_cell_stride,
    key_head_stride,
    value_cell_stride,
    value_head_stride,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    MASK_WORDS: tl.constexpr,
    HAS_PATHS: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_unit, i_split = tl.program_id(0), tl.program_id(1)
    # heads innermost: programs that run together read neighbouring keys
    i_tile, i_head = i_unit // num_key_heads, i_unit % num_key_heads
    i_source = source_of(i_tile, p_offset, num_sources, GROUP, BLOCK_M)
    row_begin = tl.load(p_offset + i_source)
    num_queries = (tl.load(p_offset + i_source + 1) - row_begin) * GROUP
    query_begin = (i_tile - first_tile(row_begin, i_source, GROUP, BLOCK_M)) * BLOCK_M
    if query_begin >= num_queries:
        return
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    num_listed = tl.load(p_num_cells + i_slot)
    num_cells = num_listed  # that the rows read together
    if HAS_PATHS:
        num_cells = tl.load(p_num_shared + i_slot) if HAS_SHARED else num_listed * 0
    part_blocks = tl.maximum(tl.cdiv(tl.cdiv(num_cells, BLOCK_N), num_splits), MIN_BLOCKS)
    part_cells = part_blocks * BLOCK_N if HAS_SPLITS else num_cells
    num_parts = tl.cdiv(num_cells, part_cells) if HAS_SPLITS else 1
    # the first program writes the result of a source without cells
    if i_split >= tl.maximum(num_parts, 1):
        return

    # lines beyond the last repeat it: a mask would occupy registers throughout the loop
    o_m = tl.minimum(query_begin + tl.arange(0, BLOCK_M), num_queries - 1)
    o_d = tl.arange(0, BLOCK_D)
    m_d = (o_d < HEAD_SIZE)[None, :]
    o_row = row_begin + o_m // GROUP
    o_head = i_head * GROUP + o_m % GROUP
    o_query = o_row.to(tl.int64) * query_row_stride + o_head * query_head_stride
    b_query = tl.load(p_query + o_query[:, None] + o_d[None, :], mask=m_d, other=0.0)
    if MASK_WORDS > 0:
        b_bit = tl.load(p_bit + o_row)
        p_mask += i_slot * max_cells * MASK_WORDS
    if HAS_PATHS:
        p_own_path = p_path + (i_slot * max_entries + tl.load(p_bit + o_row)) * max_path
    b_position = o_row
    if HAS_BIAS or HAS_WINDOW:
        b_position = tl.load(p_position + o_row)
    p_cell += i_slot * max_cells
    p_key += i_head.to(tl.int64) * key_head_stride
    p_value += i_head.to(tl.int64) * value_head_stride

    b_peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    b_total = tl.zeros([BLOCK_M], tl.float32)
    b_sum = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    begin = i_split * part_cells
    end = tl.minimum(begin + part_cells, num_cells)
    for start in range(begin, end, BLOCK_N):
        o_n = start + tl.arange(0, BLOCK_N)
        m_n = o_n < end
        # the last cell stands in for those beyond the end, which nobody sees
        o_cell = tl.load(p_cell + tl.minimum(o_n, end - 1)).to(tl.int64)
        o_key = (o_cell * key_cell_stride)[:, None] + o_d[None, :]
        b_key = tl.load(p_key + o_key, mask=m_d, other=0.0)
        b_product = tl.dot(b_query, tl.trans(b_key), input_precision="ieee")
        if MASK_WORDS > 0:
            m_sees = sees(p_mask, o_n, m_n, b_bit, MASK_WORDS)
        else:
            m_sees = m_n[None, :]
        b_back = b_product
        if HAS_BIAS or HAS_WINDOW:
            b_back = b_position[:, None] - tl.load(p_cell_position + o_cell)[None, :]
        b_logit = logits_of(
            b_product,
            m_sees,
            b_back,
            o_head,
            scale,
            soft_cap,
            p_bias,
            bias_size,
            bias_origin,
            window,
            HAS_CAP,
            HAS_BIAS,
            HAS_WINDOW,
        )
        b_new_peak = tl.maximum(b_peak, tl.max(b_logit, 1))
        b_shift = finite_or_zero(b_new_peak)
        b_weight = tl.exp2(b_logit - b_shift[:, None])
        b_scale = tl.exp2(b_peak - b_shift)
        o_value = (o_cell * value_cell_stride)[:, None] + o_d[None, :]
        b_value = tl.load(p_value + o_value, mask=m_d, other=0.0)
        b_sum = add_weighted(b_sum * b_scale[:, None], b_weight, b_value)
        b_total = b_total * b_scale + tl.sum(b_weight, 1)
        b_peak = b_new_peak
    if HAS_PATHS:
        if i_split == 0:
            b_peak, b_total, b_sum = add_paths(
                p_own_path,
                tl.minimum(tl.load(p_path_length + i_slot), max_path),
                p_cell + num_cells,
                num_listed - num_cells,
                p_key,
                p_value,
                key_cell_stride,
                value_cell_stride,
                p_cell_position,
                b_query,
                b_position,
                o_head,
                scale,
                soft_cap,
                p_bias,
                bias_size,
                bias_origin,
                window,
                b_peak,
                b_total,
                b_sum,
                m_d,
                HAS_CAP,
                HAS_BIAS,
                HAS_WINDOW,
                BLOCK_D,
            )

    is_last = True
    if HAS_SPLITS:
        if num_parts > 1:
            i_first = i_unit.to(tl.int64) * num_splits * BLOCK_M
            o_part = i_first + i_split * BLOCK_M + tl.arange(0, BLOCK_M)
            tl.store(p_sum + o_part[:, None] * BLOCK_D + o_d[None, :], b_sum)
            tl.store(p_peak + o_part, b_peak)
            tl.store(p_total + o_part, b_total)
            # all threads must have written before one of them counts the part
            tl.debug_barrier()
            is_last = tl.atomic_add(p_count + i_unit, 1, sem="acq_rel") == num_parts - 1
            if is_last:
                tl.store(p_count + i_unit, 0)
                b_sum, b_total = merge(
                    p_sum + i_first * BLOCK_D,
                    p_peak + i_first,
                    p_total + i_first,
                    num_parts,
                    BLOCK_M,
                    BLOCK_D,
                )
    if is_last:
        # a row that sees no cell has weight 0 and gets zeros
        b_out = b_sum / tl.where(b_total == 0.0, 1.0, b_total)[:, None]
        o_out = (o_row.to(tl.int64) * num_key_heads * GROUP + o_head) * HEAD_SIZE
        p_line = p_out + o_out[:, None] + o_d[None, :]
        m_line = query_begin + tl.arange(0, BLOCK_M) < num_queries
        tl.store(p_line, b_out.to(p_out.dtype.element_ty), mask=m_line[:, None] & m_d)


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offset: Tensor,
    slot: Tensor,
    cell: Tensor,
    num_cells: Tensor,
    mask: Tensor | None,
    entry: Tensor | None,
    scale: float,
    distances: Distances | None = None,
    paths: Paths | None = None,
    *,
    num_splits: int | None = None,
) -> Tensor:
    """`pybeam.ops.tree_attention`; `num_splits` limits the parts, which else fit the device."""
    if query.dtype not in DTYPES:
        raise ValueError(f"`query` must be one of {DTYPES} for Triton, but is {query.dtype}")
    if key.dtype != query.dtype:
        raise ValueError(
            f"`key` must be {query.dtype} as `query` for Triton, but is {key.dtype}; the reference and "
            "native backends take bfloat16 beside float32"
        )
    num_rows, num_heads, head_size = query.shape
    num_sources, num_key_heads, max_cells = slot.numel(), key.shape[1], cell.shape[1]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if out.numel() == 0:
        return out
    group = num_heads // num_key_heads
    # beside the keys of each row's own path, large heads leave registers for the lowest tile alone
    num_queries = 1 if paths is not None and head_size > 64 else num_rows * group
    variant = variant_of(num_queries, num_sources, head_size, query.itemsize)
    variant = variant if paths is None else variant._replace(maxnreg=255)
    num_units = (num_rows * group // variant.BLOCK_M + num_sources) * num_key_heads
    place, length, num_shared = paths or (None, None, None)
    # only cells that rows read together are split
    num_splits = 1 if paths is not None and num_shared is None else num_splits
    if num_splits is None:
        num_splits = splits_of(num_units, max_cells, variant.BLOCK_N, query.device)
    sums = peaks = totals = count = None
    if num_splits > 1:
        num_lines = num_units * num_splits * variant.BLOCK_M
        sums = torch.empty(num_lines * variant.BLOCK_D, dtype=torch.float32, device=query.device)
        peaks, totals = sums.new_empty(2, num_lines)
        count = counters(num_units, query.device)
    given = Distances() if distances is None else distances
    arrays = given.position, given.cell_position, given.bias
    tree_attention_kernel[(num_units, num_splits)](
        query,
        key,
        value,
        out,
        offset.contiguous(),
        slot.contiguous(),
        cell.contiguous(),
        num_cells.contiguous(),
        None if mask is None else mask.contiguous(),
        None if entry is None else entry.contiguous(),
        None if place is None else place.contiguous(),
        None if length is None else length.contiguous(),
        None if num_shared is None else num_shared.contiguous(),
        sums,
        peaks,
        totals,
        count,
        *(None if tensor is None else tensor.contiguous() for tensor in arrays),
        scale,
        given.soft_cap or 0.0,
        0 if given.bias is None else given.bias.shape[1],
        given.origin,
        given.window or 0,
        num_sources,
        num_key_heads,
        max_cells,
        *((0, 0) if place is None else place.shape[1:]),
        num_splits,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        GROUP=group,
        HEAD_SIZE=head_size,
        MASK_WORDS=0 if mask is None else mask.shape[2],
        HAS_PATHS=paths is not None,
        HAS_SHARED=num_shared is not None,
        HAS_SPLITS=num_splits > 1,
        HAS_CAP=given.soft_cap is not None,
        HAS_BIAS=given.bias is not None,
        HAS_WINDOW=given.window is not None,
        **variant._asdict(),
    )
    return out
