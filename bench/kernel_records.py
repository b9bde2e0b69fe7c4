"""Tables about the kernels themselves, which bench/results/notes.md reads, from the recorded runs.

    python bench/kernel_records.py [counters.json] [ablation.json]

Takes the given files (of ``counters.py`` and ``ablation.py``) into bench/results/h200 and
prints what the records say.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speed_table import read, table, text_of

RECORDS = Path(__file__).resolve().parent / "results" / "h200"
Record = Mapping[str, Any]


def _about(record):
  versions = ", ".join(f"{n} {v}" for n, v in record["versions"].items())
  gpu = record.get("gpu") or "no GPU"
  more = "".join(f", {x}" for x in record.get("ncu", ()))
  commit = record["commit"].split(" ")[0][:12]
  return [
    "", f"Run of {record['date']}: `{record['command']}`, commit {commit}, "
    f"{gpu}; {versions}{more}",
  ]  # fmt: skip


def _shown(row, name, form=".1f"):
  return format(row[name], form) if name in row else "-"


def counters_table(record):
  """A line per kernel; a plain read of the bytes of a case stands before its kernels."""
  head = ["case, kernel", "us by ncu", "us cold, whole node", "MB read", "MB of the case",
          "DRAM %", "L2 hit %", "registers", "smem KiB", "occupancy %", "stalls"]  # fmt: skip
  rows = []
  for r in record["rows"]:
    ours = "params" in r
    title = f"`{r['params']}`" if ours else "a plain read"
    title += "" if r.get("replaced", True) else " (onnxruntime's kept)"
    smem = f"{r['smem_bytes'] / 1024:.1f}" if ours else "-"
    cold = f"{r['cold']['us']:.1f}" if r.get("cold") else "-"
    stalls = ", ".join(f"{n} {x:.0f} %" for n, x in r["stalls"][:3])
    rows.append([
      f"{r['case']} {title}", _shown(r, "us"), cold, _shown(r, "read_mb"),
      f"{r['case_mb']:.1f}", _shown(r, "dram_pct", ".0f"), _shown(r, "l2_hit_pct", ".0f"),
      _shown(r, "registers", ".0f"), smem, _shown(r, "occupancy_pct", ".0f"), stalls,
    ])  # fmt: skip
  return [*table(head, rows), *_about(record)]


def ablation_table(record):
  """A line per program: as it is, and what differs with one choice switched off."""
  names = [v["variant"] for p in record["programs"][:1] for v in p["variants"]]
  rows = []
  for p in record["programs"]:
    if not p["variants"]:
      continue
    plain = p["variants"][0]
    cells = [
      f"{_shown(plain, 'us')} us, {plain['barriers']} bar, "
      f"{plain['smem_bytes'] / 1024:.0f} K, {plain['registers']} reg"
    ]
    rows.append([p["program"], *cells, *(_change(v, plain) for v in p["variants"][1:])])
  return [*table(["program", *names], rows), *_about(record)]


def _change(row, plain):
  """What differs from the kernels as they are; ``=``: the same text."""
  if row["same"]:
    return "="
  if "refused" in row:
    return f"refused {row['refused'].partition(':')[0]}"
  found = [f"{100 * (row['us'] / plain['us'] - 1):+.0f} %"] if "us" in row else []
  for name, unit, scale in (
    ("barriers", "bar", 1), ("moves", "moves", 1), ("smem_bytes", "K", 1024),
    ("registers", "reg", 1), ("spilled", "B spilled", 1),
  ):  # fmt: skip
    if row[name] != plain[name]:
      found.append(f"{row[name] / scale:.0f} {unit}")
  return ", ".join(found) or "same figures"


TABLES = {
  "counters": counters_table, "ablation": ablation_table,
}  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("files", nargs="*", type=Path, help="counters.json, ablation.json")
  for file in parser.parse_args().files:
    record = read(file)
    kind = "counters" if "rows" in record else "ablation"
    (RECORDS / f"{kind}.json").write_text(text_of(record))
  for kind, made in TABLES.items():
    print(*made(read(RECORDS / f"{kind}.json")), "", sep="\n")


if __name__ == "__main__":
  main()
