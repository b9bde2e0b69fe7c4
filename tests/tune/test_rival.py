"""The choice that predictions would have made: of right kernels only, by predicted times and a margin."""

from dataclasses import replace
from math import inf

import pytest
import stand_ins
from small_models import Net

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.tune.outcome import grouped
from mirage_onnx.tune.race import Lost, Measured
from mirage_onnx.tune.rival import predicted_choice


@pytest.fixture
def world():
  """Four nodes, and their regions, each predicted to take 6 us; all were measured."""
  net = Net(seed=1, opset=18)
  y = net.Exp(net.Tanh(net.Abs(net.MatMul(net.input(16, 64), net.weight(64, 64)))))
  program = import_model(load_model(net.model(y)))
  node_us = {n.name: 10.0 for n in program.nodes}
  found = {}
  for key, o in grouped(find_candidates(program).candidates, node_us).items():
    result = stand_ins.found(6.0)
    compiled = stand_ins.compiled(result.candidates[0].candidate)
    found[key] = replace(o, result=result, compiled=compiled, measured=Measured(9.0, 10.0, 1))
  return program, node_us, found


class Free:
  """Nothing is refused, but what is named once."""

  def __init__(self, *keys):
    self.keys = list(keys)

  def refused(self, chosen):
    gone, self.keys = self.keys, []
    return {key: None for key in gone if key in {o.region.key for _, o in chosen}}

  losers = refused


def picked(world, found, margin=0.2, unsafe=(), measured=()):
  program, node_us, _ = world
  chosen = predicted_choice(
    program,
    found,
    node_us,
    None,
    margin,
    until=inf,
    instances=Free(*unsafe),
    dynamic=Free(),
    measured=measured,
  )
  return {o.region.nodes: o for _, o in chosen}


def of_length(found, n):
  return next(key for key, o in found.items() if len(o.region.nodes) == n)


def test_it_is_by_predictions(world):
  _, _, found = world
  assert [len(nodes) for nodes in picked(world, found)] == [4]
  whole = of_length(found, 4)
  best = found[whole].compiled
  # A region that was slower by itself is part of it, with the program that was the fastest.
  lost = Lost("NOT_FASTER", "", (), Measured(11.0, 10.0, 1), best)
  found[whole] = replace(found[whole], compiled=None, measured=None, rejection=lost)
  (o,) = picked(world, found).values()
  assert o.compiled is best and o.rejection is None and o.measured.kernel_us == 11.0


@pytest.mark.parametrize("code", ["KERNEL_WRONG", "NOT_TIMED", "NOT_FASTER"])
def test_what_was_not_seen_to_be_right_is_no_part_of_it(world, code):
  _, _, found = world
  whole = of_length(found, 4)
  found[whole] = replace(found[whole], compiled=None, measured=None, rejection=Rejection(code, "", ()))
  chosen = picked(world, found)
  assert chosen and all(len(nodes) < 4 for nodes in chosen)


def test_the_margin_and_unsafe_instances(world):
  _, _, found = world
  assert not picked(world, found, margin=0.9)
  chosen = picked(world, found, unsafe=(of_length(found, 4),))
  assert chosen and all(len(nodes) < 4 for nodes in chosen)


@pytest.mark.parametrize(("kernel_us", "is_rival"), [(7.6, True), (6.8, False), (2.0, False)])
def test_what_is_far_behind_by_what_was_measured_is_no_rival(world, kernel_us, is_rival):
  """Of the predicted choice 36 us of 40 were measured: no rival of 27 us, but one of 30."""
  _, _, found = world
  whole = found[of_length(found, 4)]
  other = replace(whole, measured=Measured(kernel_us, 10.0, 1))
  chosen = picked(world, found, measured=[(c, other) for c in whole.instances])
  assert bool(chosen) == is_rival
