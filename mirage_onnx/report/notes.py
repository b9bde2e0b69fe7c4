"""What models are given about the run that makes them.

What makes a record is imported where there is something to record: it takes a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mirage_onnx.errors import MirageError
from mirage_onnx.pipeline import Run
from mirage_onnx.report.optimize_report import measured_report
from mirage_onnx.report.run_record import append_measured, measured_text, read, restore, store
from mirage_onnx.report.timed import MeasuredReport
from mirage_onnx.target import Target

if TYPE_CHECKING:
  from mirage_onnx.racing import Gate


@dataclass
class Notes:
  """Of a run on the file ``source`` (None: a model in memory); ``gate``: what times models, if anything.

  ``record``, ``measured``: what is kept, where that is known: of the run that a lock repeats; ``measured``
  is known of every run behind its gate.
  """

  source: Path | None
  target: Target
  gate: Gate | None = None
  record: str = ""
  measured: str = ""

  def noted(self, run: Run) -> Run:
    """``run``, whose model (a new one, where anything was replaced) keeps the record and says what it is."""
    if run.chosen:
      from mirage_onnx.report.record_run import describe, record_run

      if self.record:
        restore(run.model, self.record)
        try:
          record = read(run.model)
        except MirageError as error:
          raise MirageError("LOCK_INVALID", error.detail) from None
      else:
        record = record_run(run, self.source, self.target)
        store(run.model, record)
      describe(run.model, record)
    return run

  def timed(self, path: Path) -> None:
    """Adds to a model's new file how it was timed."""
    if (found := measured_report(self.gate)) is not None:
      self.measured = measured_text(msgspec.convert(found, MeasuredReport))
    if self.measured:
      append_measured(path, self.measured)

  @property
  def times_us(self) -> tuple[float, float] | None:
    """Of the whole model before and after, where it gained least of what was measured."""
    rows = self.gate.rows if self.gate else ()
    worst = min(rows, key=lambda r: r.speedups[0].mean, default=None)
    return (worst.us[0], worst.us[1]) if worst else None
