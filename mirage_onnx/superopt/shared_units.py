"""Units of a search that several processes run: this one and its workers.

What a unit finds does not depend on who runs it, and the search takes units in its own order, so
only the time depends on the number of workers.
"""

from typing import cast

from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.axioms import Axiom
from mirage_onnx.superopt.choices import Counts
from mirage_onnx.superopt.kin_units import KinUnits
from mirage_onnx.superopt.outlines import Depth, Derivations, Outline, Reads
from mirage_onnx.superopt.result import Allow, SearchBound
from mirage_onnx.superopt.space import Space
from mirage_onnx.superopt.unit_pool import NOW_US, UnitPool
from mirage_onnx.superopt.unit_worker import Found, Job, portable_setting
from mirage_onnx.superopt.units import UnitResult, Units
from mirage_onnx.target import Target

#: Seconds between two polls while all there is to do is to wait for a worker.
WAIT_S = 0.05


class SharedUnits(Units):
  """Units for ``workers`` processes, of which the caller's is one.

  ``kin``: what searches of other regions have found. A setting that another process cannot have (an
  axiom that is in no table, a restriction without a pickle) is searched by this process alone. To be
  closed.
  """

  def __init__(
    self,
    region: Region,
    target: Target,
    bound: SearchBound,
    axioms: tuple[Axiom, ...],
    space: Space,
    allow: Allow | None = None,
    *,
    workers: int = 1,
    kin: KinUnits | None = None,
  ) -> None:
    super().__init__(region, target, bound, axioms, space, allow)
    self._known = None if kin is None or allow else kin.of(region, target, bound, axioms, space)
    self._own: dict[Job, Found] = {}
    self._pool: UnitPool | None = None
    if workers > 1:
      setting = portable_setting(region, target, bound, axioms, space, allow)
      if setting is not None:
        self._pool = UnitPool(setting, workers - 1, self._derivations)

  @property
  def is_shared(self) -> bool:
    """Whether jobs may be offered."""
    return self._pool is not None

  @property
  def worker_pids(self) -> tuple[int, ...]:
    """The worker processes that were started so far."""
    return self._pool.pids if self._pool else ()

  def offer(self, floor_us: float, job: Job) -> None:
    """Say what the search may come to; a unit only when its classes are outlined."""
    if self._pool:
      self._pool.offer(floor_us, job)

  def _parts(self, jobs: tuple[tuple[tuple[int, ...], Depth], ...]) -> list[Outline]:
    for job in jobs:
      self.offer(NOW_US, job)
    return [cast(Outline, self._found(job)) for job in jobs]

  def run(self, classes: tuple[int, ...], reads: Reads) -> UnitResult:
    """As of ``Units``, whoever runs it."""
    return cast(UnitResult, self._found((classes, reads)))

  def close(self) -> None:
    """End the workers."""
    if self._pool:
      self._pool.close()

  def _search(self, job: Job) -> Found:
    classes, what = job
    if self._known is None:
      return self._made(job)
    # An outline does not depend on how its values lie in memory.
    touched = () if isinstance(what, Depth) else tuple(map(self.tensor, (*classes, *what)))
    known, key = self._known, (job, touched)
    if key not in known.found:
      known.found[key] = found = self._made(job)
      known.derivations += sum(map(len, found.derivations.values())) if isinstance(found, Outline) else 0
    return known.found[key]

  def _made(self, job: Job) -> Found:
    classes, what = job
    return self.outline_part(classes, what) if isinstance(what, Depth) else super().run(classes, what)

  def _found(self, job: Job) -> Found:
    """What a job finds; while a worker has it, another needed one is done here."""
    if self._pool is None:
      return self._search(job)
    while job not in self._own:
      found = self._pool.result(job, 0.0)
      if found is not None:
        return found
      mine = self._pool.claim(job)
      if mine is not None:
        self._own[mine] = self._search(mine)
        continue
      self.poll(Counts())
      found = self._pool.result(job, WAIT_S)
      if found is not None:
        return found
    return self._own.pop(job)

  def _derivations(self, job: Job) -> Derivations:
    classes, what = job
    return () if isinstance(what, Depth) else self.derivations_of(classes, what)
