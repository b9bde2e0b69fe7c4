"""Runs of ``--target local`` from run to run: whose output is there as it was written has nothing to do.

All that a run finds is kept by itself, but to ask for it again takes the regions of the model (7 CPU
seconds of 28 layers), their proofs and the model's text. So the run is kept too, where its exploration
has ended of its own accord: by the model and its weights' files (names, sizes and times of change), what
was asked, the machine, the versions and all of this program's source. What it has written stays where it
is the same (every byte of the model and of its lock; of the data file its inode, size and both times);
else all is done as ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from mirage_onnx import events
from mirage_onnx.file_facts import identity
from mirage_onnx.importer import LoadedModel
from mirage_onnx.nvrtc_choice import chosen_version
from mirage_onnx.pipeline import Options, Run
from mirage_onnx.rewrite import kept_checks
from mirage_onnx.rewrite.external import data_files
from mirage_onnx.source_digest import PACKAGE, source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.tune.kept_ends import MORE
from mirage_onnx.tune.lock import file_hash
from mirage_onnx.tune.machine import packages, present_machine

#: What the report adds.
EARLIER = " (in an earlier run of the same: nothing has changed since)"
#: Results of a run that another one may change: what could not be timed, or not to the end.
OPEN = frozenset({"INTERRUPTED", "MODEL_UNSURE", "MODEL_UNTIMED", "MEASURE_FAILED", "REGION_FAILED"})
_PACKAGES = ("numpy", "onnx", "scipy")


class KeptRun:
  """One command: ``asked`` is all that it was asked for beside ``options``, in any order of its names."""

  def __init__(
    self, store: KeptFolder, loaded: LoadedModel, options: Options, output: Path, lock: Path | None,
    asked: Mapping[str, Any],
  ) -> None:  # fmt: skip
    self._store, self._options, self._output, self._lock = store, options, output, lock
    o = options
    told = [repr(o.target), o.margin, repr(o.bound), {k: list(v) for k, v in o.shapes.items()}]
    told += [o.every, repr(o.steps), o.pool, o.tries, str(output.absolute()), lock and str(lock.absolute())]
    self._key = store.key("run", _given(loaded), json.dumps([told, dict(sorted(asked.items()))]))

  @classmethod
  def of_user(
    cls, loaded: LoadedModel, options: Options, output: Path | None, lock: Path | None, **asked: Any
  ) -> KeptRun | None:
    """Of the cache folder; None where a run is not kept: in memory, by prediction, on from a journal."""
    folder = cache_folder("runs")
    if folder is None or output is None or loaded.path is None:
      return None
    if not options.measure or options.lock is not None or (options.journal and options.journal.exists()):
      return None
    machine = present_machine()
    if machine is None:
      return None
    names = sorted(p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file())
    setting = {**machine.text, "source": source_digest(*names), "versions": packages(_PACKAGES)}
    try:
      return cls(
        KeptFolder(folder, {**setting, "compiler": chosen_version()}), loaded, options, output, lock, asked
      )
    except OSError:  # a file of weights cannot be read: who needs it will say so
      return None

  def known(self, emit: events.Emit) -> tuple[onnx.ModelProto, dict[str, Any]] | None:
    """What an earlier run has written, which is there still, and its report."""
    value = self._store.get(self._key)
    try:
      if value is None or not self._options.budget_s <= MORE * float(value["budget_s"]):
        return None
      report, written = dict(value["report"]), value["written"]
      if written != self._written():
        return None
      model = onnx.load(self._output, load_external_data=False)
      report["checked"] = str(report["checked"]).removesuffix(kept_checks.EARLIER) + EARLIER
    except (OSError, *UNREADABLE):
      return None
    emit(events.StageStarted("write"))
    emit(events.StageEnded("write", 0.0, report["checked"]))
    return model, report

  def keep(self, run: Run, report: Mapping[str, Any]) -> None:
    """What has just been written, if the run has come to an end of its own."""
    unsure = OPEN & set(report["found"]["by_result"]) or str(report["checked"]).startswith("not ")
    if unsure or not run.ended or not run.chosen:
      return
    try:
      value = {"report": dict(report), "written": self._written(), "budget_s": self._options.budget_s}
    except OSError:
      return
    self._store.put(self._key, value)

  def _written(self) -> list[str]:
    """The hashes of the output and its lock, and what says that its data is the same. Raises OSError."""
    found = [file_hash(self._output), file_hash(self._lock) if self._lock else ""]
    model = onnx.load(self._output, load_external_data=False)
    return found + [_facts(f) for f in sorted(data_files(model, self._output.parent))]


def _given(loaded: LoadedModel) -> str:
  assert loaded.path is not None
  files = sorted(data_files(loaded.given, loaded.path.parent))
  return "\n".join([str(loaded.path.absolute()), file_hash(loaded.path), *map(_facts, files)])


def _facts(data: Path) -> str:
  """As far as a file of gigabytes is looked at. Raises OSError."""
  return f"{data} {identity(data.stat())}"
