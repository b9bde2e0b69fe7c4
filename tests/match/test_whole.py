"""A whole program as one region."""

from dataclasses import replace

import pytest

import mirage_onnx as mi
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.match.whole import whole_region


def graph():
  g = mi.new_kernel_graph()
  x, y, _unread = (g.new_input((4, 6), mi.float16) for _ in range(3))
  g.mark_output(g.add(g.exp(x), y))
  g.mark_output(g.reduction(y, 1))
  return g


def test_interface():
  region = whole_region(graph().program())
  assert {i.tensor.name for i in region.inputs} == {"x0", "x1"}
  assert sorted(o.tensor.name for o in region.outputs) == ["add1", "reduction2"]
  assert region.nodes == ("exp0", "add1", "reduction2")


def test_barriers_are_refused():
  program = graph().program()
  barrier = replace(program.nodes[1], barrier=Rejection("OP_UNKNOWN", "no semantics"))
  with pytest.raises(RejectionError) as e:
    whole_region(replace(program, nodes=(program.nodes[0], barrier, program.nodes[2])))
  assert e.value.rejection == Rejection("OP_UNKNOWN", "no semantics", ("add1",))
