"""Writing what a run made of a model: checked first, and without the regions that fail the check.

    rewritten model -> temporary files -> onnx's checker, onnxruntime on the CPU -> timed whole -> its name

Nothing of an older output is touched before. Where the check fails, or the whole model is not faster than
it was, regions are dropped until it passes; with none left, the model is written as it was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_onnx import events
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.failures import largest_valid
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.external import weight_bytes
from mirage_onnx.pipeline import Options, Run, refused, with_rival, with_these
from mirage_onnx.rewrite.check_process import BEFORE, CheckProcess
from mirage_onnx.rewrite.kept_checks import KeptChecks
from mirage_onnx.rewrite.save import External, save_model
from mirage_onnx.rewrite.stock_check import MOST_BYTES, Found, check_written
from mirage_onnx.tune.lock import file_hash

if TYPE_CHECKING:  # what is not timed imports nothing that times
  from mirage_onnx.racing import Gate

#: One check may take so long at most.
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Destination:
  """Where a model is written, and where its external data is now and then.

  ``end``: of ``time.monotonic``, when no check is begun any more. ``sha256``: of the file that has to
  come out, where that is known. ``slack``: seconds that a check may take whatever is left until the end,
  and in which regions that fail it are looked for behind the end.
  """

  output: Path
  source: Path | None
  external: External | None
  end: float
  sha256: str = ""
  slack: float = 5.0
  checks: CheckProcess | None = None


def write(
  run: Run,
  loaded: LoadedModel,
  options: Options,
  place: Destination,
  *,
  check: bool,
  gate: Gate | None = None,
  noted: Callable[[Run], Run] = lambda run: run,
  timed: Callable[[Path], None] = lambda path: None,
) -> tuple[Run, str]:
  """Write the model of a run; returns what is left of the run, and what was checked.

  ``gate``: asked whether the whole model is faster; regions that it drops stay as they were, and it is
  asked about what is left. ``noted``: adds to the model what is to be kept in it about the run,
  ``timed`` to its new file what the gate has measured.

  Raises:
      MirageError: as ``save_model``; LOCK_DIFFERS, another file would come out than has to.
      EarlierStaysError: what an earlier run has written is better (of the gate).
  """
  if gate and run.chosen:
    gate.begin()
  try:
    return _written(run, loaded, options, place, check=check, gate=gate, notes=(noted, timed))
  finally:
    if gate:
      gate.close()


def _written(
  run: Run,
  loaded: LoadedModel,
  options: Options,
  place: Destination,
  *,
  check: bool,
  gate: Gate | None,
  notes: tuple[Callable[[Run], Run], Callable[[Path], None]],
) -> tuple[Run, str]:
  """As ``write``."""
  while run.chosen:
    try:
      return _Writing(run, loaded, options, place, gate, notes, check=check).result()
    except _RivalError:
      slower = "the whole model was measured faster with the choice that predictions make"
      gone = {i: Rejection("MODEL_SLOWER", slower, c.region.nodes) for i, (c, _) in enumerate(run.chosen)}
      run = refused(with_rival(run, loaded, options), run, gone)
    except _DroppedError as dropped:
      keys = [o.region.key for _, o in run.chosen]
      some = [i for i, key in enumerate(keys) if key not in dropped.keys]
      left = replace(with_these(run, loaded, options, some), rival=())
      why = {
        i: Rejection(gate.code if gate else "MODEL_SLOWER", dropped.keys[key], run.chosen[i][0].region.nodes)
        for i, key in enumerate(keys)
        if key in dropped.keys
      }
      run = refused(left, run, why)
  given = loaded.path if run.model is loaded.given else None
  save_model(
    run.model, place.output, place.source, external=place.external, given=given,
    check=lambda new: _expected(new, place),
  )  # fmt: skip
  return run, "nothing was replaced"


def _expected(new: Path, place: Destination) -> None:
  if place.sha256 and file_hash(new) != place.sha256:
    raise MirageError("LOCK_DIFFERS", "the model that comes out has another hash than in the lock")


def checks_ahead(loaded: LoadedModel, checks: CheckProcess, emit: events.Emit) -> events.Emit:
  """``emit``, which lets ``checks`` run the original as soon as results are near.

  Not where one of an earlier run has passed, which is likely to come again and is not run then.
  """
  if weight_bytes(loaded.given) > MOST_BYTES:
    return emit

  def begin() -> None:
    original = loaded.path or loaded.given.SerializeToString()
    if not KeptChecks.of_user(original, loaded.given).has_any:
      checks.begin(original)

  return events.at_stage(BEFORE, begin, emit)


class _RivalError(Exception):
  """The run's other choice is faster."""


