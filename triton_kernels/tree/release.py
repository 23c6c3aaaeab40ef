"""`tree_release`: return the pages of closed sources."""

import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant


@one_variant(anywhere=["p_slot"])
def release_kernel(
    p_num_nodes,
    p_num_live,
    p_path_length,
    p_num_free,
    p_page,
    p_num_pages,
    p_free_page,
    p_num_free_pages,
    p_slot,
    num_sources,
    num_slots,
    max_pages,
    max_free_pages,
    BLOCK: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
):
    """One program for all sources: their pages go onto the stack in the order of the sources."""
    await_kernels()
    num_free_pages = tl.load(p_num_free_pages)
    for start in range(0, num_sources, BLOCK):
        o_source = start + tl.arange(0, BLOCK)
        b_slot = tl.load(p_slot + o_source, mask=o_source < num_sources, other=-1).to(tl.int64)
        m_slot = (b_slot >= 0) & (b_slot < num_slots)
        b_held = tl.load(p_num_pages + b_slot, mask=m_slot, other=0)
        b_place = num_free_pages + exclusive_sum(b_held)
        most_held = tl.max(b_held, 0)
        for page in range(0, most_held, BLOCK_PAGES):
            o_page = page + tl.arange(0, BLOCK_PAGES)
            m_page = o_page[None, :] < b_held[:, None]
            p_held = p_page + b_slot[:, None] * max_pages + o_page[None, :]
            o_free = b_place[:, None] + o_page[None, :]
            b_page = tl.load(p_held, mask=m_page)
            tl.store(p_free_page + o_free, b_page, mask=m_page & (o_free < max_free_pages))
        num_free_pages += tl.sum(b_held, 0)
        tl.debug_barrier()
        tl.store(p_num_nodes + b_slot, 0, mask=m_slot)
        tl.store(p_num_live + b_slot, 0, mask=m_slot)
        tl.store(p_path_length + b_slot, 0, mask=m_slot)
        tl.store(p_num_free + b_slot, 0, mask=m_slot)
        tl.store(p_num_pages + b_slot, 0, mask=m_slot)
    tl.debug_barrier()
    tl.store(p_num_free_pages, tl.minimum(num_free_pages, max_free_pages))
