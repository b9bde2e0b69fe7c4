"""What the search finds in the whole space of block graphs, and whether it is right."""

from dataclasses import replace
from functools import cache

from mutant_oracle import EVEN, UNEVEN, difference, scene
from op_by_op import op_by_op_us
from program_net import weight_values
from search_programs import ENTRIES, PROGRAMS

from mirage_onnx.errors import REJECTIONS
from mirage_onnx.superopt.result import default_bound
from mirage_onnx.superopt.search import Stop, search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import H200
from mirage_onnx.verify.prover import prover

FASTER, SLOWER = "faster", "NOT_FASTER"
#: Several programs are predicted to be as fast as the best: eight are proven, not four, and there
#: is room for all their numbers. What comes first is the same.
BOUND = replace(default_bound(ALL), verified=8, candidates=64)
#: Sizes of the axes in the order of their names: all different, and enough for every split.
EXTENTS = {UNEVEN: (7, 11, 5, 9, 13, 6, 8), EVEN: (12, 8, 4, 12, 8, 4, 4)}


@cache
def found(name, kernels=BOUND.kernels, looped=False):
  """What the search of a program finds; of ``kernels`` at most, all of them with a loop."""
  prove = prover(PROGRAMS[name](), weight_values(ENTRIES[name].build), derived=True)
  bound = replace(BOUND, kernels=kernels)
  allow = (lambda kernel, params: kernel.loop is not None) if looped else None
  return search(PROGRAMS[name](), H200, prove, bound=bound, space=ALL, allow=allow, budget_s=900.0)


def wrong(region, graph):
  """How a µGraph differs from its region in float64 on hard inputs, or None.

  Neither interpreter nor extents nor inputs are those of the verifier.
  """
  for sizes in (UNEVEN, EVEN):
    made = scene(region, sizes, _extents(region, sizes))
    if (reason := difference(graph, made)) is not None:
      return reason
  return None


def _extents(region, sizes):
  return dict(zip(sorted(region.extents), EXTENTS[sizes], strict=False))


def outcome(region, result):
  """``faster``: the best candidate is predicted to beat the region op by op; else a typed reason.

  That is why the search stopped, else the code that most of its refusals have.
  """
  if result.candidates:
    best = result.candidates[0].candidate.predicted_us
    return FASTER if best < op_by_op_us(region, H200) else SLOWER
  if result.report.stop is not Stop.EXHAUSTED:
    return result.report.stop.value
  codes = [r.code for r in result.report.refused]
  return max(sorted(set(codes)), key=codes.count, default="NO_CANDIDATE")


def is_typed(reason):
  return reason in REJECTIONS or reason in {s.value for s in Stop} - {Stop.EXHAUSTED.value}
