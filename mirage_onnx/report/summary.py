"""The last lines of ``optimize``: what the model gains, what became of its regions, what to do next."""

import shlex
from collections.abc import Iterator

from mirage_onnx.report.band import speedup_band
from mirage_onnx.report.dimensions import dimension_lines
from mirage_onnx.report.schema import CUT_OFF, ModelReport, Report
from mirage_onnx.report.timed import timed_line

#: Reasons of kept regions which a run on the target's GPU would settle.
_MEASURABLE = ("NOT_FASTER", "NOT_PREDICTED")


def model_us(report: Report) -> tuple[float, float] | None:
  """(before, after) of the whole model, predicted; None where nothing of it is known."""
  return (report.model.before_us, report.model.after_us) if report.model else None


def summary(report: Report) -> str:
  """Three lines, of the model, its regions and the file; dynamic sizes; and one for each thing to do next."""
  dynamic = dimension_lines(report.dimensions)
  lines = (_model(report), _regions(report), *_targets(report), _file(report), *dynamic, *_next(report))
  return "\n".join(lines)


def _replaced(report: Report) -> int:
  return sum(r.count for r in report.regions if r.status == "replaced")


def _model(report: Report) -> str:
  m = report.model
  if not _replaced(report):
    codes = report.found.by_result if report.found else {}
    why = next((why for code, why in _DROPPED.items() if code in codes), "")
    return "whole model: as it was" + (why or (_time(m) if m and m.before_us > 0 else ""))
  if report.measured and report.measured.rows:
    return "whole model: " + timed_line(report.measured.rows)
  if m is None or m.after_us <= 0:
    return "whole model: its time is unknown"
  kinds = sorted({r.choice for r in report.regions if r.choice})
  band = speedup_band(m.before_us, m.after_us)
  likely = f", likely {band[0]:.2f}x to {band[1]:.2f}x" if band else ""
  speedup = f"{m.before_us / m.after_us:.2f}x{likely}"
  text = f"whole model: {m.before_us:.1f} → {m.after_us:.1f} µs ({speedup}), predicted"
  if "measured" in kinds:
    text += f"; kernels chosen by {' and '.join(_CHOICES[k] for k in kinds)}"
  return text + _unknown(m)


#: Why a result with kernels was not written.
_DROPPED = {
  "MODEL_UNTIMED": ": onnxruntime could not run it, or what was replaced, to time both",
  "MODEL_UNSURE": ": the time ended before whole runs said that it is faster with what was replaced",
  "MODEL_SLOWER": ": what was replaced was not faster, measured",
}
_CHOICES = {"measured": "measurement", "predicted": "prediction"}


def _time(m: ModelReport) -> str:
  return f", {m.before_us:.1f} µs, predicted" + _unknown(m)


def _unknown(m: ModelReport) -> str:
  """What the times of the whole model leave out."""
  text = ""
  if m.nodes_unknown:
    gone = f" ({m.nodes_unknown_gone} of them replaced)" if m.nodes_unknown_gone else ""
    text += f"; left out: {_nodes(m.nodes_unknown)} of unknown time{gone}"
  if m.nodes_bounded:
    text += f"; {_nodes(m.nodes_bounded)} counted by bytes alone"
  return text


def _nodes(n: int) -> str:
  return _counted(n, "node")


def _counted(n: int, thing: str) -> str:
  return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _regions(report: Report) -> str:
  found, m = report.found, report.model
  distinct = sum(r.status == "replaced" for r in report.regions)
  text = f"regions: {distinct} replaced" if not found or found.regions else "regions: none"
  if distinct:
    text += f" in {_counted(_replaced(report), 'place')}"
    if m:
      text += f" ({m.nodes_gone} of {_nodes(m.nodes)} → {m.custom_nodes})"
  if found and found.regions:
    late = _late(report)
    text += f", {found.regions - distinct - late} kept" + (f", {late} not reached" if late else "")
    text += f" (of {found.regions}, which overlap)"
    if found.searched_in_part:
      text += f"; {found.searched_in_part} searched in part"
  if report.barriers:
    counts = ", ".join(f"{n} {code}" for code, n in sorted(report.barriers.items()))
    text += f"; nodes in no region: {counts}"
  return text


def _targets(report: Report) -> Iterator[str]:
  if report.targets:
    each = (
      f"{t.name} {t.regions} in {_counted(t.custom_nodes, 'place')}"
      + (f" (its time left {_counted(t.late, 'region')})" if t.late else "")
      for t in report.targets
    )
    yield f"replaced by target: {', '.join(each)}; lines above are of {report.targets[0].name}"


def _late(report: Report) -> int:
  counts = report.found.by_result if report.found else {}
  return sum(c.regions for code, c in counts.items() if code in CUT_OFF)


def _file(report: Report) -> str:
  took = f" in {report.seconds:.1f} s" if report.seconds is not None else ""
  if not report.output:
    return f"wrote no model{took}"
  checked = f"; checked: {report.checked}" if report.checked and _replaced(report) else ""
  return f"wrote {report.output}{took}{checked}"


def _next(report: Report) -> Iterator[str]:
  codes = {r.reason for r in report.regions if r.reason} | set(report.found.by_result if report.found else ())
  if report.output and report.input and _replaced(report):
    yield "next: " + shlex.join(("mirage-onnx", "verify", report.input, report.output))
  elif report.found and not report.found.regions:
    yield "next: nothing: ONNX Runtime keeps all of it (mirage-onnx explain MODEL NODE says why)"
  elif report.input and not _late(report):
    yield "next: " + shlex.join(("mirage-onnx", "inspect", report.input)) + " shows what could be fused"
  late = _late(report) or any(t.late for t in report.targets)
  if late and "INTERRUPTED" not in codes:  # there the command says where it goes on
    yield "next: the same command with a larger --budget goes on where this one ended"
  measured = any(r.choice == "measured" for r in report.regions)
  if not measured and codes & set(_MEASURABLE):
    yield "next: --target local on the GPU times what a prediction left alone"
