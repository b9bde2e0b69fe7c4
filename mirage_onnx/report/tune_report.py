"""The JSON report of ``tune``, as a type, and its three lines."""

from typing import Literal

from mirage_onnx.report.struct import Struct
from mirage_onnx.report.timed import MeasuredReport, timed_line


class TunedKernel(Struct, frozen=True):
  """A kernel of the model and the custom nodes that run it; ``reason``: why its bodies took its place."""

  nodes: list[str]
  status: Literal["kept", "dropped"]
  reason: str | None


class TuneReport(Struct, frozen=True):
  """One run of ``tune``: the model at ``model`` is the one that was measured and written again.

  ``checked``: what was done before it was replaced, in words. ``note``: what else changed.
  """

  schema: Literal[1]
  model: str
  target: str
  seconds: float
  kernels: list[TunedKernel]
  measured: MeasuredReport
  checked: str
  note: str


def tune_lines(report: TuneReport) -> str:
  """Of the model, its regions and the file, as ``optimize`` ends."""
  kept = [k for k in report.kernels if k.status == "kept"]
  places, every = sum(len(k.nodes) for k in kept), sum(len(k.nodes) for k in report.kernels)
  whole = (
    timed_line(report.measured.rows) if kept else "as it was: what was replaced was not faster, measured"
  )
  dropped = len(report.kernels) - len(kept)
  lines = [
    f"whole model: {whole}",
    f"regions: {len(kept)} of {len(report.kernels)} stay in {places} of {every} places, {dropped} dropped",
    f"wrote {report.model} in {report.seconds:.1f} s; checked: {report.checked}",
  ]
  return "\n".join([*lines, *([f"note: {report.note}"] if report.note else [])])
