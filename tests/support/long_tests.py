"""Tests of more than two seconds of a core, of what other tests of `make test` show, too: they are slow.

Measured by ``pytest --durations 0`` with one worker. Of a function with parameters those stay that take
least; of the others another one of the same file (``tests/test_conftest.py`` holds that each is there).
What is slow for another reason has the mark where it is.
"""

LONG = {
  "tests/bench/test_search.py": ("test_a_search_that_is_cut_is_recorded_as_such[--total-ENDED]",),
  "tests/bench/test_streaming_rows.py": (
    "test_every_set_of_features_has_programs_within_its_limits",
    "test_the_table_and_what_fails[1.2-True-0]",
    "test_the_table_and_what_fails[1.4-True-1]",
  ),
  "tests/choosing/test_partition.py": ("test_a_rough_choice_is_nearly_as_good",),
  "tests/codegen/test_random_kernels.py": ("test_with_the_features_of_others[sm_86]",),
  "tests/codegen/test_windows.py": ("test_boxes[windowed]",),
  "tests/codegen/tiled/test_ahead.py": ("test_results",),
  "tests/codegen/tiled/test_feed_text.py": ("test_right[4]",),
  "tests/codegen/tiled/test_ring_feed_text.py": ("test_right_in_the_emulator",),
  "tests/codegen/tiled/test_turns_text.py": ("test_right_in_the_emulator",),
  "tests/codegen/tiled/test_widened.py": (
    "test_right_in_the_emulator[4 bits]",
    "test_right_in_the_emulator[8 bits]",
    "test_right_in_the_emulator[a column each]",
    "test_right_in_the_emulator[bias]",
    "test_right_in_the_emulator[blocks of 128]",
    "test_right_in_the_emulator[residual]",
    "test_right_in_the_emulator[zero points]",
  ),
  "tests/custom_op/test_plan_check.py": ("test_every_field_of_every_line_is_compared[static-2-100]",),
  "tests/importer/test_odd_models.py": ("test_some_of_every_kind",),
  "tests/importer/test_steps_apart.py": (
    "test_steps_have_kernels_and_all_else_has_not[batches1]",
    "test_steps_of_caches_of_one_size",
    "test_verify_runs_steps_and_prompts[3]",
  ),
  "tests/reduction/test_reduce.py": ("test_only_what_is_needed_is_left",),
  "tests/rewrite/test_killed.py": ("test_every_step_of_writing[False]",),
  "tests/rewrite/test_random_regions.py": ("test_bits[float16]",),
  "tests/superopt/test_cached_attention.py": ("test_attention_over_a_cache_is_found[heads]",),
  "tests/superopt/test_completeness.py": ("test_the_search_finds_every_program[two]",),
  "tests/superopt/test_few_bits.py": (
    "test_any_numbers_are_right[gated-how2]",
    "test_any_numbers_are_right[norm-how0]",
    "test_any_numbers_are_right[norm-how1]",
  ),
  "tests/superopt/test_shared_units.py": (
    "test_any_number_of_workers_gives_the_same[layernorm_linear-None-EXHAUSTED]",
    "test_what_workers_find_is_what_is_found_here",
  ),
  "tests/superopt/test_unit_shortcuts.py": ("test_the_same_is_found_without_shortcuts[lora_two_adapters]",),
  "tests/test_api.py": (
    "test_pairs_of_models_in_memory",
    "test_verify_given_inputs",
  ),
  "tests/test_cached_attention.py": (
    "test_a_cache_that_may_grow_stays",
    "test_a_cache_whose_size_a_run_gives",
    "test_as_many_sequences_as_a_run_has",
    "test_kernels_in_place_and_beside_it[fp32]",
    "test_kernels_in_place_and_beside_it[rotary]",
    "test_kernels_in_place_and_beside_it[sequences of several lengths]",
    "test_lengths_that_are_no_places_of_the_cache[]",
    "test_norms_of_queries_and_keys",
  ),
  "tests/test_embeddings.py": (
    "test_as_many_as_a_run_says[dims0-twice]",
    "test_as_many_as_a_run_says[dims1-twice]",
    "test_as_many_as_a_run_says[dims2-twice]",
    "test_as_many_as_a_run_says[dims3-twice]",
  ),
  "tests/test_faults.py": (
    "test_a_fault_of_one_region[first-compile]",
    "test_a_fault_of_one_region[first-emulated run]",
    "test_a_fault_of_one_region[first-instances]",
  ),
  "tests/test_few_bits.py": (
    "test_fused[2 bits, zero points]",
    "test_fused[2 bits]",
    "test_fused[an uneven depth]",
    "test_fused[blocks of 16, 16 rows]",
    "test_fused[gate and up]",
    "test_fused[three products]",
    "test_fused[zero points]",
  ),
  "tests/test_pipeline.py": (
    "test_every_run_gives_the_same_bytes[norm_to_three]",
    "test_small[norm_to_three]",
    "test_small[residual]",
  ),
  "tests/test_racing_noise.py": (
    "test_few_openings_that_agree_by_luck",
    "test_what_passes_is_faster[costs0-100-1-even]",
    "test_what_passes_is_faster[costs0-100-1-two]",
    "test_what_passes_is_faster[costs1-100-1-even]",
    "test_what_passes_is_faster[costs1-100-1-two]",
    "test_what_passes_is_faster[costs3-100-2-even]",
    "test_what_passes_is_faster[costs3-100-2-two]",
  ),
  "tests/test_regions.py": ("test_random_regions",),
  "tests/test_searching.py": (
    "test_a_later_run_only_solves_for_numbers[2]",
    "test_any_number_of_workers_gives_the_same",
  ),
  "tests/test_several_targets.py": (
    "test_each_of_them_is_verified",
    "test_two_gpus_of_one_architecture",
  ),
  "tests/test_subgraphs.py": (
    "test_kernels_inside_and_outside[If]",
    "test_kernels_inside_and_outside[Scan]",
    "test_what_verify_diff_and_explain_see[Scan]",
  ),
  "tests/test_tiled.py": (
    "test_attention_becomes_kernels[3-65-float32]",
    "test_attention_becomes_kernels[5-257-float16]",
    "test_operator_with_masks[1-bool]",
  ),
  "tests/test_warpgroups.py": (
    "test_attention_of_many_queries",
    "test_linear_with_an_epilogue[rows0]",
  ),
  "tests/tune/test_beside.py": (
    "test_other_programs_of_a_part_are_tried_beside_the_others[projections]",
    "test_projections_of_one_value_are_one_node[projections]",
    "test_who_needs_the_other_is_no_sibling",
  ),
  "tests/tune/test_emulated.py": (
    "test_weights_of_few_bits_run_too[{'bits': 8, 'bias': True}]",
    "test_weights_of_few_bits_run_too[{'zero': True, 'block': 128}]",
  ),
  "tests/tune/test_exploring.py": (
    "test_a_larger_budget_is_more_patient",
    "test_most_of_the_gain_for_a_part_of_the_measurements",
    "test_what_its_share_was_too_short_for_has_another_one",
    "test_what_the_choice_wants_is_searched_first_and_the_rest_is_not",
  ),
  "tests/tune/test_measure.py": (
    "test_a_region_is_a_model_that_onnxruntime_runs[lora]",
    "test_parts_of_tensors",
  ),
  "tests/tune/test_paired.py": (
    "test_false_accepts[0.99-even]",
    "test_false_accepts[0.99-one_of_two]",
    "test_false_accepts[1.0-even]",
    "test_false_accepts[1.0-one_of_two]",
  ),
  "tests/tune/test_refine.py": ("test_where_the_compiler_spills_all_there_are_numbers_with_fewer_registers",),
  "tests/tune/test_replay.py": (
    "test_an_instance_that_is_unsafe_with_its_weights_is_refused",
    "test_regions_in_one_node",
    "test_weights_in_files",
  ),
}
