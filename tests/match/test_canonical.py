"""Two spellings of one program give one region; different programs do not."""

from collections.abc import Callable

import numpy as np
import pytest
from small_models import Net, matches, region_of

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.axes import name_axes
from mirage_onnx.match.canonical import make_region

Build = Callable[[Net], str]


def region(build, prefix=""):
  net = Net(prefix=prefix)
  return region_of(net.model(build(net)))


def norm(root, finish):
  def build(net):
    x = net.input(8, 64)
    total = net.Add(net.ReduceMean(net.Mul(x, x), [-1]), 0.5)
    return net.MatMul(finish(net, x, root(net, total)), net.weight(64, 32))

  return build


NORMS = {
  "x / sqrt": norm(lambda n, v: n.Sqrt(v), lambda n, x, r: n.Div(x, r)),
  "x * recip(sqrt)": norm(lambda n, v: n.Reciprocal(n.Sqrt(v)), lambda n, x, r: n.Mul(x, r)),
  "recip(sqrt) * x": norm(lambda n, v: n.Reciprocal(n.Sqrt(v)), lambda n, x, r: n.Mul(r, x)),
  "x * pow -1/2": norm(lambda n, v: n.Pow(v, -0.5), lambda n, x, r: n.Mul(x, r)),
  "x / pow 1/2": norm(lambda n, v: n.Pow(v, 0.5), lambda n, x, r: n.Div(x, r)),
  "x * (1 / sqrt)": norm(lambda n, v: n.Div(1.0, n.Sqrt(v)), lambda n, x, r: n.Mul(x, r)),
  "x * sqrt(recip)": norm(lambda n, v: n.Sqrt(n.Reciprocal(v)), lambda n, x, r: n.Mul(x, r)),
}


@pytest.mark.parametrize("spelling", NORMS)
def test_spellings_of_a_reciprocal_root(spelling):
  assert region(NORMS[spelling]).key == region(NORMS["x / sqrt"]).key


def test_spellings_of_a_square():
  def with_square(square):
    def build(net):
      x = net.input(8, 64)
      total = net.Add(net.ReduceMean(square(net, x), [-1]), 0.5)
      return net.MatMul(net.Div(x, net.Sqrt(total)), net.weight(64, 32))

    return build

  a = with_square(lambda n, x: n.Mul(x, x))
  b = with_square(lambda n, x: n.Pow(x, 2.0))
  assert region(a).key == region(b).key


def gated(gate):
  def build(net):
    x = net.input(8, 64)
    a, b = net.MatMul(x, net.weight(64, 32)), net.MatMul(x, net.weight(64, 32))
    return net.Mul(gate(net, a), b)

  return build


GATES = {
  "x * sigmoid(x)": gated(lambda n, x: n.Mul(x, n.Sigmoid(x))),
  "sigmoid(x) * x": gated(lambda n, x: n.Mul(n.Sigmoid(x), x)),
  "x / (1 + exp(-x))": gated(lambda n, x: n.Div(x, n.Add(1.0, n.Exp(n.Neg(x))))),
  "x / (exp(-x) + 1)": gated(lambda n, x: n.Div(x, n.Add(n.Exp(n.Neg(x)), 1.0))),
  "x * recip(1 + exp(-1 * x))": gated(lambda n, x: n.Mul(x, n.Reciprocal(n.Add(1.0, n.Exp(n.Mul(x, -1.0)))))),
}


@pytest.mark.parametrize("spelling", GATES)
def test_spellings_of_a_gate(spelling):
  assert region(GATES[spelling]).key == region(GATES["x * sigmoid(x)"]).key


def test_names_and_prefixes_do_not_matter():
  build = NORMS["x / sqrt"]
  a, b = region(build), region(build, prefix="model.layers.7/")
  assert a.key == b.key
  assert a.nodes != b.nodes


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Sub"])
def test_operands_of_commutative_nodes_may_be_swapped(op):
  def build(first):
    def made(net):
      y = net.MatMul(net.input(8, 64), net.weight(64, 32))
      pair = (y, net.input(8, 32))
      return getattr(net, op)(pair[first], pair[1 - first])

    return made

  assert (region(build(0)).key == region(build(1)).key) == (op != "Sub")


def shaped(rows):
  def build(net):
    x = net.input(rows, 64)
    return net.MatMul(net.rms(x, net.weight(64)), net.weight(64, 32))

  return build


