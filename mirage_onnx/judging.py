"""Regions searched and judged: each with its programs, or with the reason why there are none.

Where kernels are timed, outcomes are told as they come: first of all what may gain much, and beside it what
is found soon, for a GPU waits for them.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from math import inf

from mirage_onnx import events
from mirage_onnx.errors import Rejection
from mirage_onnx.failures import guarded
from mirage_onnx.importer import LoadedModel
from mirage_onnx.searching import Setting, search_all, stopped
from mirage_onnx.superopt.expected_time import doubt
from mirage_onnx.superopt.result import SearchResult, Stop
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.instances import with_right_terms
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predict import as_expected, as_half_full, refuse_result
from mirage_onnx.tune.search_order import search_order
from mirage_onnx.verify.instance_checks import Scales, unlike
from mirage_onnx.verify.term_checks import TermChecks
from mirage_onnx.verify.weights import ModelWeights


@dataclass(frozen=True, slots=True)
class Judge:
  """What a search's result has to be: ``margin`` faster as predicted, or just ``timed`` later."""

  dynamic: Dynamic
  margin: float
  timed: bool

  def worth_us(self, o: Outcome) -> float:
    """What a program may take that is worth a proof; where all are timed, or sizes vary, any time."""
    if self.timed or self.margin < 0 or o.region.runtime:
      return inf
    return o.baseline_us * (1 - self.margin)

  def __call__(self, o: Outcome, r: SearchResult, setting: Setting) -> Outcome:
    """``o`` with the result, or refused."""
    if o.region.runtime:
      return self.dynamic.judged(o, r)
    # What tiled kernels take is known so roughly that only a measurement can refuse them.
    r = (as_half_full if self.timed else as_expected)(o.region, r, setting.target)
    doubted = 1.0
    if r.candidates and not self.timed and self.margin >= 0:
      doubted = doubt(o.region, r.candidates[0].candidate, setting.target)
    refusal = refuse_result(r, o.baseline_us, self.margin, o.region.nodes, doubted)
    return replace(o, result=r, rejection=refusal)


def search_outcomes(
  loaded: LoadedModel,
  outcomes: Mapping[str, Outcome],
  setting: Setting,
  judge: Judge,
  weights: ModelWeights,
  *,
  workers: int | str | None = None,
  tell: Callable[[Outcome], None] | None = None,
  preferred: Callable[[], Sequence[str]] = tuple,
  settled: Container[str] = (),
) -> dict[str, Outcome]:
  """All of ``outcomes`` that are not refused, searched; ``tell`` is told each as soon as it is known.

  ``preferred``: the keys of what is most wanted, asked whenever a worker is free. ``settled``: those whose
  terms are not checked again.
  """
  terms, found = TermChecks(), dict(outcomes)
  for key, o in outcomes.items():
    if o.rejection is None and not setting.seconds_left:  # not even for a look at its terms
      late = stopped(setting.hooks.stop() or Stop.BUDGET)
      refusal = refuse_result(late, o.baseline_us, judge.margin, o.region.nodes)
      found[key] = o = replace(o, result=late, rejection=refusal)
      if tell:
        tell(o)
    elif o.rejection is None and key not in settled:
      made = guarded("check of terms", o.region.nodes, partial(with_right_terms, o, terms))
      found[key] = o = replace(o, rejection=made) if isinstance(made, Rejection) else made
      if tell and o.rejection is not None:
        tell(o)
  todo = [key for key, o in found.items() if o.rejection is None]
  if tell:
    todo = _most_useful_first([found[key] for key in todo])
  else:
    todo = search_order({key: found[key] for key in todo})

  def done(i: int, r: SearchResult) -> None:
    o = found[todo[i]]
    judged = partial(judge, o, r, setting)
    made = r.failure if r.failure else guarded("choice of programs", o.region.nodes, judged)
    found[todo[i]] = o = replace(o, result=r, rejection=made) if isinstance(made, Rejection) else made
    assert o.result is not None
    best = o.result.candidates[0].candidate.predicted_us if o.result.candidates else None
    code = o.rejection.code if o.rejection else None
    report = o.result.report
    setting.hooks.emit(
      events.RegionDone(o.region.key, o.region.nodes, report.states, report.verified, best, code)
    )
    if tell:
      tell(o)

  regions = [found[k].region for k in todo]
  setting.hooks.emit(events.RegionsStarted("superopt", tuple((r.key, r.nodes) for r in regions)))
  scales: Scales = {}
  more = [unlike(found[k].instances, weights, scales) for k in todo]
  place = {key: i for i, key in enumerate(todo)}
  search_all(
    loaded, regions, setting, workers=workers, done=done, twins=more, weights=weights, in_order=tell is None,
    preferred=lambda: [place[key] for key in preferred() if key in place],
    worths_us=[judge.worth_us(found[k]) for k in todo],
  )  # fmt: skip
  return found


def _most_useful_first(some: Sequence[Outcome]) -> list[str]:
  """Keys, by turns of what takes ONNX Runtime longest a node, and of what does so for the least nodes.

  Large regions gain most, and are searched longest (``tune/expected.py``); the largest of all, with a part of
  each node around, mostly in vain. The small ones give the GPU something to do.
  """

  def us(o: Outcome, power: int) -> float:
    return float(o.baseline_us * len(o.instances) / len(o.region.nodes) ** power)

  orders = (sorted(some, key=lambda o: (-us(o, p), o.region.key)) for p in (1, 2))
  keys = (o.region.key for o in chain.from_iterable(zip_longest(*orders)) if o)
  return list(dict.fromkeys(keys))
