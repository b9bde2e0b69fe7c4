"""Choices made in a process are those that are made here, and are made here where it fails."""

from math import inf

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.choosing.choice_process import RoughApart, RoughHere
from mirage_onnx.choosing.partition import choose
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates


@pytest.fixture(scope="module")
def chain():
  """A program, its candidates and what nodes take."""
  net = Net()
  x = net.input(8, 64)
  for _ in range(3):
    x = net.Add(net.Relu(net.MatMul(x, net.weight(64, 64))), net.Exp(x))
  program = import_model(load_model(net.model(x)))
  candidates = find_candidates(program).candidates
  rng = np.random.default_rng(0)
  return program, candidates, {n.name: float(rng.uniform(2, 9)) for n in program.nodes}


def prices(chain, seed):
  _, candidates, node_us = chain
  rng = np.random.default_rng(seed)
  return [sum(node_us[n] for n in c.nodes) * float(rng.uniform(0.3, 1.1)) for c in candidates]


def test_the_same_choices(chain):
  program, candidates, node_us = chain
  here = RoughHere(program, node_us, None)
  with RoughApart(here, candidates) as apart:
    for seed in range(3):
      own = prices(chain, seed)
      some = range(seed, len(candidates))  # also of some of them
      picked = apart([candidates[i] for i in some], [own[i] for i in some], inf)
      want = choose(program, [candidates[i] for i in some], [own[i] for i in some], node_us, None, rough=True)
      assert picked == want and picked
    assert apart._worker is not None, "the process has answered"


def test_where_it_ends_or_is_asked_of_others_the_choice_is_made_here(chain):
  program, candidates, node_us = chain
  asked = []

  def here(some, times_us, until):
    asked.append(len(some))
    return (0,)

  here.program, here.node_us, here.alone = program, node_us, None
  with RoughApart(here, candidates[1:]) as apart:
    assert apart(candidates, prices(chain, 0), inf) == (0,), "one that it was not told of"
    apart._worker.kill()
    assert apart(candidates[1:], prices(chain, 0)[1:], inf) == (0,)
    assert apart(candidates[1:], prices(chain, 0)[1:], inf) == (0,)
  assert asked == [len(candidates), len(candidates) - 1, len(candidates) - 1]
