"""The predicted choice is timed first: a run that ends early has it, if it turns out to be faster."""

from dataclasses import replace
from math import fsum, inf

import pytest

from mirage_onnx.choosing.choice_process import RoughHere
from mirage_onnx.choosing.disappearing import disappearing
from mirage_onnx.choosing.partition import choose
from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.tune.exploring import SPARE
from mirage_onnx.tune.predicted_first import PredictedFirst
from tests.tune.test_exploring import World, layered  # noqa: F401

MARGIN = 0.2


def first_of(world, margin=MARGIN):
  return PredictedFirst(RoughHere(world.program, world.node_us, None), world.node_us, margin)


def predicted(world, found):
  """Keys that predictions choose, and what they gain by true times, what loses left out."""
  offered = [o for o in found.values() if predicted_us(o) <= o.baseline_us]
  live = [(c, o) for o in offered for c in o.instances]
  prices = [predicted_us(o) for _, o in live]
  picked = choose(world.program, [c for c, _ in live], prices, world.node_us, None, rough=True)
  keys = {live[i][1].region.key for i in picked}
  wins = [(c, o) for c, o in (live[i] for i in picked) if world.true_us[o.region.key] < o.baseline_us]
  gone = disappearing(world.program, [c for c, _ in wins])
  gain = fsum(world.node_us[n] for n in gone) - fsum(world.true_us[o.region.key] for _, o in wins)
  return keys, gain


def predicted_us(o):
  return o.result.candidates[0].candidate.predicted_us / (1 - MARGIN)


def stopped_early(world, count, **more):
  """The time is over when so many regions were asked for."""
  world.asked.clear()
  found, _ = world.explored(ends=Ends(stopped=lambda: len(world.asked) >= count), **more)
  return found


def test_a_run_that_ends_early_is_not_worse_than_the_prediction(layered):  # noqa: F811
  """Without it, what may gain most is timed meanwhile: then some of these worlds have less."""
  less = 0
  for seed in range(4):
    world = World(layered, seed)
    keys, gain = predicted(world, world.outcomes)
    assert len(keys) > 2
    found = stopped_early(world, len(keys), first=first_of(world))
    assert keys <= {*world.asked} and len(world.asked) <= len(keys) + SPARE
    assert {*world.asked[: len(keys)]} == keys
    assert world.gain_us(found) >= gain - 1e-6
    less += world.gain_us(stopped_early(world, len(keys))) < gain
  assert less


def test_what_is_not_worth_its_seconds_is_not_timed(layered):  # noqa: F811
  """Nor what was timed, lost, was refused, or is predicted to win by less than the margin."""
  world = World(layered, 0)
  keys, _ = predicted(world, world.outcomes)
  gains = first_of(world)(world.outcomes, inf)
  assert {*gains} == keys and [*gains.values()] == sorted(gains.values(), reverse=True)
  key, other = [*gains][:2]
  timed = {**world.outcomes, key: world.tune(world.outcomes[key], 1.0)}
  assert {*first_of(world)(timed, inf)} == keys - {key}
  refused = replace(world.outcomes[other], rejection=Rejection("SPILLS", "", ()))
  assert other not in first_of(world)({**world.outcomes, other: refused}, inf)
  assert first_of(world, 0.99)(world.outcomes, inf) == {}
  assert first_of(world)({k: replace(o, result=None) for k, o in world.outcomes.items()}, inf) == {}

  world.node_us = {n: 0.001 * us for n, us in world.node_us.items()}
  world.outcomes = {k: replace(o, baseline_us=0.001 * o.baseline_us) for k, o in world.outcomes.items()}
  huge = {**world.node_us, "elsewhere": 1e6}
  world.explored(first=first_of(world))
  asked = [*world.asked]
  world.asked.clear()
  world.node_us = huge
  world.explored(first=first_of(world))
  assert asked and not world.asked


@pytest.mark.parametrize("lost", [True, False])
def test_what_lost_is_not_replaced_by_what_predictions_like_less(layered, lost):  # noqa: F811
  """Predictions would not know that it lost; what was refused they would."""
  world = World(layered, 3)
  gains = first_of(world)(world.outcomes, inf)
  key = next(iter(gains))
  world.true_us[key] = 2 * world.outcomes[key].baseline_us
  after = world.tune(world.outcomes[key], 1.0)
  assert after.rejection and after.rejection.measured
  refused = replace(after, rejection=Rejection("SPILLS", "", ()))
  left = {*first_of(world)({**world.outcomes, key: after if lost else refused}, inf)}
  assert (left == {*gains} - {key}) == lost
