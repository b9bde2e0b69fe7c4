"""Programs that are right at some sizes only: shown right there, and rejected by the verifier."""

import pytest
from fragile_programs import FRAGILE
from mutant_oracle import EVEN, difference, scene, scenes

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.verify.equivalence import verify


@pytest.mark.parametrize("program", FRAGILE, ids=lambda p: p.name)
def test_a_program_that_is_right_only_at_friendly_sizes_is_rejected(program):
  region, graph = program.golden.region, program.graph
  # It is well-formed, so no other check would stop it,
  assert check_ugraph(graph) is None and check_interface(region, graph) is None
  # right where it is meant to be right (the case may not be empty),
  friendly = scene(region, EVEN, program.extents, cases=("normal",))
  assert difference(graph, friendly, program.params) is None, program.right_when
  # wrong in general,
  assert any(difference(graph, s) is not None for s in scenes(program.golden))
  # and refused.
  for seed in range(3):
    result = verify(region, graph, seed=seed)
    assert isinstance(result, Rejection), (program.right_when, result)


def test_the_golden_itself_is_right_at_the_friendly_sizes():
  for program in FRAGILE:
    if any(
      len(k.grid) != len(p.tile) for k, p in zip(program.golden.ugraph.kernels, program.params, strict=True)
    ):
      continue  # the grid itself is what is wrong
    friendly = scene(program.golden.region, EVEN, program.extents, cases=("normal",))
    assert difference(program.golden.ugraph, friendly, program.params) is None, program.name


def test_the_corpus_covers_grid_cluster_loop_and_extents():
  assert len(FRAGILE) >= 20
  assert len({p.name for p in FRAGILE}) == len(FRAGILE)
  assert len({p.right_when for p in FRAGILE}) >= 12
