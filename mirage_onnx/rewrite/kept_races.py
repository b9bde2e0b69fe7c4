"""Races that an earlier run has timed on this machine: who writes the same bytes again need not wait.

The key holds the bytes of the model files, the weights' files (names, sizes and times of change; what this
program has written is named by its content), which nodes run their bodies, what was asked, the machine, and
the source of what times. A race that ended before its first look says nothing, and is not kept, but for one
that is asked again in no longer time (``Race.brief``). What there was no time to ask is not asked by a repeat
either: it has more of it, as it knows all the rest.
"""

from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

import onnx

from mirage_onnx.custom_op.arm_session import Arm
from mirage_onnx.custom_op.race import Failed, Race, Raced, Racer, Times
from mirage_onnx.rewrite.data_file import is_named_by_content
from mirage_onnx.rewrite.external import data_files
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.tune.kept_ends import MORE
from mirage_onnx.tune.lock import file_hash
from mirage_onnx.tune.machine import present_machine
from mirage_onnx.tune.paired import LOOKS, Speedup

#: What decides the bytes of a model that is made of chosen kernels.
MAKING = ("rewrite", "importer", "match", "ir", "compiler", "codegen", "verify", "pipeline.py", "writing.py")


class KeptRacer(Racer):
  """A ``Racer`` with ``store`` in front of it; the process begins when something is not known."""

  def __init__(self, store: KeptFolder, ask: Callable[[Race], Times | Failed] | None = None) -> None:
    super().__init__()
    self._store, self._asked = store, ask or super().__call__

  @classmethod
  def of_user(cls) -> Racer:
    """With the user's measurements, if any are kept."""
    folder = cache_folder("measurements")
    machine = present_machine() if folder is not None else None
    if machine is None:
      return Racer()
    return cls(KeptFolder(folder, {**machine.text, "races": source_digest("custom_op", "tune")}))

  def begin(self, original: str = "") -> None:
    """As of ``Racer``, unless an earlier run has raced this original: who asks the same needs no process."""
    with suppress(OSError):
      if original and self._store.get(self._any(Path(original))) is not None:
        return
    super().begin()

  def __call__(self, question: Race) -> Times | Failed:
    """As ``race``."""
    try:
      key = self._key(question)
    except OSError:
      return self._asked(question)
    if (known := self._known(key, question)) is not None:
      return known
    found = self._asked(question)
    if isinstance(found, Times) and (question.brief or _is_full(found)):
      self._store.put(key, {**_value(found), "seconds": question.seconds})
      self._store.put(self._any(Path(question.arms[0].path)), {"raced": True})
    return found

  def knows(self, question: Race) -> bool:
    """As of ``Racer``."""
    try:
      return self._known(self._key(question), question) is not None
    except OSError:
      return False

  def preferred(self, original: Arm, new: Arm, other: str) -> bool | None:
    """As of ``Racer``; ``other`` names what it is made with, and its making is part of the key."""
    with suppress(OSError):
      value = self._store.get(self._preference(original, new, other)) or {}
      return known if isinstance(known := value.get("preferred"), bool) else None
    return None

  def prefer(self, original: Arm, new: Arm, other: str, is_preferred: bool) -> None:
    """As of ``Racer``."""
    with suppress(OSError):
      self._store.put(self._preference(original, new, other), {"preferred": is_preferred})

  def leave(self, question: Race, budget_s: float) -> None:
    """As of ``Racer``."""
    with suppress(OSError):
      self._store.put(self._key(question, "left"), {"budget_s": budget_s})

  def has_left(self, question: Race, budget_s: float) -> bool:
    """As of ``Racer``; a larger budget has time for more."""
    try:
      value = self._store.get(self._key(question, "left"))
      return value is not None and budget_s <= MORE * float(value["budget_s"])
    except (OSError, *UNREADABLE):
      return False

  def _known(self, key: str, question: Race) -> Times | None:
    value = self._store.get(key)
    found = _times(value)
    if value is None or found is None or _is_full(found):
      return found
    try:
      enough = question.seconds <= MORE * float(value["seconds"])
    except UNREADABLE:
      return None
    return found if question.brief and enough else None

  def _any(self, original: Path) -> str:
    """Of any race whose first arm is this. Raises OSError where it cannot be read."""
    return self._store.key("raced", file_hash(original))

  def _preference(self, original: Arm, new: Arm, other: str) -> str:
    """Raises OSError where a file cannot be read."""
    return self._store.key("preferred", source_digest(*MAKING), other, *map(_arm_text, (original, new)))

  def _key(self, q: Race, what: str = "race") -> str:
    """Raises OSError where a file cannot be read."""
    points = [sorted(p.items()) for p in q.points]
    asked = repr((q.pairs, q.alpha, points, q.provider, q.seed, q.apart, q.captured))
    return self._store.key(what, asked, *map(_arm_text, q.arms))


def _is_full(found: Times) -> bool:
  """Whether there was a look at all that was asked."""
  return all(s.openings >= LOOKS[0] for r in found.rows for s in r.speedups)


def _arm_text(arm: Arm) -> str:
  path = Path(arm.path)
  files = data_files(onnx.load(path, load_external_data=False), path.parent)
  return "\n".join((file_hash(path), *sorted(arm.bodies), *map(_facts, sorted(files))))


def _facts(data: Path) -> str:
  found = data.stat()
  return f"{data} {found.st_size} {'' if is_named_by_content(data) else found.st_mtime_ns}"


def _value(found: Times) -> dict[str, object]:
  rows = [
    [r.sizes, r.how, list(r.us),
     [[s.mean, s.low, None if s.high == inf else s.high, s.openings, s.alpha] for s in r.speedups]]
    for r in found.rows
  ]  # fmt: skip
  return {
    "rows": rows, "launches": list(found.launches), "skipped": list(found.skipped),
    "by_node": [dict(n) for n in found.by_node],
  }  # fmt: skip


def _times(value: dict[str, object] | None) -> Times | None:
  """What is kept as the times of a race, or None where it says none."""
  try:
    if value is None:
      return None
    rows = tuple(
      Raced(
        str(sizes), str(how), tuple(float(u) for u in us),
        tuple(
          Speedup(float(m), float(low), inf if high is None else float(high), int(n), float(a))
          for m, low, high, n, a in speedups
        ),
      )
      for sizes, how, us, speedups in value["rows"]  # type: ignore[attr-defined]
    )  # fmt: skip
    by_node = tuple({str(k): int(v) for k, v in n.items()} for n in value["by_node"])  # type: ignore[attr-defined]
    launches = tuple(int(n) for n in value["launches"])  # type: ignore[attr-defined]
    return Times(rows, launches, tuple(map(str, value["skipped"])), by_node)  # type: ignore[call-overload]
  except UNREADABLE:
    return None
