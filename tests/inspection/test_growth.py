"""Why a region stopped: one small model for every reason."""

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.importer import load_model
from mirage_onnx.inspection import Survey, survey_model
from mirage_onnx.inspection.growth import borders
from mirage_onnx.match.cuts import Limits
from mirage_onnx.target import H200


def survey(model):
  return survey_model(load_model(model), H200)


def instance(found, output, ops):
  return next(
    c
    for c in found.matches.candidates
    if c.outputs == {output} and tuple(found.op_type[n] for n in c.region.nodes) == ops
  )


def by_node(found, rows):
  return {found.op_type[b.node] if b.node else None: b for b in rows}


def test_the_model_ends(net):
  x = net.input(8, 64)
  y = net.Abs(net.Exp(x))
  found = survey(net.model(y))
  rows = borders(found, instance(found, y, ("Exp", "Abs")))
  assert [(b.tensor, b.is_input, b.node, b.rejection.code) for b in rows] == [
    (x, True, None, "GRAPH_BORDER"),
    (y, False, None, "GRAPH_BORDER"),
  ]
  assert [b.rejection.reason for b in rows] == [
    f"{x} is an input of the model",
    f"{y} is an output of the model",
  ]


def test_a_table_is_no_border(net):
  """What picks rows of it is one."""
  rows = net.input(4, 1, dtype=np.int64)
  y = net.Abs(net.Exp(net.GatherND(net.weight(8, 64), rows)))
  found = survey(net.model(y))
  read = [b.tensor for b in borders(found, instance(found, y, ("GatherND", "Exp", "Abs"))) if b.is_input]
  assert read == [rows]


def test_a_barrier_says_why_it_is_one(net):
  y = net.Abs(net.Exp(net.Hardmax(net.input(8, 64))))
  model = net.model(net.MatMul(y, net.Transpose(y, perm=[1, 0])))
  found = survey(model)
  rows = by_node(found, borders(found, instance(found, y, ("Exp", "Abs"))))
  assert rows["Hardmax"].rejection.code == "OP_UNKNOWN" and rows["Hardmax"].is_input
  assert rows["MatMul"].rejection.code == "AXES_CONFLICT" and not rows["MatMul"].is_input


def test_a_larger_region_is_offered(net):
  total = net.Add(net.input(8, 64), net.input(8, 64))
  y = net.Abs(net.Exp(total))
  found = survey(net.model(y, net.Tanh(total)))
  rows = by_node(found, borders(found, instance(found, y, ("Exp", "Abs"))))
  rejection = rows["Add"].rejection
  assert rejection.code == "LARGER_OFFERED"
  assert instance(found, y, ("Add", "Exp", "Abs")).region.key in rejection.reason


def two_layers():
  """Two contractions of 512 columns, each with its activation."""
  net = Net()
  hidden = net.Relu(net.MatMul(net.input(8, 512), net.weight(512, 512)))
  return net.model(net.Relu(net.MatMul(hidden, net.weight(512, 512)))), hidden


def test_a_wide_contraction_would_be_computed_again():
  model, hidden = two_layers()
  found = survey(model)
  (output,) = found.program.outputs
  first, second = (instance(found, o, ("MatMul", "Relu")) for o in (hidden, output))
  below = borders(found, first)[-1].rejection
  above = borders(found, second)[0].rejection
  assert below.code == "CONE_LIMIT" and "512 columns" in below.reason
  # The activation alone may be computed again, in the loop of the second contraction.
  assert above.code == "LARGER_OFFERED"


def long_chain():
  net = Net()
  y = net.input(8, 64)
  for _ in range(4):
    y = net.Exp(net.Abs(y))
  z = net.Abs(net.Tanh(y))
  return net.model(z, y), z, ("Tanh", "Abs"), Limits(nodes=2)


def deep_chain():
  net = Net()
  y = net.ReduceMean(net.input(8, 64), [-1])
  z = net.Add(net.ReduceSum(net.Mul(y, net.input(8, 64)), [-1]), 1.0)
  return net.model(y, z), z, ("Mul", "ReduceSum", "Add"), Limits(weights_depth=1)


def many_inputs():
  net = Net()
  total = net.Add(net.Add(net.input(8, 64), net.input(8, 64)), net.input(8, 64))
  z = net.Abs(net.Exp(total))
  return net.model(z, total), z, ("Exp", "Abs"), Limits(leaves=1)


@pytest.mark.parametrize(
  ("build", "text"),
  [
    (long_chain, "3 nodes, a region has at most 2"),
    (deep_chain, "2 reductions one after the other, a region has at most 1"),
    (many_inputs, "2 inputs besides weights, a region has at most 1"),
  ],
  ids=lambda f: getattr(f, "__name__", None),
)
def test_bounds_of_a_cone(build, text):
  """The survey is made with the usual bounds, the question is asked with tighter ones."""
  model, output, ops, limits = build()
  found = survey(model)
  one = instance(found, output, ops)
  matches = type(found.matches)((one,), found.matches.rejections)
  alone = Survey(found.program, matches, found.node_us, found.offers)
  rows = [b.rejection for b in borders(alone, one, limits) if b.node]
  assert ("CONE_LIMIT", text) in {(r.code, r.reason) for r in rows}


def test_a_cone_that_was_not_kept(net):
  total = net.Add(net.input(8, 64), net.input(8, 64))
  y = net.Abs(net.Exp(total))
  found = survey(net.model(y, total))
  one = instance(found, y, ("Exp", "Abs"))
  matches = type(found.matches)((one,), found.matches.rejections)
  rows = borders(Survey(found.program, matches, found.node_us, found.offers), one)
  assert [b.rejection.code for b in rows if b.node] == ["CUT_PRUNED"]
