"""Whole models as they were timed: the part that several reports share, and its line."""

from typing import Literal

from mirage_onnx.report.struct import Struct


class TimedReport(Struct, frozen=True):
  """Whole runs of the original and of the result, medians in us, at sizes of dynamic dimensions.

  ``how``: ``run``, a session's run with its end waited for, or ``graph``, a replay of its CUDA graph.
  ``speedup``: the mean over ``openings`` of both sessions; ``low`` and ``high`` are bounds of it.
  """

  sizes: str
  how: Literal["run", "graph"]
  before_us: float
  after_us: float
  speedup: float
  low: float
  high: float | None
  openings: int


class MeasuredReport(Struct, frozen=True):
  """The whole model as it was timed before it was written; ``note``: why it was not."""

  rows: list[TimedReport]
  note: str = ""


def timed_line(rows: list[TimedReport]) -> str:
  """The time that gained least of those that were measured."""
  r = min(rows, key=lambda r: r.speedup)
  high = "" if r.high is None else f" to {r.high:.2f}"
  how = "a session's run" if r.how == "run" else "its CUDA graph"
  at = f" at {r.sizes}" if r.sizes else ""
  text = f"{r.before_us:.1f} → {r.after_us:.1f} µs ({r.speedup:.2f}x, {r.low:.2f}{high}), measured: {how}{at}"
  others = f"; the least gain of {len(rows)} sizes and ways to run" if len(rows) > 1 else ""
  return text + others