def test_sizes_and_types_are_part_of_the_key():
  keys = {region(shaped(n)).key for n in (4, 8, 16)}
  net = Net(np.float32)
  y = net.MatMul(net.rms(net.input(8, 64), net.weight(64)), net.weight(64, 32))
  keys.add(region_of(net.model(y)).key)
  assert len(keys) == 4
  assert region(shaped(4)).structure == region(shaped(16)).structure


def test_constants_are_part_of_the_key():
  def build(value):
    return lambda net: net.Mul(net.MatMul(net.input(8, 64), net.weight(64, 32)), value)

  assert region(build(0.5)).key == region(build(0.5)).key
  assert region(build(0.5)).key != region(build(0.25)).key


def test_a_weight_is_not_an_activation():
  def build(make):
    def made(net):
      y = net.MatMul(net.input(8, 64), net.weight(64, 32))
      return net.Add(y, getattr(net, make)(8, 32))

    return made

  assert region(build("weight")).key != region(build("input")).key


def test_outputs_have_a_canonical_order():
  """Two results that play different parts keep their parts whatever comes first."""

  def build(swap):
    net = Net()
    x, y = net.input(8, 64), net.input(8, 64)
    total = net.Add(x, y)
    scaled = net.rms(total, net.weight(64))
    return region_of(net.model(*((scaled, total) if swap else (total, scaled))))

  a, b = build(False), build(True)
  assert len(a.outputs) == 2
  assert a.key == b.key


def test_a_weight_that_cancels_stays_an_input(net):
  x, z = net.weight(8, 64), net.input(8, 64)
  y = net.Exp(net.Add(z, net.Sub(x, x)))
  got = region_of(net.model(y))
  assert {i.tensor.name for i in got.inputs} == {x, z}
  assert "i1" not in str(got.terms)


def test_functions_of_constants(net):
  """A node over a scalar constant belongs to a region like any other."""
  scale = net.Add(net.Abs(net.constant(-1.5)), net.constant([0.5]))
  y = net.Div(net.MatMul(net.input(8, 64), net.weight(64, 32)), net.Sqrt(scale))
  got = region_of(net.model(y))
  assert len(got.inputs) == 2
  assert len(got.nodes) == 5


def program_of(net, *outputs):
  return import_model(load_model(net.model(*outputs)))


def made(net, *outputs):
  program = program_of(net, *outputs)
  nodes = tuple(n.name for n in program.nodes)
  read = {i for n in program.nodes for i in n.inputs}
  inside = {o for n in program.nodes for o in n.outputs}
  return make_region(program, nodes, tuple(sorted(read - inside)), outputs)


def test_one_axis_twice(net):
  x = net.input(32, 32)
  y = net.Add(x, net.Transpose(x, perm=[1, 0]))
  with pytest.raises(RejectionError) as caught:
    made(net, net.Exp(y))
  assert caught.value.rejection.code == "AXES_CONFLICT"
  assert "twice" in caught.value.rejection.reason


def test_no_axis_twice_without_the_sum(net):
  assert made(net, net.Exp(net.Transpose(net.input(32, 32), perm=[1, 0]))).inputs


def test_a_match_reports_the_conflict(net):
  x = net.input(32, 32)
  found = matches(net.model(net.Exp(net.Add(x, net.Transpose(x, perm=[1, 0])))))
  assert {r.code for r in found.rejections} >= {"AXES_CONFLICT"}


def test_a_power_that_is_no_rational(net):
  x = net.input(8, 64)
  got = matches(net.model(net.Exp(net.Pow(x, net.weight(64)))))
  assert {r.code for r in got.rejections} == {"OP_FORM", "TOO_SMALL"}


def test_name_axes_of_a_contraction(net):
  x, w = net.input(4, 8), net.weight(8, 16)
  program = program_of(net, net.MatMul(x, w))
  named = name_axes(program.nodes[0].steps, {x: (4, 8), w: (8, 16)}, {})
  assert named.axes[x][1] == named.axes[w][0] != ()
  assert sorted(named.extents.values()) == [4, 8, 16]


@pytest.mark.parametrize("depths", [(64, 32), (32, 64)])
def test_sums_that_differ_in_extents_only_are_ordered_by_them(depths):
  """x + a @ p + b @ q: both products are used alike, whichever stands first in the file."""

  def build(net):
    total = net.input(8, 128)
    for depth in depths:
      total = net.Add(total, net.MatMul(net.input(8, depth), net.weight(depth, 128)))
    return total

  def other_names(net):
    (a, p), (b, q) = ((net.input(8, d), net.weight(d, 128)) for d in depths)
    return net.Add(net.Add(net.MatMul(b, q), net.MatMul(a, p)), net.input(8, 128))

  assert region(build).key == region(other_names, "z").key
