"""What a region that was not timed yet is expected to gain: its prediction, as wrong as those before it were.

    log(time / prediction)   median and deviation of the regions of its kind that this run has timed,
                             drawn to those with the same nodes: what holds or loses for a part of a
                             region, or for more of it, says most about it
    expected gain            E max(0, what its nodes take now - its time), with a log-normal time

So a region without a chance is worth nothing, one that may win is worth something even where the median
says that it will not, and what was tried in vain is not tried again with one node more.

What was not searched has no prediction: it is the roofline times what predictions of this run are of theirs,
and counts by the share of searches that have found any.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import erf, exp, fsum, log, sqrt
from statistics import median

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.ir import Region
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.superopt.solved import kernel_times
from mirage_onnx.target import Target
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.race import Lost

#: The deviation of log(time / prediction) where nothing is known, and for how many regions that counts.
PRIOR_DEVIATION, PRIOR_COUNT = 0.4, 6.0
#: No sample makes predictions surer than this.
LEAST_DEVIATION = 0.05
#: What a timed region with the same nodes counts, where the median of its kind counts 1.
NEIGHBOUR = 2.0
#: Ratios beyond this factor say that something else was measured.
MOST_RATIO = 10.0
#: Seconds that a region takes to be timed, where none was, and to be searched, for each of its nodes: of 188
#: regions of BERT-base those of 2 nodes took 0.5 s, of 6 two to seven, of 20 ten, most of these in vain.
FIRST_S, FIRST_SEARCH_S = 3.0, 0.6
#: log(prediction / roofline): its median and deviation where nothing is known, and for how many searches
#: that counts.
PRIOR_ROOF, ROOF_DEVIATION, ROOF_COUNT = 0.5, 0.6, 4.0
#: Searches that find something, of how many, where nothing is known.
PRIOR_FOUND, PRIOR_SEARCHES = 3.0, 4.0


def kind_of(outcome: Outcome, target: Target) -> str:
  """The family (``thread.Family``) of the kernel that is predicted to take longest."""
  assert outcome.result is not None
  times = kernel_times(
    outcome.result.candidates[0].candidate, outcome.region.extents, target, lowered_us,
    outcome.region.runtime,
  )  # fmt: skip
  family, _ = max(times, key=lambda t: t[1] or 0.0)
  return family.name.lower()


@dataclass(frozen=True, slots=True)
class Guess:
  """A time in microseconds that is not known: log-normal. ``deviation``: of its logarithm."""

  median_us: float
  deviation: float

  def gain_us(self, now_us: float) -> float:
    """E max(0, ``now_us`` - time)."""
    if now_us <= 0:
      return 0.0
    d = log(now_us / self.median_us) / self.deviation
    mean_us = self.median_us * exp(self.deviation**2 / 2)
    return max(0.0, now_us * _normal(d) - mean_us * _normal(d - self.deviation))


@dataclass
class Expectations:
  """What this run has seen.

  ``kind``: of a region's kernels. ``node_us``: times of nodes, the weights of what regions have in common.
  ``roof_us``: what no kernel of a region is faster than. ``workers``: that search at a time.
  """

  node_us: Mapping[str, float]
  kind: Callable[[Outcome], str]
  roof_us: Callable[[Region], float] = lambda region: 0.0
  workers: int = 1
  _roofs: dict[str, float] = field(default_factory=dict)
  #: Of what was searched: log(prediction / roofline) where something was found, and seconds a node.
  _over_roof: list[float] = field(default_factory=list)
  _searches_s: list[float] = field(default_factory=list)
  _kinds: dict[str, str] = field(default_factory=dict)
  _logs: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
  _seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
  #: Of each timed place of the model its time in ONNX Runtime and log(time / prediction), and by node.
  _places: list[tuple[float, float]] = field(default_factory=list)
  _of_node: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

  def kind_of(self, o: Outcome) -> str:
    """As ``kind``, asked once a region."""
    if o.region.key not in self._kinds:
      self._kinds[o.region.key] = self.kind(o)
    return self._kinds[o.region.key]

  def learn(self, before: Outcome, after: Outcome, seconds: float) -> None:
    """``after`` became of ``before`` in ``seconds``; only what was timed says something of times."""
    kind = self.kind_of(before)
    self._seconds[kind].append(seconds)
    lost = after.rejection
    measured = after.measured or (lost.measured if isinstance(lost, Lost) else None)
    if measured is None or before.result is None:
      return
    us = before.baseline_us * measured.kernel_us / max(measured.ort_us, 1e-9)
    ratio = us / max(before.result.candidates[0].candidate.predicted_us, 1e-9)
    seen = log(min(MOST_RATIO, max(1 / MOST_RATIO, ratio)))
    self._logs[kind].append(seen)
    for c in before.instances:
      for n in c.nodes:
        self._of_node[n].append(len(self._places))
      self._places.append((self._us(c.nodes), seen))

  def searched(self, o: Outcome) -> None:
    """``o`` was searched, with whatever result."""
    assert o.result is not None
    self._searches_s.append(o.result.report.seconds / len(o.region.nodes))
    if o.result.candidates and (roof_us := self._roof_us(o)) > 0:
      self._over_roof.append(log(max(o.result.candidates[0].candidate.predicted_us, 1e-9) / roof_us))

  def gain_us(self, o: Outcome, instance: RegionCandidate, now_us: float) -> float:
    """What a region is expected to gain at one of its places, whose nodes take ``now_us`` now."""
    gain_us = self.guess(o, instance).gain_us(now_us)
    if o.result is not None:
      return gain_us
    found, searches = len(self._over_roof) + PRIOR_FOUND, len(self._searches_s) + PRIOR_SEARCHES
    return gain_us * min(1.0, found / searches)

  def guess(self, o: Outcome, instance: RegionCandidate) -> Guess:
    """The time of a region at one of its places."""
    logs = self._logs[self.kind_of(o)] if o.result else [x for own in self._logs.values() for x in own]
    own = median(logs) * len(logs) / (len(logs) + 1) if logs else 0.0
    spread = 1.4826 * median(abs(x - own) for x in logs) if logs else 0.0
    variance = (PRIOR_COUNT * PRIOR_DEVIATION**2 + len(logs) * spread**2) / (PRIOR_COUNT + len(logs))
    near = self._near(instance)
    weight = 1 + NEIGHBOUR * fsum(w for w, _ in near)
    mean = (own + NEIGHBOUR * fsum(w * seen for w, seen in near)) / weight
    if o.result is not None:
      predicted_us = o.result.candidates[0].candidate.predicted_us
      return Guess(predicted_us * exp(mean), max(LEAST_DEVIATION, sqrt(variance / weight)))
    count, roofs = len(self._over_roof), self._over_roof
    over = (PRIOR_ROOF * ROOF_COUNT + (median(roofs) if roofs else 0.0) * count) / (ROOF_COUNT + count)
    apart = 1.4826 * median(abs(x - over) for x in roofs) if roofs else 0.0
    variance = variance / weight + (ROOF_COUNT * ROOF_DEVIATION**2 + count * apart**2) / (ROOF_COUNT + count)
    return Guess(max(self._roof_us(o), 1e-9) * exp(mean + over), max(LEAST_DEVIATION, sqrt(variance)))

  def seconds(self, o: Outcome) -> float:
    """What timing it is expected to take, and searching it first where that was not done."""
    known = self._seconds[self.kind_of(o)] if o.result else []
    took = known or [s for own in self._seconds.values() for s in own]
    timed_s = max(0.1, median(took)) if took else FIRST_S
    if o.result is not None:
      return timed_s
    a_node_s = median(self._searches_s) if self._searches_s else FIRST_SEARCH_S
    return timed_s + a_node_s * len(o.region.nodes) / self.workers

  def ratios(self) -> dict[str, tuple[float, int]]:
    """Kind -> the median of measured over predicted time, and of how many."""
    return {kind: (exp(median(logs)), len(logs)) for kind, logs in sorted(self._logs.items()) if logs}

  def _near(self, instance: RegionCandidate) -> list[tuple[float, float]]:
    """Of timed places with nodes of ``instance``: the part of their time that both have, and the ratio."""
    common, mine = defaultdict[int, float](float), self._us(instance.nodes)
    for n in sorted(instance.nodes):  # else equal runs would differ in the last bit
      for place in self._of_node.get(n, ()):
        common[place] += self.node_us.get(n, 0.0)
    found = []
    for place, both_us in common.items():
      whole_us = mine + self._places[place][0] - both_us
      if both_us > 0 and whole_us > 0:
        found.append(((both_us / whole_us) ** 2, self._places[place][1]))
    return found

  def _roof_us(self, o: Outcome) -> float:
    key = o.region.key
    if key not in self._roofs:
      self._roofs[key] = self.roof_us(o.region)
    return self._roofs[key]

  def _us(self, nodes: Iterable[str]) -> float:
    return fsum(self.node_us.get(n, 0.0) for n in nodes)


def _normal(x: float) -> float:
  """The standard normal distribution function."""
  return 0.5 * (1 + erf(x / sqrt(2)))
