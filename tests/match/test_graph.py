"""Which values are moved weights is asked once of every node, however the moves are linked."""

import time

import numpy as np
import pytest

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.borders import Borders
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import MOST_UNIONS, Cut, Limits, _unions
from mirage_onnx.match.graph import Graph


def long_chain(net, op):
  x = net.input(8, 8)
  for _ in range(600):
    x = net.Transpose(x, perm=[1, 0]) if op == "Transpose" else net.Reshape(x, [8, 8])
  return net.model(x)


@pytest.mark.parametrize("op", ["Transpose", "Reshape"])
def test_a_long_chain_of_moves(net, op):
  """Once deeper than Python calls itself."""
  program = import_model(load_model(long_chain(net, op)))
  assert len(find_candidates(program).rejections) == 600


@pytest.mark.parametrize("picked", [False, True])
def test_moves_that_meet_again_and_again(net, picked):
  """Every path would be 2**40 of them."""
  a, b = net.weight(2, 64), net.weight(2, 64)
  if picked:
    a = net.Gather(net.weight(9, 64), net.input(2, dtype=np.int64))
  for _ in range(40):
    both = net.Concat(a, b, axis=0)
    a, b = (net.Slice(both, [0], [2]) for _ in range(2))
  product = net.MatMul(net.input(8, 4), net.Concat(a, b, axis=0))
  start = time.process_time()
  program = import_model(load_model(net.model(product)))
  graph = Graph(program)
  last = program.nodes[-1]
  assert graph.is_moved_weight(last.operands[1]) and graph.contracts_weight(last.name)
  assert time.process_time() - start < 2
  assert not any(map(Borders(graph).is_only_viewed, last.operands))


def test_a_sum_of_many_constants_inside_a_node(net):
  """A chain of 3000 steps in one node."""
  x = net.weight(4)
  program = import_model(load_model(net.model(net.Sum(*[x] * 3000))))
  assert Graph(program).reasons == {program.nodes[0].name: None}


def test_joined_cuts_have_a_limit():
  """30 operands that are each read or computed again from one value: 2**30 subsets."""
  choices = [
    [Cut(frozenset({"x"}), frozenset({f"n{i}"}), 0, 0), Cut(frozenset({"x"}), frozenset({f"m{i}"}), 0, 0)]
    for i in range(30)
  ]
  unions, too_large = _unions(choices, Limits(), Limits().leaves)
  assert len(unions) == MOST_UNIONS and not too_large
