"""Regions with axes that a run counts: at which sizes they are searched, and what is chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import fsum

from mirage_onnx.choosing.disappearing import shares
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.failures import guarded
from mirage_onnx.ir import Program, Region, print_ugraph
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.match.runtime_axes import at_sizes
from mirage_onnx.superopt.renumber import KnownGraph, renumber
from mirage_onnx.superopt.result import SearchBound, SearchResult, Verified
from mirage_onnx.target import Target
from mirage_onnx.tune.at_sizes import PointTime, Sized, at_point, best_at_sizes, predicted_us, sized_instance
from mirage_onnx.tune.declared_sizes import Declared, Sizes
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predict import refuse_result


class Dynamic:
  """``node_us``: what ONNX Runtime takes for every node at some sizes."""

  def __init__(
    self,
    program: Program,
    declared: Declared,
    node_us: Callable[[Sizes], Mapping[str, float]],
    target: Target,
    margin: float,
  ) -> None:
    self._program, self._declared = program, declared
    self._node_us, self._target, self._margin = node_us, target, margin
    self._known: dict[int, Mapping[str, float]] = {}

  def _times(self, point: int) -> Mapping[str, float]:
    """Of all nodes at a declared point, found when somebody asks: a whole program takes 10 ms."""
    if point not in self._known:
      self._known[point] = self._node_us(self._declared.points[point])
    return self._known[point]

  def sized(self, region: Region) -> tuple[Region, ...]:
    """The region at its own sizes, and at the smallest and largest that are declared."""
    found = {region.key: region}
    for sizes in (self._declared.points[0], self._declared.points[-1]):
      try:
        other = at_sizes(region, self._program, sizes)
      except RejectionError:
        continue  # these sizes mix up its reshapes
      found.setdefault(other.key, other)
    return tuple(found.values())

  def judged(self, o: Outcome, result: SearchResult) -> Outcome:
    """``o`` with what was found for it: kernels that win at all declared points.

    The programs that were found are given the numbers that are best at other sizes, too.
    Instances in which the best of all does not win are left out.
    """
    nodes, margin = o.region.nodes, self._margin
    every = [self._points(i) for i in o.instances]
    result, refusal, wins = best_at_sizes(
      result.report, self._renumbered(o.region, result), every, o.region, self._target, margin
    )
    if not result.candidates:
      refusal = refuse_result(result, o.baseline_us, margin, nodes)
    if wins:
      o = replace(o, instances=tuple(o.instances[i] for i in wins))
    o = replace(o, result=result, rejection=refusal)
    return self.with_points(o)

  def _renumbered(self, region: Region, result: SearchResult) -> tuple[Verified, ...]:
    """The candidates, and their programs with the numbers for other sizes."""
    pool = {v.candidate: v for v in result.candidates}
    proofs = {print_ugraph(v.candidate.ugraph): v.proof for v in result.candidates}
    known = tuple(map(KnownGraph.of, proofs))
    for other in self.sized(region):
      for ranked in renumber(known, other.extents, self._target, SearchBound()):
        for c in ranked.candidates:
          pool.setdefault(c, Verified(c, proofs[ranked.known.text]))
    return tuple(pool.values())

  def with_points(self, o: Outcome) -> Outcome:
    """``o`` with the times of what is chosen for its first instance."""
    if not o.region.runtime or not o.result or not o.result.candidates:
      return o
    chosen = o.compiled.candidate if o.compiled else o.result.candidates[0].candidate
    points = tuple(
      PointTime(
        p.sizes, p.baseline_us, predicted_us(chosen, p.extents, self._target, o.region.runtime) or 0.0
      )
      for p in self._points(o.instances[0])
    )
    return replace(o, points=points)

  def with_all_points(self, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """All of ``outcomes`` so; where that fails, it costs the region."""
    found = dict(outcomes)
    for key, o in outcomes.items():
      made = guarded("times at sizes", o.region.nodes, partial(self.with_points, o))
      found[key] = o if isinstance(made, Rejection) else made
    return found

  def losers(self, chosen: Sequence[tuple[RegionCandidate, Outcome]]) -> dict[str, Outcome]:
    """Those of ``chosen`` of which an instance loses at some size, without such instances.

    A node that several regions compute disappears only once: each has its share of the time, so
    of those that share one the clearest loser goes first, alone.
    """
    found: list[tuple[float, RegionCandidate, str]] = []
    candidates = [c for c, _ in chosen]
    dynamic = [(c, o.compiled.candidate) for c, o in chosen if o.region.runtime and o.compiled]
    for k, sizes in enumerate(self._declared.points if dynamic else ()):
      share = shares(self._program, candidates, self._times(k))
      for c, best in dynamic:
        have = fsum(share.get(n, 0.0) for n in c.nodes)
        at = at_point(c, self._program, sizes, have)
        us = predicted_us(best, at.extents, self._target, c.region.runtime) or 0.0
        if us > have * (1 - self._margin):
          reason = (
            f"beside other regions it would not win by {self._margin:.0%} at "
            f"{at.sizes}: {us:.2f} us predicted against {have:.2f} us"
          )
          found.append((have - us, c, reason))
    result, gone = dict[str, Outcome](), set[str]()
    outcomes = {o.region.key: o for _, o in chosen}
    for _, c, reason in sorted(found, key=lambda f: f[0]):
      if gone & c.nodes:
        continue
      gone |= c.nodes
      o = result.get(c.region.key, outcomes[c.region.key])
      rest = tuple(i for i in o.instances if i is not c)
      refusal = None if rest else Rejection("NOT_FASTER", reason, c.region.nodes)
      result[c.region.key] = replace(o, instances=rest or (c,), rejection=refusal)
    return result

  def _points(self, instance: RegionCandidate) -> tuple[Sized, ...]:
    return sized_instance(instance, self._program, self._declared.points, self._times)
