"""The steps of the threads: golden thread graphs, what is fused, what is made in place."""

from dataclasses import replace

import pytest
from golden_texts import PROGRAMS
from tiled_kernels import ATTENTION, CENTRED, NORM_LINEAR, case, product

from mirage_onnx.errors import RejectionError
from mirage_onnx.lower.steps import (
  Contract,
  Copy,
  Fetch,
  Gather,
  GatherRanks,
  Meet,
  Pack,
  Publish,
  Read,
  Spill,
  ThreadBarrier,
  ThreadRun,
  Update,
)
from mirage_onnx.lower.tiled_graph import tiled_graph
from mirage_onnx.target import H200

#: The sums of squares of rows.
SQUARES = PROGRAMS["squares_of_rows"]


def _steps(c):
  steps = c.threads().steps
  return [*steps.before, *steps.body, *steps.after]


def _text(step):
  """A step in one line."""

  def held(to):
    return f"%{to.index}{' packed' if to.packed else ''} {to.form.text}"

  match step:
    case Fetch(to=to):
      return f"fetch {held(to)}"
    case Read(to=to):
      return f"read {held(to)} from {step.tile}"
    case Spill(held=own):
      return f"spill {held(own)} to {step.tile}"
    case ThreadRun():
      return f"run {' '.join(f'%{i}' for i in step.ops)} {step.form.text}"
  name = "barrier" if isinstance(step, ThreadBarrier) else type(step).__name__.lower()
  return f"{name} %{step.index}"


def _texts(c):
  steps = c.threads().steps
  runs = (("before", steps.before), ("loop", steps.body), ("after", steps.after))
  return "".join(f"{name}:\n" + "".join(f"  {_text(s)}\n" for s in own) for name, own in runs if own)


def _of(c, *kinds):
  return [(type(s).__name__, s.index) for s in _steps(c) if isinstance(s, kinds)]


def test_chained_contractions(golden):
  c = case(
    ATTENTION, 16, 1, cluster=2, loop_tile=32, warps=2, stages=2,
    a0=3, a1=128, a2=32, a3=16, a4=32,
  )  # fmt: skip
  assert _texts(c) == golden


def test_reduction_beside_a_contraction(golden):
  assert _texts(case(NORM_LINEAR, 32, 8, warps=4, a0=8, a1=64, a2=64)) == golden


def test_a_contraction_adds_to_its_accumulator():
  """It needs no registers of its own, unless something else takes it."""
  text = product()
  numbers = {"loop_tile": 32, "warps": 1, "a0": 16, "a1": 64, "a2": 16}
  fused = case(text, 16, 16, **numbers)
  assert [s.into for s in _steps(fused) if isinstance(s, Contract)] == [3]
  assert _of(fused, Update) == []
  text = text.replace("%3 = acc_sum %2", "%3 = acc_max %2")
  maximum = case(text, 16, 16, **numbers)
  assert [s.into for s in _steps(maximum) if isinstance(s, Contract)] == [2]
  assert _of(maximum, Update) == [("Update", 3)]


def test_parts_of_a_sum_meet_behind_the_loop():
  """Warps that share out the depth: once, where the accumulator is whole."""
  c = case(product(), 8, 8, loop_tile=256, warps=4, a0=8, a1=1024, a2=8)
  steps = c.threads().steps
  assert not [s for s in steps.body if isinstance(s, (Publish, Gather, Meet))]
  assert [type(s) for s in steps.after if isinstance(s, (Publish, Gather))] == [Publish, Gather]


def test_an_operand_that_the_loop_does_not_change_is_packed_before_it():
  c = case(ATTENTION, 16, 1, loop_tile=16, warps=1, a0=1, a1=64, a2=16, a3=16, a4=16)
  assert [(s.index, s.to.packed) for s in c.threads().steps.before if isinstance(s, Pack)] == [(1, True)]


@pytest.mark.parametrize(("columns", "kind"), [(512, Fetch), (2048, Copy)])
def test_a_tile_too_wide_for_registers(columns, kind):
  c = case(SQUARES, 4, warps=1, a0=4, a1=columns)
  assert _of(c, Fetch, Copy) == [(kind.__name__, 0)]


def test_a_tile_too_wide_for_shared_memory_too():
  """It is read where it is used."""
  assert _of(case(SQUARES, 8, warps=8, a0=8, a1=8192), Fetch, Copy, Spill) == []


def test_one_rank_has_nothing_to_exchange():
  numbers = {"loop_tile": 16, "a0": 1, "a1": 64, "a2": 16, "a3": 16, "a4": 16}
  assert _of(case(ATTENTION, 16, 1, warps=1, **numbers), GatherRanks) == []
  many = _of(case(ATTENTION, 16, 1, cluster=2, warps=1, **numbers), GatherRanks)
  assert many == [("GatherRanks", i) for i in (13, 17, 23)]


def test_an_operation_without_a_rule():
  c = case(CENTRED, 4, a0=4, a1=8)
  graph = c.graph
  ops = (*graph.kernels[0].ops[:2], replace(graph.kernels[0].ops[2], op="sort"))
  kernel = replace(graph.kernels[0], ops=ops)
  with pytest.raises(RejectionError, match="'sort'") as caught:
    tiled_graph(graph, kernel, c.params[0], c.extents, H200)
  assert caught.value.rejection.code == "EMIT_UNSUPPORTED"
