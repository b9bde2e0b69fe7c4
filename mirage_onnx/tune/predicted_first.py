"""What predictions would choose is timed first: if the time ends early, it is in the choice by measurement.

    what was searched, by its predicted time --choice--> regions that were not timed yet, most gain first

What may gain most (``expected.py``) is often larger, takes longer, and may lose; a run without a GPU takes
the predicted choice, and one with a GPU must not be worse for having looked at something else meanwhile.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from mirage_onnx.choosing.choice_process import RoughChoice
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.tune.outcome import Outcome, predicted_price_us
from mirage_onnx.tune.race import Lost

#: A region's place in the predicted choice, and what is predicted to be gained there (or paid for it).
Place = tuple[RegionCandidate, float]


@dataclass
class PredictedFirst:
  """Asked again and again about the same regions; chosen is only where others were searched or refused.

  ``margin``: the least predicted gain of a region, as a share of its time.
  """

  choice: RoughChoice
  node_us: Mapping[str, float]
  margin: float
  _known: frozenset[str] | None = field(default=None, init=False)
  _chosen: tuple[Place, ...] = field(default=(), init=False)

  def __call__(self, found: Mapping[str, Outcome], until: float) -> dict[str, float]:
    """Keys of what is not timed yet of the predicted choice, and what each is predicted to gain, most first.

    ``until``: of ``time.monotonic``, when the best choice that is known then is taken.
    """
    offered = {
      key: us for key, o in found.items() if self._is_known(o)
      and (us := predicted_price_us(o, self.margin)) is not None
    }  # fmt: skip
    if self._known != offered.keys():
      self._known = frozenset(offered)
      self._chosen = self._choose(
        [(c, us) for key, us in offered.items() for c in found[key].instances], until
      )
    gain_us = defaultdict[str, float](float)
    for c, us in self._chosen:
      o = found[c.region.key]
      if o.rejection is None and o.compiled is None:
        gain_us[c.region.key] += us
    return dict(sorted(gain_us.items(), key=lambda g: (-g[1], g[0])))

  def _is_known(self, o: Outcome) -> bool:
    """What lost in a measurement is: predictions would not know."""
    return o.rejection is None or isinstance(o.rejection, Lost)

  def _choose(self, offered: Sequence[Place], until: float) -> tuple[Place, ...]:
    """``offered``: with their prices."""
    prices = [us for _, us in offered]
    each = [c for c, _ in offered]
    picked = self.choice(each, prices, until) if each else ()
    return tuple(
      (each[i], fsum(self.node_us.get(n, 0.0) for n in each[i].nodes) - prices[i] * (1 - self.margin))
      for i in picked
    )
