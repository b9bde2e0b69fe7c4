"""Which test files take long: workers begin with these, so that none has a long one left at the end.

Seconds of one core, roughly (``pytest --durations 0``). Nothing but the order hangs on it.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = {
  "tests/test_real_size.py": 350,
  "tests/superopt/test_goldens_found.py": 320,
  "tests/test_loading.py": 300,
  "tests/test_dynamic_attention.py": 250,
  "tests/codegen/test_goldens.py": 180,
  "tests/superopt/test_completeness.py": 170,
  "tests/test_projections.py": 160,
  "tests/test_adding.py": 150,
  "tests/verify/test_mutants.py": 140,
  "tests/importer/test_odd_models.py": 100,
  "tests/tune/test_measure.py": 100,
  "tests/backend/test_backend.py": 100,
  "tests/tune/test_exploring.py": 100,
  "tests/codegen/test_random_kernels.py": 90,
  "tests/rewrite/test_killed.py": 90,
  "tests/superopt/test_search_structure.py": 80,
  "tests/test_beside_fuzz.py": 80,
  "tests/bench/test_coverage.py": 80,
  "tests/codegen/test_windows.py": 60,
  "tests/test_unusual.py": 60,
  "tests/targets/test_plausible.py": 60,
  "tests/test_resume.py": 60,
  "tests/test_pipeline.py": 60,
  "tests/bench/test_kernel_replay.py": 60,
  "tests/bench/test_altered.py": 60,
  "tests/test_pipeline_mutants.py": 60,
  "tests/test_readme.py": 60,
  "tests/test_embeddings.py": 60,
  "tests/test_cached_attention.py": 60,
  "tests/emulator/test_mutants.py": 50,
  "tests/test_several_targets.py": 50,
  "tests/test_tiled.py": 50,
  "tests/superopt/test_shared_units.py": 50,
  "tests/importer/test_steps_apart.py": 50,
  "tests/bench/test_ablation.py": 40,
  "tests/verify/test_term_bounds.py": 40,
  "tests/custom_op/test_plan_check.py": 40,
  "tests/formats/mirage/test_check.py": 40,
  "tests/superopt/test_random_programs.py": 40,
  "tests/test_warpgroups.py": 40,
  "tests/custom_op/test_threads.py": 40,
  "tests/test_identical_layers.py": 40,
  "tests/test_parts_in_place.py": 40,
  "tests/test_few_bits.py": 40,
  "tests/test_local_choice.py": 40,
  "tests/superopt/test_kept_case.py": 30,
  "tests/test_faults.py": 30,
  "tests/bench/test_cases.py": 30,
  "tests/bench/test_genai_decoder.py": 30,
  "tests/reduction/test_reduce.py": 30,
  "tests/test_regions.py": 30,
  "tests/importer/test_model_fuzz.py": 30,
  "tests/importer/test_fuzz.py": 30,
  "tests/test_docs.py": 30,
  "tests/test_wheel.py": 30,
  "tests/graphs/test_original_readme.py": 30,
  "tests/superopt/test_cached_attention.py": 30,
  "tests/test_dequantized.py": 30,
  "tests/test_subgraphs.py": 30,
  "tests/tune/test_paired.py": 30,
  "tests/tune/test_replay.py": 30,
  "tests/test_racing_noise.py": 30,
  "tests/tune/test_hard_inputs.py": 20,  # after test_loading.py, whose searches it finds
  "tests/tune/test_exploring_budget.py": 20,
}


def seconds(path):
  return LONGEST.get(path.relative_to(ROOT).as_posix(), 0) if path.is_relative_to(ROOT) else 0
