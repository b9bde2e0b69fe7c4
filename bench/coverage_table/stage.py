"""What ``coverage.py`` does in processes of their own: one stage of one model.

    python stage.py optimize|stock|emulate MODEL.onnx FOLDER

``optimize`` writes FOLDER/model.onnx and row.json, as the command does with its default flags;
``stock`` and ``emulate`` check it and write stock.json, and a line of emulated.jsonl per kernel.
"""

import io
import json
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

TARGET = "h200"


class Said(io.TextIOBase):
  """Lines that a log prints, each with the seconds since ``start``."""

  def __init__(self, start):
    self._start, self.lines = start, []

  def write(self, text):
    now = time.monotonic() - self._start
    self.lines += [(now, line.strip()) for line in text.splitlines() if line.strip()]
    return len(text)

  def at(self, seconds):
    """The last line before that, of a run that goes on."""
    over = not self.lines or self.lines[-1][0] < seconds
    return "" if over else next((x for t, x in reversed(self.lines) if t <= seconds), "")

  def longest(self, end):
    """The longest silence until the end of the run."""
    times = [0.0, *(t for t, _ in self.lines), end]
    return max(b - a for a, b in pairwise(times))


def optimize(path, folder, flags):
  """As ``mirage-onnx optimize``, and what the table says of the run."""
  from rich.console import Console

  from coverage_table.row import coverage
  from mirage_onnx import api
  from mirage_onnx.events import StageEnded, both
  from mirage_onnx.report.progress import ProgressLog
  from mirage_onnx.target import get_target
  from mirage_onnx.tune.baseline import load_table, node_times_us
  from mirage_onnx.tune.declared_sizes import declared_sizes

  runs, write = [], api.write
  api.write = lambda *a, **k: runs.append(write(*a, **k)) or runs[-1]  # without what its check dropped
  stages = {}
  start = time.monotonic()

  def told(event):
    if isinstance(event, StageEnded):
      stages[event.stage] = round(stages.get(event.stage, 0.0) + event.seconds, 1)

  said = Said(start)
  with ProgressLog(Console(file=said, width=200)) as log:
    result = api.optimize(path, folder / "model.onnx", target=TARGET, emit=both(told, log), **flags)
  seconds = time.monotonic() - start
  ((done, _),) = runs
  target = get_target(TARGET)
  sized = done.program.sized(declared_sizes(done.program, {}).typical)
  table = load_table(target)
  times = node_times_us(sized, table) if table else {}
  row = coverage(_with_program(done, sized), times)
  data = {
    "seconds": round(seconds, 1), "stages": stages, "coverage": asdict(row),
    "cut_off": sum(o.rejection is not None and o.rejection.code == "BUDGET" for o in done.outcomes.values()),
    "at_60_s": said.at(60.0), "silence_s": round(said.longest(seconds), 1),
    "report": {k: v for k, v in result.report.items() if isinstance(v, (int, float)) and k != "schema"},
  }  # fmt: skip
  (folder / "row.json").write_text(json.dumps(data))


def _with_program(run, program):
  from dataclasses import replace

  return replace(run, program=program)


def stock(path, folder):
  """Bits without the library."""
  from coverage_table.checks import check_stock

  (folder / "stock.json").write_text(json.dumps(asdict(check_stock(path, folder / "model.onnx"))))


def emulate(path, folder):
  """Every different kernel that no earlier call has begun: a line when it begins, one when it ends."""
  from coverage_table.checks import Check, Nodes, finite_share
  from mirage_onnx.errors import MirageError

  lines = folder / "emulated.jsonl"
  begun = [json.loads(x)["node"] for x in lines.read_text().splitlines()] if lines.exists() else []
  nodes = Nodes(path, folder / "model.onnx")
  (folder / "nodes.json").write_text(
    json.dumps({"total": nodes.total, "kernels": len(nodes.cuts), "finite": finite_share(nodes.values)})
  )
  with lines.open("a") as out:
    for cut in nodes.cuts:
      if cut.node in begun:
        continue
      print(json.dumps({"node": cut.node}), file=out, flush=True)
      try:
        check = nodes.check(cut)
      except MirageError as error:
        slow = "timeout" in error.line() or "CPU time" in error.line()
        check = Check("time" if slow else "FAILED", note=f"{cut.node}: {error.line()}")
      print(json.dumps({"node": cut.node, **asdict(check)}), file=out, flush=True)


if __name__ == "__main__":
  _, what, model, made, *more = sys.argv
  options = json.loads(more[0]) if more else {}
  if what == "optimize":
    optimize(Path(model), Path(made), options)
  else:
    {"stock": stock, "emulate": emulate}[what](Path(model), Path(made))