class _DroppedError(Exception):
  """Regions by key that must go before anything is written, each with the reason."""

  def __init__(self, keys: dict[str, str]) -> None:
    super().__init__(", ".join(keys))
    self.keys = keys


class _Writing:
  """One try to write the model of ``run``; ``left``: what of it passes, ``said``: what was checked."""

  def __init__(
    self,
    run: Run,
    loaded: LoadedModel,
    options: Options,
    place: Destination,
    gate: Gate | None,
    notes: tuple[Callable[[Run], Run], Callable[[Path], None]],
    *,
    check: bool,
  ) -> None:
    self._run, self._loaded, self._options, self._place = run, loaded, options, place
    self._gate, (self._noted, self._timed) = gate, notes
    self._original = loaded.path or loaded.given.SerializeToString()
    self._kept = KeptChecks.of_user(self._original, loaded.given) if check else None
    self.left, self.said = run, ""
    #: What is being written, and what was said of it.
    self._made, self._last = run, "not checked"

  def result(self) -> tuple[Run, str]:
    """As ``write``.

    Raises:
        _RivalError: the gate prefers the other choice; nothing was written.
        _DroppedError: the gate does not let the result pass; nothing was written.
        MirageError: as ``save_model``.
    """
    good, failed = largest_valid(len(self._run.chosen), self._attempt)
    if not good:
      self.left, self.said = self._with(()), "every region was dropped"
      self._save(self.left, self._place.output)
    return refused(self.left, self._run, failed), self.said

  def _with(self, some: Sequence[int]) -> Run:
    return with_these(self._run, self._loaded, self._options, some)

  def _save(
    self, run: Run, output: Path, check: Callable[[Path], Rejection | None] | None = None
  ) -> Rejection | None:
    place = self._place
    return save_model(run.model, output, place.source, external=place.external, check=check)

  def _attempt(self, some: Sequence[int]) -> Rejection | None:
    whole = len(some) == len(self._run.chosen)
    if not whole and time.monotonic() > self._place.end + self._place.slack:
      return Rejection("CHECK_FAILED", "the model failed its check, and there was no time to find the region")
    made = self._run if whole else self._with(some)
    if not made.chosen:
      return Rejection("CHECK_FAILED", "it could not be rewritten without the others")
    self._made = self._noted(made)
    why = self._save(self._made, self._place.output, self._checked)
    if why is None:
      self.left, self.said = self._made, self._last
    return why

  def _checked(self, new: Path) -> Rejection | None:
    made, gate = self._made, self._gate
    if gate and made.rival and len(made.chosen) == len(self._run.chosen):
      # The measured choice is the better one as a rule: it is checked on the CPU while both have the GPU.
      with ThreadPoolExecutor(1, thread_name_prefix="check") as pool:
        check_beside = pool.submit(self._passes, new)
        if self._rival_is_better(new, gate):
          raise _RivalError
        found = check_beside.result()
    else:
      found = self._passes(new)
    if found is not None:
      self._last = found.said
      if found.problem:
        return Rejection("CHECK_FAILED", found.problem)
    if gate and (keys := gate.drops(new, made)):
      raise _DroppedError(keys)
    self._timed(new)
    _expected(new, self._place)
    return None

  def _passes(self, new: Path) -> Found | None:
    if self._kept is None:
      return None
    place, now = self._place, time.monotonic()
    found = self._kept.passed(new)
    if found is None:
      seconds = max(place.slack, min(MOST_S, place.end - now))
      found = check_written(self._original, new, weight_bytes(self._loaded.given), seconds, place.checks)
      self._kept.keep(new, found)
    return found

  def _rival_is_better(self, new: Path, gate: Gate) -> bool:
    """Whether the run's other choice is; its file, if nobody knows, is gone afterwards."""
    from mirage_onnx.tune.rival import made_with

    better, output = False, self._place.output
    name = f"{made_with(self._run.rival)} {self._options.pool} {self._place.external}"
    if (known := gate.preferred(new, name)) is not None:
      return known

    def asked(other: Path) -> Rejection:
      nonlocal better
      better = gate.prefers(other, new, name)
      return Rejection("MODEL_SLOWER", "it was written to be compared only")

    rival = with_rival(self._run, self._loaded, self._options)
    self._save(rival, output.with_name(f"{output.name}.rival"), asked)
    return better
