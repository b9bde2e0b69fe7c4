"""Bounds of what candidate regions are made of, by what a run is."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import PREDICTED, STEPS, TIMED, limits_of
from mirage_onnx.match.graph import Graph

BERT = Path(__file__).parents[2] / "models" / "bert.onnx"


@pytest.mark.parametrize(
  ("asked", "limits"),
  [
    ({"steps": True, "timed": True}, STEPS),
    ({"steps": True, "timed": False}, STEPS),
    ({"steps": False, "timed": True}, TIMED),
    ({"steps": False, "timed": False}, PREDICTED),
  ],
)
def test_limits_of_a_run(asked, limits):
  assert limits_of(**asked) == limits


def test_attention_that_is_not_timed_computes_nothing_again():
  assert (TIMED.again_meeting, STEPS.again_meeting, PREDICTED.again_meeting) == (2, 1, 0)
  assert PREDICTED.again == TIMED.again and PREDICTED.depth == TIMED.depth > PREDICTED.weights_depth


def functions(net, x, count):
  """So many functions of elements in a row, of which nobody else reads one."""
  for i in range(count):
    x = (net.Sigmoid, net.Tanh, net.Neg)[i % 3](x)
  return x


@pytest.mark.parametrize(("count", "sizes"), [(32, [32]), (40, [8, 32]), (100, [4, 32, 32, 32])])
def test_a_chain_of_more_nodes_than_a_region_has_is_several(net, count, sizes):
  program = import_model(load_model(net.model(functions(net, net.input(8, 64), count))))
  found = find_candidates(program)
  assert sorted(len(c.nodes) for c in found.candidates) == sizes
  assert frozenset().union(*(c.nodes for c in found.candidates)) == {n.name for n in program.nodes}
  assert not found.rejections


def test_branches_that_are_too_large_together_are_regions_apart(net):
  x = net.input(8, 64)
  branches = [functions(net, x, 20), functions(net, net.Exp(x), 20)]
  program = import_model(load_model(net.model(net.Add(*branches))))
  found = find_candidates(program)
  assert {n.name for n in program.nodes} == frozenset().union(*(c.nodes for c in found.candidates))
  assert {20, 21} <= {len(c.nodes) for c in found.candidates}


@pytest.mark.parametrize("apart", [True, False])
def test_attention_is_offered_with_all_scales_and_no_bias(apart):
  program = import_model(load_model(BERT))
  graph = Graph(program)
  biases = {r for n in graph.contracting_weights for o in graph.node[n].outputs for r in graph.consumers[o]}

  def is_whole(nodes):
    kinds = Counter(graph.node[n].op_type for n in nodes)
    return (kinds["MatMul"], kinds["Softmax"], kinds["Mul"]) == (2, 1, 2)

  found = find_candidates(program, replace(TIMED, sums_apart=apart)).candidates
  whole = [c.nodes for c in found if is_whole(c.nodes)]
  assert whole and apart == any(biases.isdisjoint(nodes) for nodes in whole)
