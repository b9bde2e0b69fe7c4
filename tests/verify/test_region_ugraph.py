"""The steps of a region as a µGraph: the same values, exact and rounded."""

from dataclasses import replace

import numpy as np
import pytest
from goldens import GOLDENS
from small_models import region_of

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.match.canonical import make_region
from mirage_onnx.verify.domain import Float64, Rounded
from mirage_onnx.verify.equivalence import check_terms
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.region_ugraph import region_graph
from mirage_onnx.verify.samples import sample_extents, sample_inputs
from mirage_onnx.verify.step_axes import StepAxes, step_axes


def assert_same(region, *, rounded):
  sizes = sample_extents(region, 24, 4)
  inputs = sample_inputs(region, sizes, {}, np.random.default_rng(3))
  graph = region_graph(region)
  named = {i.name: graph.named(i, inputs[i.name]) for i in region.inputs}
  rows = next(iter(inputs.values())).shape[0]
  domain = Rounded(rows) if rounded else Float64(rows)
  got = interpret_ugraph(
    domain, graph.ugraph, (KernelParams(),), graph.extents_at(sizes), named
  )  # fmt: skip
  for row in range(rows):
    feed = {i.tensor.name: positional(i, inputs[i.name][row]) for i in region.inputs}
    want = interpret_steps(region, feed, rounded=rounded, extents=sizes)
    for o in region.outputs:
      x = by_axes(o, want[o.tensor.name], sizes)
      y = got[o.name].data[row].reshape(x.shape)
      # A mean divides here, and multiplies nowhere: the last bits of float64 may differ.
      np.testing.assert_allclose(y, x, rtol=2e-3 if rounded else 1e-9, atol=1e-9)


@pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)
@pytest.mark.parametrize("rounded", [False, True])
def test_steps_have_their_values(given, rounded):
  assert_same(given.region, rounded=rounded)


def test_joined_axes_dimensions_of_one_and_constants_with_exponents(net):
  x = net.input(1, 4, 8, 32)
  y = net.Gelu(net.Transpose(net.Mul(x, 3.0), perm=[0, 2, 1, 3]))
  region = region_of(net.model(net.Sub(y, net.ReduceMean(y, [-1]))))
  assert_same(region, rounded=False)


@pytest.mark.parametrize("rounded", [False, True])
def test_dimensions_split_joined_and_repeated(net, rounded):
  """A contraction and a sum over two axes each, a sum of what is repeated."""
  heads = net.Transpose(net.input(4, 6, 8), perm=[1, 0, 2])
  y = net.MatMul(net.Reshape(heads, [6, 32]), net.weight(32, 12))
  y = net.Reshape(net.Add(y, net.weight(12)), [6, 3, 4])
  y = net.Mul(y, net.Expand(net.Tanh(net.input(6, 1, 4)), [6, 3, 4]))
  y = net.Sub(y, net.ReduceMean(y, [2]))
  rows = net.Reshape(y, [6, 12])
  model = net.model(net.Div(rows, net.Sqrt(net.Add(net.ReduceSum(net.Mul(rows, rows), [1]), 1.0))))
  program = import_model(load_model(model))
  inputs = tuple(dict.fromkeys(
    i for n in program.nodes for s in n.steps for i in s.inputs
    if i in program.inputs or (i in program.weights and i not in program.constants)
  ))  # fmt: skip
  names = tuple(n.name for n in program.nodes)
  region = make_region(program, names, inputs, program.outputs)
  assert sorted(region.extents.values()) == [3, 4, 4, 6, 8]
  assert check_terms(region, np.random.default_rng(0)) is None
  assert_same(region, rounded=rounded)


def test_axes_of_steps_at_other_sizes(net):
  y = net.Reshape(net.MatMul(net.input(2, 3, 32), net.weight(32, 64)), [2, 3, 4, 16])
  region = region_of(net.model(net.rms(y, net.weight(16))))
  axes = step_axes(region)
  sizes = {a: 5 + k for k, a in enumerate(region.extents)}
  extents = axes.extents_at(sizes)
  shape = axes.shape(region.outputs[0].tensor.name, extents)
  rows, heads, width = (sizes[a] for a in region.outputs[0].axes)
  assert shape == (1, rows, heads, width)
  weight = next(i for i in region.inputs if i.splits_dims)
  assert axes.shape(weight.tensor.name, extents)[1] == heads * width
  with pytest.raises(ValueError, match="do not know the axis"):
    replace_extents(axes, region).extents_at(sizes)


def replace_extents(axes, region):
  longer = {a: n * 7 for a, n in region.extents.items()}
  return StepAxes(replace(region, extents=longer), axes.named)
