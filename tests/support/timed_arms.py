"""Sessions whose times are known: what the gate of a written model asks, without a GPU."""

import numpy as np
import onnx

from mirage_onnx.custom_op.race import Raced, Times
from mirage_onnx.tune.paired import speedup


class Timer:
  """Stands in for sessions: ``costs`` of kernels by what their nodes yield; the rest takes 100 us."""

  def __init__(self, costs, original_us=130.0, noise=0.0):
    self.costs, self.original_us, self.noise, self.asked = costs, original_us, noise, []

  def __call__(self, race):
    self.asked.append(race)
    us = [self.us(arm) for arm in race.arms]
    rng = np.random.default_rng(len(self.asked))
    pairs = [us[a] / us[b] * (1 + self.noise * rng.standard_normal(4)) for a, b in race.pairs]
    return Times((Raced("", "run", tuple(us), tuple(speedup(p, race.alpha) for p in pairs)),), (1,) * len(us))

  def us(self, arm):
    model = onnx.load(arm.path)
    custom = [n for n in model.graph.node if n.op_type.startswith("MuGraph_")]
    if not custom:
      return self.original_us
    own = sum(self.costs[n.output[0]] for n in custom if not set(n.output) & arm.bodies)
    return 100.0 + own + 10.0 * (3 - sum(not set(n.output) & arm.bodies for n in custom))


def costs(three, *us):
  names = [n.output[0] for n in three.model.graph.node if n.op_type.startswith("MuGraph_")]
  return dict(zip(names, us, strict=True))
