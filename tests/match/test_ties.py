"""Comparisons of a tensor with elements of its own: no region computes one side again."""

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import candidate, find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.match.repeated import RegionMaker


def peaks(net):
  heat = net.Sigmoid(net.input(1, 16, 64, 64))
  top = net.MaxPool(heat, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
  return net.Mul(heat, net.cast(net.Equal(top, heat), net.dtype))


def scores(net):
  return net.MatMul(net.Relu(net.input(64, 256)), net.weight(256, 32))


def threshold(net):
  x = scores(net)
  # The fourth largest of each row, as TopK would yield it (Net has operators of one output).
  largest = net.MaxPool(net.Unsqueeze(x, [0]), kernel_shape=[8], strides=[8])
  fourth = net.Slice(net.Squeeze(largest, [0]), [3], [4], [1])
  return net.Softmax(net.Where(net.Less(x, fourth), net.constant(-1e4), x), axis=-1)


def largest(net):
  x = scores(net)
  return net.Mul(net.cast(net.Equal(x, net.ReduceMax(x, [-1])), net.dtype), net.Softmax(x, axis=-1))


def load(tmp_path, build):
  net = Net(np.float16, opset=20)
  path = tmp_path / "model.onnx"
  path.write_bytes(net.model(build(net)).SerializeToString())
  return import_model(load_model(path))


def found(program, *ops):
  """The sets of operators of all candidates with these among them."""
  kinds = {n.name: n.op_type for n in program.nodes}
  sets = [sorted(kinds[n] for n in c.nodes) for c in find_candidates(program, TIMED).candidates]
  return [s for s in sets if set(ops) <= set(s)]


@pytest.mark.parametrize(
  ("build", "source", "compares"), [(peaks, "Sigmoid", "Equal"), (threshold, "MatMul", "Less")]
)
def test_what_is_compared_with_its_own_elements_is_computed_once(tmp_path, build, source, compares):
  program = load(tmp_path, build)
  assert found(program, compares)  # with both sides read
  assert not found(program, source, compares)


def test_one_region_with_all_of_a_comparison_computes_it(tmp_path):
  assert found(load(tmp_path, largest), "MatMul", "ReduceMax", "Equal")


def test_no_region_computes_one_side_for_a_comparison_elsewhere(tmp_path):
  program = load(tmp_path, largest)
  names = {n.op_type: n for n in program.nodes}
  covered = frozenset(names[x].name for x in ("MatMul", "ReduceMax"))
  both = {*names["MatMul"].outputs, *names["ReduceMax"].outputs}
  refused = candidate(RegionMaker(program), covered, frozenset(names["ReduceMax"].outputs))
  assert refused.code == "TIED" and "compares what" in refused.reason
  assert getattr(candidate(RegionMaker(program), covered, frozenset(both)), "code", "") != "TIED"
