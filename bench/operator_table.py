"""The table of a GPU of what ``bench/operator_times.py`` measured on it.

    python3 bench/operator_table.py bench/results/h100/operators.jsonl mirage_onnx/targets/tables/h100.json

    ... h200/operators.jsonl mirage_onnx/targets/tables/h200.json --carried h100/operators.jsonl

(and the other way round: each has what the other GPU has of more points)

Points get the names of ``mirage_onnx/tune/operator_kinds.py``: products of two activations by what divides
their sizes, and of products with a bias only what that adds to the product without. Points that were refused
are left out. A table is calibrated on whole models: a node of one takes ``LESS_US`` less than the same node
among its like (``bench/predictions.py``; 24 originals on an H100 and an H200).

``--carried``: the points of another GPU of the same chip, where it has none of its own. What is read from
memory takes as much less as that is faster, all else as long: of 96 points over elements that were measured
on both the median is 1.02 times what was measured, 94 % are within 15 %; of 28 products 0.93 and 75 %.
"""

import argparse
import json
import sys
from collections import defaultdict
from math import prod
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

#: Microseconds that a node takes less in a model.
LESS_US = 0.43
#: No node takes less than this part of what was measured.
LEAST_PART = 0.25
#: Operators that read two tensors of the size of their result.
TWO_READ = (
  "Add", "Sub", "Mul", "Div", "Where", "AddMiddle", "MulMiddle", "SkipLayerNormalization", "BiasSoftmax",
)  # fmt: skip


def in_a_model(points):
  """``points``, as nodes of a model take."""
  return _mapped(points, lambda kind, dtype, sizes, us: max(us - LESS_US, LEAST_PART * us))


def carried(points, measured, target):
  """``points`` of ``measured`` for ``target``, which differs in its memory."""
  more, slower = 1 / target.stream_tbps - 1 / measured.stream_tbps, measured.stream_tbps / target.stream_tbps

  def us_there(kind, dtype, sizes, us):
    there = us + read_bytes(kind, dtype, sizes, measured.l2_bytes) / 1e6 * more
    return min(max(there, us * min(1.0, slower)), us * max(1.0, slower))

  return _mapped(points, us_there)


def joined(own, others):
  """``own`` points, and what only ``others`` have."""
  found = {}
  for points in (others, own):
    for dtype, kinds in points.items():
      for kind, rows in kinds.items():
        found.setdefault(dtype, {}).setdefault(kind, {}).update({tuple(r[:-1]): r for r in rows})
  return {
    dtype: {kind: [rows[sizes] for sizes in sorted(rows)] for kind, rows in sorted(kinds.items())}
    for dtype, kinds in sorted(found.items())
  }


def read_bytes(kind, dtype, sizes, l2_bytes):
  """What a point reads from and writes to memory: weights, and activations that L2 does not hold."""
  size, weights = 4 if dtype == "fp32" else 2, 0
  if kind == "MatMul":
    m, k, n = sizes
    weights, moved = k * n, m * (k + n)
  elif kind.startswith(("scores", "values")):
    b, length, depth = sizes
    moved = b * length * (depth if " of a row" in kind else length + 2 * depth)
  else:
    moved = prod(sizes) * (3 if kind in TWO_READ else 2)
  return size * (weights + (moved if size * moved > l2_bytes else 0))


def _mapped(points, us_of):
  return {
    dtype: {
      kind: [[*sizes, round(us_of(kind, dtype, sizes, us), 3)] for *sizes, us in rows]
      for kind, rows in kinds.items()
    }
    for dtype, kinds in points.items()
  }


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
    "command": "python3 bench/operator_times.py", "less_us": LESS_US,
    "points": in_a_model({
      dtype: {kind: [[*at, us] for at, us in sorted(own.items())] for kind, own in sorted(kinds.items())}
      for dtype, kinds in sorted(points.items())
    }),
  }  # fmt: skip


def text_of(table):
  """A line a kind."""
  head = {k: v for k, v in table.items() if k not in ("points", "ops", "matmul")}
  lines = ["{"] + [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()]
  if "ops" in table:
    ops = [f"  {json.dumps(op)}: {json.dumps(rows)}" for op, rows in table["ops"].items()]
    lines += [' "ops": {', ",\n".join(ops), " },", f' "matmul": {json.dumps(table["matmul"])},']
  lines += [' "points": {']
  types = []
  for dtype, kinds in table["points"].items():
    rows = [f"   {json.dumps(kind)}: {json.dumps(points)}" for kind, points in kinds.items()]
    types.append(f"  {json.dumps(dtype)}: {{\n" + ",\n".join(rows) + "\n  }")
  return "\n".join(lines) + "\n" + ",\n".join(types) + "\n }\n}\n"


def main():
  from mirage_onnx.target import TARGETS

  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("times", type=Path)
  parser.add_argument("table", type=Path)
  parser.add_argument("--carried", type=Path, metavar="TIMES", help="of another GPU, for what has no time")
  o = parser.parse_args()
  table, other = (
    table_of(list(map(json.loads, p.read_text().splitlines()))) if p else None for p in (o.times, o.carried)
  )
  points = table["points"]
  if other:
    measured, target = (next(t for t in TARGETS.values() if t.gpu == x["gpu"]) for x in (other, table))
    table["carried_from"], points = other["gpu"], joined(points, carried(other["points"], measured, target))
  older = json.loads(o.table.read_text()) if o.table.is_file() else {}
  older = {k: v for k, v in older.items() if k in ("ops", "matmul", "added", "ops_date", "ops_command")}
  o.table.write_text(text_of({**table, **older, "points": points}))
  print({dtype: {k: len(v) for k, v in kinds.items()} for dtype, kinds in points.items()})


if __name__ == "__main__":
  main()
