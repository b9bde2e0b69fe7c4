"""What became of one distinct region: searched, compiled, measured, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.region import Region
from mirage_onnx.match.candidates import RegionCandidate

if TYPE_CHECKING:  # a model in which nothing is searched needs none of them
  from mirage_onnx.compiler.candidates import Compiled
  from mirage_onnx.superopt.result import SearchResult
  from mirage_onnx.tune.at_sizes import PointTime
  from mirage_onnx.tune.race import Measured
  from mirage_onnx.tune.realise import Chosen


#: Refusals for want of time.
CUT_OFF = ("BUDGET", "INTERRUPTED")


@dataclass(frozen=True, slots=True)
class Outcome:
  """``instances``: cones of the model with this canonical form. ``baseline_us``: ORT's time.

  ``points``: the predicted times at the declared sizes, where a run knows some only.
  ``ran``: whether what was compiled ran before it ships, where it was not measured.
  ``left_alone``: more instances, which the kernels would not be safe for, each with the reason.
  """

  region: Region
  instances: tuple[RegionCandidate, ...]
  baseline_us: float
  result: SearchResult | None = None
  compiled: Compiled | None = None
  measured: Measured | None = None
  rejection: Rejection | None = None
  points: tuple[PointTime, ...] = ()
  left_alone: tuple[tuple[RegionCandidate, Rejection], ...] = ()
  ran: str = ""

  @property
  def total_us(self) -> float:
    """What all instances take in ONNX Runtime, as far as that is known."""
    return self.baseline_us * len(self.instances)

  def price_us(self, margin: float) -> float:
    """What the choice counts for it: a predicted time, with the margin that it must win by.

    A measurement counts as the share of ONNX Runtime's time that it is, of the predicted one:
    other regions and nodes are compared by that, and cold times are longer than both.
    """
    if self.measured is not None:
      return self.baseline_us * self.measured.kernel_us / self.measured.ort_us
    if self.compiled is not None:
      return self.compiled.candidate.predicted_us / (1 - margin)
    assert self.result is not None
    return self.result.candidates[0].candidate.predicted_us / (1 - margin)


def cut_off(outcomes: Mapping[str, Outcome]) -> list[Outcome]:
  """The regions that the budget, or an interruption, cut off."""
  return [o for o in outcomes.values() if o.rejection and o.rejection.code in CUT_OFF]


def grouped(candidates: Iterable[RegionCandidate], node_us: Mapping[str, float]) -> dict[str, Outcome]:
  """By region key: identical regions are searched once."""
  groups: dict[str, list[RegionCandidate]] = {}
  for c in candidates:
    groups.setdefault(c.key, []).append(c)
  return {
    key: Outcome(
      same[0].region,
      tuple(same),
      max(fsum(node_us.get(n, 0.0) for n in c.nodes) for c in same),
    )
    for key, same in groups.items()
  }


def predicted_price_us(o: Outcome, margin: float) -> float | None:
  """What predictions would pay for a region that has to gain ``margin`` of its time; None: it does not."""
  if o.result is None or not o.result.candidates:
    return None
  predicted_us = o.result.candidates[0].candidate.predicted_us
  return predicted_us / (1 - margin) if predicted_us <= o.baseline_us * (1 - margin) else None


def without(
  outcomes: dict[str, Outcome], chosen: Sequence[Chosen], replaced: Sequence[Chosen],
  refused: Mapping[int, Rejection],
) -> dict[str, Outcome]:  # fmt: skip
  """``outcomes``, where regions that were chosen but of which an instance was not replaced say so.

  ``refused`` says of some of ``chosen`` why.
  """
  kept = {o.region.key for _, o in replaced}
  done = {c.nodes for c, _ in replaced}
  for i, (c, o) in enumerate(chosen):
    if c.nodes in done:
      continue
    key, reason = o.region.key, "all names of custom ops are taken by regions that save more"
    refusal = refused.get(i) or Rejection("NAME_POOL_FULL", reason, c.region.nodes)
    if key in kept:
      left = outcomes[key].left_alone
      outcomes[key] = replace(outcomes[key], left_alone=(*left, (c, refusal)))
    else:
      outcomes[key] = replace(outcomes[key], rejection=refusal)
  return outcomes
