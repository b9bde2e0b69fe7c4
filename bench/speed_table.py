"""The speed table of docs/measurements.md, from the recorded runs.

    python bench/speed_table.py [SPEED.json ...] [--check | --all]

Takes the cases of the given files (of ``run.py``) into bench/results/h200/speed.json, each
instead of an earlier result of the same case, and writes the table between the markers of the
page. --check: writes nothing, exit 1 if the page is not what the record gives. --all: writes
nothing, prints every arm of every case and the runs that they are from.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path

from cases import ROWS

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "bench" / "results" / "h200" / "speed.json"
PAGE = ROOT / "docs" / "measurements.md"
BEGIN, END = "<!-- speed: python bench/speed_table.py -->", "<!-- end of speed -->"

MEASURED, PREDICTED, ORT = "mirage-onnx, measured", "mirage-onnx, predicted", "onnxruntime"
FUSED = "onnxruntime, its fused operators"
COMPILED, LIMIT = "torch.compile max-autotune", "streaming limit"
#: Behind the name of a session that runs as its own CUDA graph.
GRAPH = ", enable_cuda_graph"


def _is_right(arm):
  return arm is not None and not arm.get("wrong", False)


def time_of(result, arm):
  """Median in microseconds; of a session, as its own CUDA graph where it has one."""
  right = (a for a in (result["arms"].get(n) for n in (arm + GRAPH, arm)) if _is_right(a))
  return float(next((a["us"] for a in right if a), math.nan))


def both(result, arm):
  """A session's times as its own CUDA graph / captured by us, as the arms of torch are."""
  arms = (result["arms"].get(n) for n in (arm + GRAPH, arm))
  return " / ".join(_us(a["us"]) for a in arms if _is_right(a)) or "-"


def best_peer(result):
  """The fastest of what is neither ours, nor onnxruntime's plain session, nor a limit."""
  peers = {
    name: a["us"] for name, a in result["arms"].items()
    if not name.startswith((MEASURED, PREDICTED, LIMIT)) and name not in (ORT, ORT + GRAPH)
    and _is_right(a)
  }  # fmt: skip
  return min(peers.items(), key=lambda p: p[1], default=("-", math.nan))


def replaced(result, choice):
  """How much of the model was replaced, or why nothing."""
  told = result["optimize"].get(choice)
  if told is None:
    return "not run"
  if told["replaced"]:
    regions = sum(r["count"] for r in told["replaced"])
    left = f", {told['nodes_left']} nodes kept" if told["nodes_left"] else ""
    return f"{regions} region{'s' * (regions > 1)}{left}"
  reasons = sorted({k["reason"]: -k["ops"] for k in told["kept"]}.items(), key=lambda r: r[1])
  return "nothing replaced: " + ", ".join(code for code, _ in reasons)


def _us(x):
  return "-" if math.isnan(x) else f"{x:.1f}"


def _ratio(x, y):
  return "-" if math.isnan(x / y) else f"{x / y:.2f}"


def _title(case, result):
  row = case.split("/")[0]
  return f"{ROWS[row].title} {result['name'].split(' ', 1)[1]}"


def table(head, rows):
  return [f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *rows)]


def ordered(record, *, nearby):
  """The recorded cases in the order of the table."""
  known = {r["case"]: r for r in record["results"]}
  names = (f"{n}/{s}" for n, row in ROWS.items() for s in (row.nearby if nearby else row.sizes))
  return {n: known[n] for n in names if n in known}


def main_table(record):
  """One line per case, then those at shapes that nothing was tuned for."""
  head = ["case", "limit", "mirage-onnx", "/ limit", "onnxruntime", "best peer", "/ peer", "goal"]
  rows = []
  for case, r in ordered(record, nearby=False).items():
    row, size = case.split("/")
    ours, (peer, peer_us) = time_of(r, MEASURED), best_peer(r)
    told = replaced(r, "measured")
    mark = " (nothing replaced)" if told.startswith("nothing") else ""
    earlier = " (an earlier run)" * r["arms"].get(peer, {}).get("earlier", False)
    peer = "ORT's fused operators" if peer.startswith(FUSED) else peer.split(", (")[0]
    peer += earlier
    rows.append([
      _title(case, r), _us(time_of(r, LIMIT)), both(r, MEASURED) + mark,
      _ratio(ours, time_of(r, LIMIT)), _us(time_of(r, ORT)),
      "-" if math.isnan(peer_us) else f"{peer_us:.1f} {peer}",
      _ratio(ours, peer_us), f"{ROWS[row].targets[size]:g}",
    ])  # fmt: skip
  lines = table(head, rows)
  near = ordered(record, nearby=True)
  if near:
    head = ["nearby shape", "limit", "mirage-onnx", "/ limit", "/ limit of its row",
            "onnxruntime"]  # fmt: skip
    lines += ["", *table(head, [_nearby(record, case, r) for case, r in near.items()])]
  return lines


