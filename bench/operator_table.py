"""The table of a GPU of what ``bench/operator_times.py`` measured on it.

    python3 bench/operator_table.py bench/results/h100/operators.jsonl mirage_onnx/targets/tables/h100.json

Points get the names of ``mirage_onnx/tune/operator_kinds.py``: products of two activations by what divides
their sizes, and of products with a bias only what that adds to the product without. Points that were refused
are left out.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def table_of(lines):
  """The content of a table's file."""
  from mirage_onnx.tune.baseline import BIAS
  from mirage_onnx.tune.operator_kinds import batched

  head, *rows = lines
  measured = {(r["kind"], r["type"], tuple(r["sizes"])): r["us"] for r in rows if "us" in r}
  points = defaultdict(lambda: defaultdict(dict))
  biases = defaultdict(list)
  for (kind, dtype, sizes), us in measured.items():
    if kind == "Gemm":
      m, k, n = sizes
      if (alone := measured.get(("MatMul", dtype, sizes))) is not None:
        biases[dtype, m * n].append(max(0.0, us - alone))
      continue
    if kind in ("scores", "values"):
      b, m, k, n = sizes
      use = batched(dtype, b, m, k, n)
      kind, sizes = use.kind, use.sizes
    points[dtype][kind][sizes] = round(max(us, 0.0), 3)
  for (dtype, elements), found in biases.items():
    points[dtype][BIAS][(elements,)] = round(sum(found) / len(found), 3)
  return {
    "ort": head["versions"]["onnxruntime-gpu"],
    "gpu": head["gpu"].split(",")[0], "driver": head["gpu"].split(",")[1].strip(),
    "date": head.get("date", ""), "commit": head.get("commit", ""),
    "command": "python3 bench/operator_times.py",
    "points": {
      dtype: {kind: [[*at, us] for at, us in sorted(own.items())] for kind, own in sorted(kinds.items())}
      for dtype, kinds in sorted(points.items())
    },
  }  # fmt: skip


def text_of(table):
  """A line a kind."""
  head = {k: v for k, v in table.items() if k != "points"}
  lines = ["{"] + [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()] + [' "points": {']
  types = []
  for dtype, kinds in table["points"].items():
    rows = [f"   {json.dumps(kind)}: {json.dumps(points)}" for kind, points in kinds.items()]
    types.append(f"  {json.dumps(dtype)}: {{\n" + ",\n".join(rows) + "\n  }")
  return "\n".join(lines) + "\n" + ",\n".join(types) + "\n }\n}\n"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("times", type=Path)
  parser.add_argument("table", type=Path)
  o = parser.parse_args()
  table = table_of(list(map(json.loads, o.times.read_text().splitlines())))
  o.table.write_text(text_of(table))
  print({dtype: {k: len(v) for k, v in kinds.items()} for dtype, kinds in table["points"].items()})


if __name__ == "__main__":
  main()
