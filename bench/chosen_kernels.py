"""The kernels that a speed row runs: those of the replaced regions, and of those that were kept.

With a GPU the choice is the measured one of ``optimize``; of a region that was searched and kept
(onnxruntime is as fast), the fastest candidate of ours, because a miss needs an explanation.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from protocol import statistics

from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.ir.region import Region
from mirage_onnx.pipeline import HOPELESS, Options, run
from mirage_onnx.tune.measure import Inputs, prepare
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.weights import sample_weights

TRIES, SAMPLES = 8, 9


@dataclass(frozen=True)
class Chosen:
  """One node of ours. ``cold``: statistics of its time as ``protocol.py`` measures it."""

  case: str
  region: Region
  compiled: Compiled
  replaced: bool
  cold: dict[str, float]


def chosen_kernels(name, case, target, gpu, seconds):
  """Replaced regions first; without a GPU the predicted choice, not timed."""
  loaded = load_model(onnx.ModelProto.FromString(case.model.SerializeToString()))
  options = Options(
    target,
    margin=HOPELESS,
    budget_s=seconds,
    workers=1,
    measure=gpu is not None,
  )
  found = run(loaded, options)
  replaced = {o.region.key: o for _, o in found.chosen}
  covered = {n for o in replaced.values() for n in o.region.nodes}
  outcomes = list(replaced.values())
  kept = [o for k, o in found.outcomes.items() if o.result and k not in replaced]
  for o in sorted(kept, key=lambda o: -len(o.region.nodes)):
    if o.result and o.result.candidates and not covered & set(o.region.nodes):
      covered |= set(o.region.nodes)
      outcomes.append(o)
  for o in outcomes:
    chosen = _fastest(name, loaded, o, target, gpu)
    if chosen is not None:
      yield chosen


def _fastest(name, loaded, outcome, target, gpu):
  """The kernels of one region with their time; None if none of its candidates is right."""
  region, was, result = outcome.region, outcome.compiled is not None, outcome.result
  compiled = [outcome.compiled] if outcome.compiled is not None else []
  if not compiled and result is not None:
    candidates = [v.candidate for v in result.candidates][:TRIES]
    compiled, _ = compile_candidates(region, candidates, target, keep=TRIES if gpu else 1)
  if gpu is None:
    return Chosen(name, region, compiled[0], was, {}) if compiled else None
  try:
    data, oracle = draw(region, sample_weights(loaded, region), np.random.default_rng(0))
  except RejectionError:
    return None
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    arms = [(c, *prepare(gpu, region, c, inputs)) for c in compiled]
    right = [(c, replay) for c, replay, at in arms if not oracle.complaint(gpu, replay, at)]
    if not right:
      return None
    times = gpu.time_us([replay for _, replay in right], SAMPLES)
  best = int(np.argmin(np.median(times, axis=1)))
  return Chosen(name, region, right[best][0], was, statistics(times[best]))
