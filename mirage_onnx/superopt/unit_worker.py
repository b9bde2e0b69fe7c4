"""The program of a worker process that runs units of one search.

``python -m mirage_onnx.superopt.unit_worker``: takes one setting, then jobs, and answers with what
they find, until stdin ends. It saturates the region itself: classes have the same numbers in every
process. The derivations of a unit come with it, so that no two processes search for them.
"""

import os
import pickle
import threading
import traceback
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO

from mirage_onnx.garbage import young_only
from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.axioms import AXIOMS, Axiom
from mirage_onnx.superopt.outlines import Depth, Derivations, Outline, Reads
from mirage_onnx.superopt.result import Allow, SearchBound
from mirage_onnx.superopt.search_setting import generator_digest
from mirage_onnx.superopt.space import Space
from mirage_onnx.superopt.units import UnitResult, Units
from mirage_onnx.target import Target
from mirage_onnx.worker_process import send, worker_streams

#: Classes with a depth: a part of their outline. Classes with what they read: the unit to build.
Job = tuple[tuple[int, ...], Depth | Reads]
#: What a job finds.
Found = Outline | UnitResult


class WorkerUnits(Units):
  """Units that are given their derivations."""

  _given: Derivations = ()

  def derivations_of(self, classes: tuple[int, ...], reads: Reads) -> Derivations:
    """Of the unit that runs."""
    return self._given

  def find(self, job: Job, derivations: Derivations) -> Found:
    """What the job finds; ``derivations``: of the unit, if it is one."""
    classes, what = job
    if isinstance(what, Depth):
      return self.outline_part(classes, what)
    self._given = derivations
    return self.run(classes, what)


@dataclass(frozen=True, slots=True)
class WorkerSetting:
  """What ``Units`` is made of; axioms by their names, which stand for the same in the worker."""

  region: Region
  target: Target
  bound: SearchBound
  axioms: tuple[str, ...]
  space: Space
  allow: Allow | None

  def units(self) -> WorkerUnits:
    """The units of the search in this process."""
    named: dict[str, Axiom] = {a.name: a for a in AXIOMS}
    axioms = tuple(named[name] for name in self.axioms)
    return WorkerUnits(self.region, self.target, self.bound, axioms, self.space, self.allow)


def portable_setting(
  region: Region,
  target: Target,
  bound: SearchBound,
  axioms: tuple[Axiom, ...],
  space: Space,
  allow: Allow | None,
) -> bytes | None:
  """The pickle of a ``WorkerSetting``; None if another process cannot have these."""
  if not all(a in AXIOMS for a in axioms):
    return None
  names = tuple(a.name for a in axioms)
  try:
    return pickle.dumps(WorkerSetting(region, target, bound, names, space, allow))
  except (pickle.PicklingError, AttributeError, TypeError):
    return None


@young_only()
def _serve() -> None:
  requests, answers = worker_streams()
  units = pickle.loads(pickle.load(requests)).units()
  jobs: SimpleQueue[tuple[Job, Derivations]] = SimpleQueue()
  threading.Thread(target=_read, args=(requests, jobs), daemon=True).start()
  send(answers, ("ready", generator_digest()))
  while True:
    send(answers, ("found", pickle.dumps(units.find(*jobs.get()))))


def _read(requests: IO[bytes], jobs: SimpleQueue[tuple[Job, Derivations]]) -> None:
  """Take requests also during a job, so that the end of the parent is the end of this process."""
  while True:
    try:
      jobs.put(pickle.load(requests))
    except (EOFError, pickle.UnpicklingError):
      os._exit(0)


if __name__ == "__main__":
  try:
    _serve()
  except (KeyboardInterrupt, BrokenPipeError, EOFError):
    os._exit(130)
  except BaseException:  # The thread that reads would disturb an orderly end.
    traceback.print_exc()
    os._exit(1)