def _nearby(record, case, r):
  row = case.split("/")[0]
  mates = [m for c, m in ordered(record, nearby=False).items() if c.split("/")[0] == row]
  ratios = [time_of(m, MEASURED) / time_of(m, LIMIT) for m in mates]
  ours = time_of(r, MEASURED)
  spread = f"{min(ratios):.2f} - {max(ratios):.2f}" if len(ratios) > 1 else ""
  return [
    _title(case, r), _us(time_of(r, LIMIT)), both(r, MEASURED),
    _ratio(ours, time_of(r, LIMIT)),
    spread or (f"{ratios[0]:.2f}" if ratios else "-"), _us(time_of(r, ORT)),
  ]  # fmt: skip


def all_table(record):
  """All arms, one line per case; a session's times are as its own graph / captured by us."""
  head = ["case", "MB", LIMIT, MEASURED, PREDICTED, ORT, COMPILED, "libraries", "errors",
          "measured choice"]  # fmt: skip
  rows, notes = [], []
  for case, r in (ordered(record, nearby=False) | ordered(record, nearby=True)).items():
    arms = r["arms"]
    sessions = [both(r, name) for name in (MEASURED, PREDICTED, ORT)]
    calls = "; ".join(
      f"{n.removeprefix('torch ')} {_us(a['us'])}" for n, a in arms.items()
      if n.startswith(("torch ", FUSED))
    )  # fmt: skip
    errors = [a["error"] for a in arms.values() if "error" in a]
    rows.append([
      _title(case, r), f"{r['bytes'] / 1e6:.1f}", _us(time_of(r, LIMIT)), *sessions,
      _us(time_of(r, COMPILED)), calls or "-", f"{max(errors, default=math.nan):.0e}",
      replaced(r, "measured"),
    ])  # fmt: skip
    notes += [f"- {_title(case, r)}: {text}" for text in r["failed"]]
    notes += [f"- {_title(case, r)}: no time was left for {', '.join(r['left_out'])}"] * bool(r["left_out"])
  runs = [
    f"Run of {run['date']}: `{run['command']}`, commit {run['commit'][:12]}, {run['gpu']}; "
    + ", ".join(f"{n} {v}" for n, v in run["versions"].items())
    for run in record["runs"]
  ]
  return [*table(head, rows), *["", *notes] * bool(notes), *(x for r in runs for x in ("", r))]


def page(text, lines):
  """``text`` with ``lines`` between its markers."""
  pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
  new = "\n".join([BEGIN, "", *lines, "", END])
  found, count = pattern.subn(lambda _: new, text)
  if count != 1:
    raise ValueError(f"{count} places between {BEGIN!r} and {END!r}, one is needed")
  return found


def read(path):
  return json.loads(path.read_text())


def merged(*records):
  """The newest result of every case, and the runs that they are from."""
  latest = {}
  for record in records:
    for r in record["results"]:
      _, old = latest.get(r["case"], (None, {"arms": {}}))
      # A peer that was not run again stays, as what it is.
      left = {
        n: {**a, "earlier": True} for n, a in old["arms"].items()
        if n.startswith("torch") and n not in r["arms"]
      }  # fmt: skip
      arms = {"arms": {**r["arms"], **left}} if left else {}
      latest[r["case"]] = record["runs"][r["run"]], {**r, **arms}
  runs = []
  results = []
  for run, r in latest.values():
    if run not in runs:
      runs.append(run)
    results.append({**r, "run": runs.index(run)})
  return {"runs": runs, "results": results}


def text_of(record):
  """One line per entry of a list, so that a new run shows as what it changes."""
  fields = []
  for name, value in record.items():
    if isinstance(value, list) and value:
      lines = ",\n".join(f"  {json.dumps(v, separators=(',', ':'))}" for v in value)
      fields.append(f" {json.dumps(name)}: [\n{lines}\n ]")
    else:
      fields.append(f" {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}")
  return "{\n" + ",\n".join(fields) + "\n}\n"


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("files", nargs="*", type=Path)
  parser.add_argument("--check", action="store_true")
  parser.add_argument("--all", action="store_true")
  options = parser.parse_args()
  record = merged(read(RECORD), *map(read, options.files))
  if options.all:
    print(*all_table(record), sep="\n")
    return 0
  old = PAGE.read_text(encoding="utf-8")
  new = page(old, main_table(record))
  if options.check:
    print(f"{PAGE.name} is not what the record gives" * (new != old))
    return int(new != old)
  PAGE.write_text(new, encoding="utf-8")
  if options.files:
    RECORD.write_text(text_of(record))
  return 0


if __name__ == "__main__":
  sys.exit(main())
