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
      return _write(run, loaded, options, place, check=check, gate=gate, notes=notes)
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


def _write(
  run: Run,
  loaded: LoadedModel,
  options: Options,
  place: Destination,
  *,
  check: bool,
  gate: Gate | None,
  notes: tuple[Callable[[Run], Run], Callable[[Path], None]],
) -> tuple[Run, str]:
  """As ``write``.

  Raises:
      _RivalError: the gate prefers the other choice; nothing was written.
      _DroppedError: the gate does not let the result pass; nothing was written.
      MirageError: as ``save_model``.
  """
  original = loaded.path or loaded.given.SerializeToString()
  weights = weight_bytes(loaded.given)
  left, said, last, made = run, "", "not checked", run
  kept = KeptChecks.of_user(original, loaded.given) if check else None

  def rival_is_better(new: Path) -> bool:
    """Whether the run's other choice is; its file, if nobody knows, is gone afterwards."""
    assert gate is not None
    from mirage_onnx.tune.rival import made_with

    better, name = False, f"{made_with(run.rival)} {options.pool} {place.external}"
    if (known := gate.preferred(new, name)) is not None:
      return known

    def asked(other: Path) -> Rejection:
      nonlocal better
      better = gate.prefers(other, new, name)
      return Rejection("MODEL_SLOWER", "it was written to be compared only")

    beside = place.output.with_name(f"{place.output.name}.rival")
    save_model(
      with_rival(run, loaded, options).model, beside, place.source, external=place.external, check=asked
    )
    return better

  def passes(new: Path) -> Found | None:
    if kept is None:
      return None
    now = time.monotonic()
    found = kept.passed(new)
    if found is None:
      seconds = max(place.slack, min(MOST_S, place.end - now))
      found = check_written(original, new, weights, seconds, place.checks)
      kept.keep(new, found)
    return found

  def checked(new: Path) -> Rejection | None:
    nonlocal last
    if gate and made.rival and len(made.chosen) == len(run.chosen):
      # The measured choice is the better one as a rule: it is checked on the CPU while both have the GPU.
      with ThreadPoolExecutor(1, thread_name_prefix="check") as pool:
        check_beside = pool.submit(passes, new)
        if rival_is_better(new):
          raise _RivalError
        found = check_beside.result()
    else:
      found = passes(new)
    if found is not None:
      last = found.said
      if found.problem:
        return Rejection("CHECK_FAILED", found.problem)
    if gate and (keys := gate.drops(new, made)):
      raise _DroppedError(keys)
    notes[1](new)
    _expected(new, place)
    return None

  def attempt(some: Sequence[int]) -> Rejection | None:
    nonlocal left, said, made
    if len(some) < len(run.chosen) and time.monotonic() > place.end + place.slack:
      return Rejection("CHECK_FAILED", "the model failed its check, and there was no time to find the region")
    made = run if len(some) == len(run.chosen) else with_these(run, loaded, options, some)
    if not made.chosen:
      return Rejection("CHECK_FAILED", "it could not be rewritten without the others")
    made = notes[0](made)
    why = save_model(made.model, place.output, place.source, external=place.external, check=checked)
    if why is None:
      left, said = made, last
    return why

  good, failed = largest_valid(len(run.chosen), attempt)
  if not good:
    left = with_these(run, loaded, options, ())
    save_model(left.model, place.output, place.source, external=place.external)
    said = "every region was dropped"
  return refused(left, run, failed), said
