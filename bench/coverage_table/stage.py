"""What ``coverage.py`` does in processes of their own: one stage of one model.

    python stage.py optimize|stock|emulate MODEL.onnx FOLDER

``optimize`` writes FOLDER/model.onnx and row.json, as the command does with its default flags;
``stock`` and ``emulate`` check it and write stock.json, and a line of emulated.jsonl per kernel.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

TARGET = "h200"


def optimize(path, folder, flags):
  """As ``mirage-onnx optimize``, and what the table says of the run."""
  from coverage_table.row import coverage
  from mirage_onnx import api
  from mirage_onnx.events import StageEnded
  from mirage_onnx.tune.baseline import load_table, node_times_us
  from mirage_onnx.tune.declared_sizes import declared_sizes

  runs, write = [], api.write
  api.write = lambda *a, **k: runs.append(write(*a, **k)) or runs[-1]  # without what its check dropped
  stages = {}
  start = time.monotonic()

  def told(event):
    if isinstance(event, StageEnded):
      stages[event.stage] = round(stages.get(event.stage, 0.0) + event.seconds, 1)

  result = api.optimize(path, folder / "model.onnx", target=TARGET, emit=told, **flags)
  seconds = time.monotonic() - start
  ((done, _),) = runs
  target = api.get_target(TARGET)
  sized = done.program.sized(declared_sizes(done.program, {}).typical)
  table = load_table(target)
  times = node_times_us(sized, table) if table else {}
  row = coverage(_with_program(done, sized), times)
  data = {
    "seconds": round(seconds, 1), "stages": stages, "coverage": asdict(row),
    "cut_off": sum(o.rejection is not None and o.rejection.code == "BUDGET" for o in done.outcomes.values()),
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
