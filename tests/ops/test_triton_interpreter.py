"""A little of every Triton kernel in the interpreter, in one process; `test_triton_*.py` have the rest."""

from __future__ import annotations

from support.triton_process import run_in_interpreter

ALL_OPTIONS = "max_candidates-margin-local_margin-best_finished-forced-ban_eos"
A_LITTLE = {
    "ops/test_select.py": (
        "test_empty",
        f"test_options[triton-0.3-{ALL_OPTIONS}-2]",
    ),
    "ops/test_select_eos.py": ("test_several_eos_leave_room_for_what_goes_on",),
    "ops/test_tree_attention.py": (
        "test_grouped_heads[triton-8-2]",
        "test_a_row_that_sees_nothing_is_zero",
        "test_bit_63_is_the_sign_bit",
        "test_no_rows",
    ),
    "ops/interpreted/test_keys.py": (
        "test_as_many_keys_reach_it_after_few_passes[from end to end]",
    ),
    "ops/interpreted/test_select_slices.py": ("test_lists_fit_the_widest_beams",),
    "ops/interpreted/test_tree_attention_splits.py": ("test_counters_are_shared_along_a_stream",),
    "ops/interpreted/test_new_nodes.py": (
        "test_several_tiles_of_a_source_read_its_new_nodes[2]",
        "test_rows_without_a_cell_or_with_a_wrong_one_write_nothing",
    ),
    "ops/interpreted/test_order_of_programs.py": (),
    "ops/test_prompt_attention.py": (
        "test_heads[triton-3-1-5]",
        "test_rows_behind_the_last_offset_are_zero",
    ),
    "ops/test_gather_rows.py": (
        "test_overlaps[triton-cycle-with-branches]",
        "test_overlaps[triton-some-do-not-move]",
        "test_no_tensors_raise_nothing",
    ),
    "ops/interpreted/test_rows_in_two_launches.py": (),
    "ops/test_scatter_rows.py": (
        "test_as_indexing[triton-5-dtype1]",
        "test_a_pool_with_wide_rows",
        "test_rows_without_a_place_are_dropped",
    ),
    "ops/test_backtrace.py": (),
    "ops/test_rms_norm.py": ("test_zeros_stay_zeros",),
    "ops/interpreted/test_add_norm.py": ("test_nan_stays_in_its_row",),
    "ops/interpreted/test_embed_norm.py": (
        "test_as_one_after_another[7-40-m2m_100]",
        "test_rows_that_there_are_not_read_nothing",
    ),
    "ops/interpreted/test_prompts_first.py": ("test_few_programs_for_long_lists",),
    "ops/interpreted/test_product.py": (
        "test_takes",
        "test_nan_stays_in_its_row",
        "test_a_row_of_few_bits_does_not_depend_on_how_many_there_are[int4]",
    ),
    "ops/interpreted/test_peaked_product.py": ("test_the_tile_is_chosen",),
    "ops/interpreted/test_gumbel_kernels.py": ("test_restore",),
    "ops/interpreted/test_float8_rows.py": ("test_the_bits_of_torch[64-dtype1]",),
    "ops/interpreted/test_edits.py": (
        "test_numbers_of_requests",
        "test_one_launch_a_stage",
    ),
    "ops/interpreted/test_log_softmax.py": ("test_as_torch[64-dtype1]",),
    "ops/interpreted/test_cut.py": (
        "test_as_the_processor[k-7-True]",
        "test_as_the_processor[p-7-True]",
    ),
    "ops/interpreted/test_plain_layers.py": ("test_as_with_torch[llama]",),
    "ops/test_turn_heads.py": ("test_by_hand",),
    "ops/interpreted/test_heads_in_triton.py": (
        "test_positions_outside_of_the_table_read_nothing",
    ),
    "ops/test_gated.py": ("test_as_its_formula[triton-1-300-4]",),
    "ops/test_automata_in_pools.py": ("test_as_the_plain_step",),
    "ops/test_automata.py": (
        "test_columns[triton-dtype0-0-1]",
        "test_a_row_that_is_not_sound_is_nan",
    ),
    "kvcache/test_token_tree.py": (
        "test_release_returns_every_page[paths-triton]",
        "test_growing_keeps_what_is_there",
    ),
    "ops/interpreted/test_beam_operators.py": ("test_the_best_of_beams_that_hold",),
    "ops/interpreted/test_plan_and_read.py": ("test_as_torch[20-streaming, budget-9]",),
    "ops/interpreted/test_tree_bounds.py": (
        "test_a_full_tree_takes_what_fits",
        "test_an_empty_pool_gives_no_cells",
        "test_parents_that_are_not_there",
        "test_a_source_of_many_pages_gives_all_back",
    ),
}


def test_a_little_of_every_kernel():
    chosen = [
        f"tests/{file}::{test}" if test else f"tests/{file}"
        for file, tests in A_LITTLE.items()
        for test in tests or ("",)
    ]
    run_in_interpreter(*chosen, "-k", "not native and not wrong_arguments")
