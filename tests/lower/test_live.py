"""Registers at the worst place of a kernel, and what is done where they are too many."""

from dataclasses import replace

import pytest
from cached_steps import cached_step
from golden_texts import PROGRAMS
from small_models import prover
from tiled_kernels import ATTENTION, CENTRED, NORM_LINEAR, case, errors

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import ugraph_extents
from mirage_onnx.lower import tiled_graph as kernel
from mirage_onnx.lower.choice import lowered
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import H200

#: o0 = i0 / sum(|i0|) over rows that are read twice.
TWICE = PROGRAMS["twice"]


@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (4, 256)])
def test_live_elements(rows, columns):
  """A row of maxima beside what was loaded, whose places what is saved takes."""
  threads = case(CENTRED, rows, warps=1, a0=rows, a1=columns).threads()
  plan = threads.plan
  held, most = plan.warps.registers(plan.lowering.forms[2]), plan.warps.registers(plan.lowering.forms[1])
  assert threads.live == held + most


def test_values_stay_in_registers_where_there_is_room():
  long = NORM_LINEAR.replace("post shared", "post A_frag")
  plans = [
    case(CENTRED, 4, warps=1, a0=4, a1=256).threads(),
    case(long, 16, 8, warps=1, a0=8, a1=1088, a2=32).threads(),
  ]
  assert [p.plan.lowering.held for p in plans] == [*kernel.HELD]
  assert all(p.live <= kernel._MOST_LIVE for p in plans)


def test_what_the_loop_carries_is_live_in_all_of_it():
  plan = case(ATTENTION, 16, 1, loop_tile=32, a0=1, a1=64, a2=16, a3=16, a4=16).threads()
  carried = [21, 11, 4]
  assert plan.live >= sum(plan.plan.warps.registers(plan.plan.lowering.forms[i]) for i in carried)


def test_what_is_made_of_rotations_before_the_loop_is_not_held_through_it():
  """Of 32 heads that share 8 caches: all warps have keys of their own, and none a half of the elements."""
  loaded = load_model(cached_step(1, 8, 4, 128, 32768))
  found = find_candidates(import_model(loaded), replace(TIMED, reductions=True), None).candidates
  region = next(c.region for c in found if any(n.endswith("attended") for n in c.nodes))
  result = search(region, H200, prover(), space=space_of(region), budget_s=900.0)
  graphs = [c.candidate for c in result.candidates if c.candidate.ugraph.kernels[0].loop]
  first, params = graphs[0].ugraph.kernels[0], replace(graphs[0].params[0], loop_tile=64, warps=4)
  extents = ugraph_extents(graphs[0].ugraph, (params, *graphs[0].params[1:]), region.extents)
  plan = lowered(graphs[0].ugraph, first, params, extents, H200).plan
  assert [(side[0].axis, count) for side, count in plan.warps.digits] == [(first.loop, 4)]
  assert plan.pieces.most_steps > 1


def test_another_way_where_the_best_does_not_fit(monkeypatch):
  c = case(TWICE, 4, loop_tile=64, warps=1, a0=8, a1=256)
  plan = c.threads()
  assert plan.live <= kernel._MOST_LIVE
  monkeypatch.setattr(kernel, "_MOST_WAYS", 1)
  best = c.threads()
  assert best.live > kernel._MOST_LIVE
  monkeypatch.undo()
  assert errors([c], 5)[0] < 1e-5
