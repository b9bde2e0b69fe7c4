"""A run of ``optimize`` that has chosen all regions of a small model, without a search."""

from mirage_onnx.match.candidates import Matches, RegionCandidate
from mirage_onnx.pipeline import Options, Run, with_these
from mirage_onnx.target import H200
from mirage_onnx.tune.outcome import Outcome

OPTIONS = Options(H200)


def a_run(three, loaded, options=OPTIONS):
  chosen, outcomes = [], {}
  for region, compiled in zip(three.regions, three.compiled, strict=True):
    names = frozenset(o.tensor.name for o in region.outputs)
    candidate = RegionCandidate(region, frozenset(region.nodes), names)
    outcome = Outcome(region, (candidate,), 1.0, compiled=compiled)
    outcomes[region.key] = outcome
    chosen.append((candidate, outcome))
  run = Run(loaded.given, None, Matches((), ()), tuple(chosen), outcomes)
  return with_these(run, loaded, options, range(3))
