"""The choice that predictions would have made, of what was measured: it runs against the measured one.

    measured choice: prices are shares of ONNX Runtime's times that a region by itself was measured to take
    predicted choice: prices are predicted times, what wins by a margin; both with the same kernels

A region by itself says only so much of the whole model: what its neighbours leave in the L2, what launches
hide. So the whole model with either is timed, and the better one is written (``racing.Gate.prefers``), unless
one is far behind by all that was measured. Every kernel of both was right on this GPU; what was not timed is
in neither.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum

from mirage_onnx.choosing.disappearing import disappearing
from mirage_onnx.choosing.partition import Solutions, choose
from mirage_onnx.ir import Program
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.instances import Chosen, InstanceChecks
from mirage_onnx.tune.outcome import Outcome, predicted_price_us
from mirage_onnx.tune.race import Lost

#: A choice that takes so many times as long, by the sum of what was measured, is no rival: such sums are 7 %
#: off in the median of whole models, 16 % at worst, and a race takes 7 to 18 s.
FAR = 1.25


def predicted_choice(
  program: Program,
  outcomes: Mapping[str, Outcome],
  node_us: Mapping[str, float],
  alone: Mapping[str, tuple[str, float]] | None,
  margin: float,
  *,
  until: float,
  instances: InstanceChecks,
  dynamic: Dynamic,
  kept: Solutions | None = None,
  measured: Sequence[Chosen] = (),
) -> tuple[Chosen, ...]:
  """What predictions would choose of the regions of ``outcomes`` that were measured.

  ``margin``: the least predicted gain of a region, as a share of its time. ``until``: of ``time.monotonic``.
  ``kept``: as of ``choose``. ``measured``: the choice by measurement; nothing if the other is far behind it.
  """
  offered = dict[str, tuple[Outcome, float]]()
  for key, o in outcomes.items():
    own, price_us = _compiled(o), predicted_price_us(o, margin)
    if own is not None and price_us is not None:
      offered[key] = own, price_us
  while offered:
    live = [(c, o, us) for o, us in offered.values() for c in o.instances]
    picked = choose(program, [c for c, *_ in live], [us for *_, us in live], node_us, alone, until, kept=kept)
    chosen = tuple((live[i][0], live[i][1]) for i in picked)
    lost = {**instances.refused(chosen), **dynamic.losers(chosen)}
    if not lost:
      whole_us = [_whole_us(program, some, node_us) for some in (chosen, measured)]
      return () if measured and whole_us[0] > FAR * whole_us[1] else chosen
    for key in lost:
      del offered[key]
  return ()


def made_with(chosen: Sequence[Chosen]) -> str:
  """A hash of the kernels of a choice, and of where they are."""
  digest = hashlib.sha256()
  for c, o in chosen:
    digest.update(repr((sorted(c.nodes), sorted(c.outputs), c.reads, o.region.key)).encode())
    if o.compiled:
      digest.update(repr([p.to_text() for p in o.compiled.candidate.params]).encode())
      for part in (*(s.text.encode() for s in o.compiled.sources), *(b.image for b in o.compiled.cubins)):
        digest.update(hashlib.sha256(part).digest())
  return digest.hexdigest()


def _whole_us(program: Program, chosen: Sequence[Chosen], node_us: Mapping[str, float]) -> float:
  """The time of the model with a choice: the sum of what was measured of its regions, and of what is left."""
  gone = disappearing(program, [c for c, _ in chosen])
  left = (us for n, us in sorted(node_us.items()) if n not in gone)
  return fsum((*left, *(o.price_us(0.0) for _, o in chosen)))


def _compiled(o: Outcome) -> Outcome | None:
  """``o`` with its fastest right program, also where that was slower by itself; None without one."""
  if o.measured and o.compiled:
    return replace(o, rejection=None)
  if isinstance(o.rejection, Lost) and o.rejection.measured and o.rejection.best:
    return replace(o, compiled=o.rejection.best, measured=o.rejection.measured, rejection=None)
  return None
