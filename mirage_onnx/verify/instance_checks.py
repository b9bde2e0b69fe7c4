"""The checks of a candidate for instances of its region: each with its own steps and weights.

What can depend on them: where values overflow (range), and how they round (rounding, numbers). Ranges
are followed for each instance, from facts of its weights that are measured once. To see how values
round, instances whose steps do the same run side by side, on fewer kinds of inputs than the one that
was searched; where something is wrong, each alone and on all.
"""

from collections.abc import Callable, Sequence
from math import log2, prod

import numpy as np

from mirage_onnx import deadline
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import KernelParams, Region, RegionTensor, Tensor, UGraph
from mirage_onnx.ir.view import View
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.match.twins import Form, step_form
from mirage_onnx.verify.numeric import NumericCheck
from mirage_onnx.verify.program_lines import ugraph_lines
from mirage_onnx.verify.range_check import RangeCheck
from mirage_onnx.verify.rounding import RoundingCheck
from mirage_onnx.verify.samples import Part
from mirage_onnx.verify.weights import ModelWeights

#: Kinds of inputs on which weights tell something new.
ROUNDING, NUMERIC = ("normal", "outlier channels"), ("normal", "scale 2^-8", "outlier channels")
#: Instances that run side by side.
SIDE_BY_SIDE = 8
#: Elements of a weight that is looked at to see which instances are unlike.
SMALL = 1 << 16
Params = Sequence[KernelParams]
#: A weight or a part of one -> its scale; None: the model does not hold it.
Scales = dict[tuple[Tensor, View | None], float | None]


def check_instances(
  regions: Sequence[Region], graph: UGraph, params: Params, weights: ModelWeights
) -> tuple[Rejection | None, ...]:
  """For each of these instances why the candidate is unsafe with its steps and weights, or None."""
  forms: dict[Form, list[int]] = {}
  for n, region in enumerate(regions):
    forms.setdefault(step_form(region), []).append(n)
  found: dict[int, Rejection | None] = {}
  for places in forms.values():
    parts: list[Part] = [(regions[n], weights.of(regions[n])) for n in places]
    found |= zip(places, _of_one_form(parts, graph, params), strict=True)
  return tuple(
    r and Rejection(r.code, r.reason, region.nodes)
    for region, r in ((regions[n], found[n]) for n in range(len(regions)))
  )


def unlike(instances: Sequence[RegionCandidate], weights: ModelWeights, known: Scales) -> tuple[Region, ...]:
  """Of these instances those that a search should ask about besides the first one.

  Those with the smallest and the largest scales (weights of few elements), if they are others. ``known``: of
  the model; it learns.
  """

  def scale(c: RegionCandidate, w: RegionTensor) -> float | None:
    own = weights.of(c.region)
    if w.tensor.name not in own:
      return None
    return log2(max(float(np.max(np.abs(own[w.tensor.name].astype(np.float64)), initial=0.0)), 1e-30))

  def size(c: RegionCandidate) -> float:
    small = [w for w in c.weights if prod(c.extents[a] for a in w.axes) <= SMALL]
    known.update({(w.tensor, w.view): scale(c, w) for w in small if (w.tensor, w.view) not in known})
    return sum(known[w.tensor, w.view] or 0.0 for w in small)

  sizes = [size(c) for c in instances]
  places = dict.fromkeys((sizes.index(min(sizes)), sizes.index(max(sizes))))
  return tuple(instances[n].region for n in places if sizes[n] != sizes[0])


def check_ranges(parts: Sequence[Part], graph: UGraph) -> list[Rejection | None]:
  """RANGE for each of these instances of one form in which the candidate may overflow."""
  lines, first = ugraph_lines(graph), None
  found = list[Rejection | None]()
  for region, weights in parts:
    deadline.check()
    check = RangeCheck(region, weights, first)
    record = check.check(graph, lines)
    found.append(record if isinstance(record, Rejection) else None)
    first = first or check
  return found


def _of_one_form(parts: Sequence[Part], graph: UGraph, params: Params) -> list[Rejection | None]:
  found = _typed(lambda: check_ranges(parts, graph), len(parts))
  left = [n for n, refused in enumerate(found) if refused is None]
  # What reads no other weights rounds alike.
  own = {tuple(i.tensor.name for i in parts[n][0].weights): n for n in left}
  names = list(own.values())
  refused = dict[int, Rejection | None]()
  for start in range(0, len(names), SIDE_BY_SIDE):
    deadline.check()
    some = names[start : start + SIDE_BY_SIDE]
    together = [parts[n] for n in some]
    if _rounds(together, graph, params, ROUNDING, NUMERIC) is not None:
      refused |= {n: _rounds([parts[n]], graph, params, (), ()) for n in some}
  for n in left:
    key = tuple(i.tensor.name for i in parts[n][0].weights)
    found[n] = refused.get(own[key])
  return found


def _rounds(
  parts: Sequence[Part], graph: UGraph, params: Params, rounding: Sequence[str], numeric: Sequence[str]
) -> Rejection | None:
  """Why the candidate rounds worse than one of these instances; no cases: all of them."""
  (region, weights), *others = parts

  def run() -> list[Rejection | None]:
    first = RoundingCheck(region, weights, others=others, cases=rounding).check(graph, params)
    if isinstance(first, Rejection):
      return [first]
    second = NumericCheck(region, weights, others=others, cases=numeric).check(graph, params)
    return [second if isinstance(second, Rejection) else None]

  return _typed(run, 1)[0]


def _typed(run: Callable[[], list[Rejection | None]], count: int) -> list[Rejection | None]:
  try:
    return run()
  except RejectionError as error:
    return [error.rejection] * count
  except ValueError as error:
    return [Rejection("INCONCLUSIVE", f"the original cannot be run block by block: {error}")] * count
