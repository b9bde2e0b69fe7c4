"""The table of whole models of README.md, from what ``bench/whole.py`` recorded.

    python bench/whole_table.py [WHOLE.jsonl ...] [--check]

Takes the lines of the given files into bench/results/GPU/whole.jsonl, each instead of an earlier one of the
same model and target (those of bench/whole_peers.py into whole_peers.jsonl beside it), and writes the tables
(one a GPU, the newest record first) between the markers of the page. A line that failed takes the place of
none that did not. How far predictions are off is what bench/predictions.py says (``predictions.json``: with
the tables of now). --check: writes nothing, exit 1 if the page is not what the records give.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- whole: python bench/whole_table.py -->", "<!-- end of whole -->"
#: Names of GPUs by how the driver's begin -> the folder of their records.
FOLDERS = {"NVIDIA H200": "h200", "NVIDIA H100": "h100"}
#: Since then nothing is contracted to fused multiply-adds (commit 5482d51).
UNCONTRACTED = "2026-11-25T12:26:58+00:00"
#: Arms of bench/whole_peers.py -> their columns.
PEERS = {"fused": "fused operators", "compiled": "torch.compile"}
#: The records of a GPU's folder: of whole.py, and of whole_peers.py.
RECORDS = ("whole.jsonl", "whole_peers.jsonl")
HEAD = (
  "model",
  "onnxruntime",
  "predicted",
  "speedup",
  "measured",
  "speedup",
  *PEERS.values(),
  "prediction off by",
  "optimized in",
  "again in",
)


def read(path):
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def gpu_of(row):
  return row.get("gpu", "unknown").split(",")[0]


def folder_of(row):
  """Where the record of a line is kept.

  Raises:
      ValueError: of a GPU that has none: times of a CPU say nothing.
  """
  found = [folder for begin, folder in FOLDERS.items() if gpu_of(row).startswith(begin)]
  if not found:
    raise ValueError(f"{row.get('model')}: {gpu_of(row)!r} has no folder below {RESULTS.name}")
  return found[0]


def merged(rows):
  """The newest line of every model and target, in the order of their names."""
  latest = {}
  for row in sorted(rows, key=lambda r: r.get("date", "")):
    key = row["model"], row["target"]
    if "ratio" in row or "ratio" not in latest.get(key, {}):
      latest[key] = row
  return [latest[key] for key in sorted(latest)]


def predicted_off(results, rows=None):
  """(GPU's folder, model) -> how far the time predicted of the model that was written is off.

  ``rows``: lines by folder; of one that was timed again since then nothing is known.
  """
  path = results / "predictions.json"
  known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
  return {
    (folder, r["model"]): r["after_off"]
    for folder in FOLDERS.values()
    for r in known.get(folder, {}).get("models", ())
    if "after_off" in r and r["target"] != "local"
    if rows is None or any(_is_of(line, r) for line in rows.get(folder, ()))
  }


def _is_of(line, prediction):
  """Whether a prediction was held against this line."""
  same = (line["model"], line["target"]) == (prediction["model"], prediction["target"])
  return same and line.get("optimized_us") == prediction.get("after_measured_us")


def table(rows, off=None):
  """The lines of one GPU's table; ``off``: as of ``predicted_off``."""
  models, peers = {}, {(r["model"], r["target"]): r for r in rows if r["target"] in PEERS}
  for row in (r for r in rows if r["target"] not in PEERS):
    models.setdefault(row["model"], {})["measured" if row["target"] == "local" else "predicted"] = row
  lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
  for model, arms in models.items():
    newest = max(arms.values(), key=lambda r: r.get("date", ""))
    original = f"{newest['onnxruntime_us']:.0f}" if "ratio" in newest else "-"
    cells = [model, original]
    for arm in ("predicted", "measured"):
      cells += [_time(arms.get(arm)), _ratio(arms.get(arm))]
    cells += [_peer(peers.get((model, arm))) for arm in PEERS]
    cells += [_error(arms, (off or {}).get((_folder(newest), model))), _seconds(arms), _again(arms)]
    lines.append("| " + " | ".join(cells) + " |")
  return lines


def _time(row):
  if row is None:
    return "-"
  if "ratio" not in row:
    return "failed"
  return f"{row['optimized_us']:.0f}" + ("*" if row["date"] < UNCONTRACTED else "")


def _ratio(row):
  if row is None or "ratio" not in row:
    return "-"
  low, high = row["ratio_95"]
  if not row["custom_nodes"]:
    return "1 (as it was)"
  return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


def _peer(row):
  """Microseconds and the speedup over onnxruntime in the same run; ``ops``: what was fused."""
  if row is None:
    return "-"
  if "ratio" not in row:
    return "failed" if row.get("ops", True) else "nothing fused"
  return f"{row['us']:.0f} ({row['ratio']:.2f})"


def _folder(row):
  return next((folder for begin, folder in FOLDERS.items() if gpu_of(row).startswith(begin)), "")


def _error(arms, off):
  """How far the predicted time of the written model is from its own.

  Of one that was only made by timing that of its kernels, median and worst.
  """
  if "ratio" in (arms.get("predicted") or {}):
    return "-" if off is None else f"{off:+.0%}"
  kernels = [r for r in (arms.get("measured") or {}).get("replaced", ()) if r.get("measured_us")]
  off = sorted((r["predicted_us"] / r["measured_us"] - 1 for r in kernels), key=abs)
  return f"kernels {statistics.median(off):+.0%} ({off[-1]:+.0%})" if off else "-"


def _seconds(arms):
  found = [
    f"{r['optimize_s']:.0f} s" for a in ("predicted", "measured") if (r := arms.get(a)) and "optimize_s" in r
  ]
  return " / ".join(found) or "-"


def _again(arms):
  """A second run that finds what the first has kept, and one of which the run itself is known."""
  row = arms.get("measured") or {}
  return f"{row['again_s']:.0f} s, {row['known_s']:.1f} s" if "known_s" in row else "-"


def caption(rows):
  """Which GPU, software and commit the rows are of."""
  facts = sorted({(_commit(r), r.get("versions", {}).get("onnxruntime-gpu", "?"), _driver(r)) for r in rows})
  runs = "; ".join(f"commit {c}, onnxruntime-gpu {v}, driver {d}" for c, v, d in facts)
  dates = sorted(r["date"][:10] for r in rows)
  when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
  said = f"**{gpu_of(rows[0])}**, {when} ({runs}):"
  if any(r["date"] < UNCONTRACTED and "ratio" in r for r in rows):
    said += " * with fma contraction, which is off now."
  return said


def _driver(row):
  return row.get("gpu", "?, ?").split(",")[1].strip()


def _commit(row):
  found = row.get("commit") or row.get("note", "").removeprefix("tree of ")
  return found[:7] if re.match(r"[0-9a-f]{7}", found) else "unknown"


def lines_of(records, off=None):
  """All tables; ``records``: lines by GPU; ``off``: as of ``predicted_off``."""
  newest = sorted((r for r in records if r), key=lambda rows: max(x["date"] for x in rows), reverse=True)
  found = []
  for rows in newest:
    found += [caption(rows), "", *table(rows, off), ""]
  return found[:-1]


def page(text, lines):
  """``text`` with ``lines`` between its markers.

  Raises:
      ValueError: the markers are not there, or twice.
  """
  pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
  found, count = pattern.subn(lambda _: "\n".join([BEGIN, "", *lines, "", END]), text)
  if count != 1:
    raise ValueError(f"{count} places between {BEGIN!r} and {END!r}, one is needed")
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("files", nargs="*", type=Path)
  parser.add_argument("--check", action="store_true")
  options = parser.parse_args()
  records = {f: [p for n in RECORDS if (p := RESULTS / f / n).is_file()] for f in FOLDERS.values()}
  rows = {folder: [r for path in paths for r in read(path)] for folder, paths in records.items() if paths}
  for row in (r for path in options.files for r in read(path)):
    rows.setdefault(folder_of(row), []).append(row)
  rows = {folder: merged(some) for folder, some in rows.items()}
  old = PAGE.read_text(encoding="utf-8")
  new = page(old, lines_of(list(rows.values()), predicted_off(RESULTS, rows)))
  if options.check:
    print(f"{PAGE.name} is not what the records give" * (new != old))
    return int(new != old)
  PAGE.write_text(new, encoding="utf-8")
  if options.files:
    for folder, some in rows.items():
      (RESULTS / folder).mkdir(parents=True, exist_ok=True)
      for name, peers in zip(RECORDS, (False, True), strict=True):
        text = "".join(json.dumps(r) + "\n" for r in some if (r["target"] in PEERS) == peers)
        if text:
          (RESULTS / folder / name).write_text(text, encoding="utf-8")
  return 0


if __name__ == "__main__":
  sys.exit(main())
