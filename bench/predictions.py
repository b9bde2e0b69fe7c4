"""Whole models as predicted without a GPU, against what was measured: before, after, and regions.

    python bench/predictions.py [--graphs .dev/whole/graphs.zip ...] [--out bench/results/predictions.json]

Measured: the lines of ``bench/results/GPU/whole.jsonl`` (``bench/whole.py``), and originals alone of
``bench/results/GPU/origins.jsonl``. Predicted, with the present tables (``mirage_onnx/targets/tables``):
``before`` is the sum of the model's nodes; ``after`` has the nodes taken off that nobody needs any more where
the line's regions are replaced, and what their kernels are predicted to take (as the line has it, and what a
kernel takes longer in a model). ``after_timed``: the same of models whose kernels were chosen by their times,
which are those that are better than predicted; where a line's places are not found again, what its run
predicted (``of_the_run``). ``regions``: of the replaced ones
predicted against measured, where kernels were timed; ``rank`` is Spearman's correlation. An error is
predicted over measured, less one. Graphs only: their weights are holes. Most speedups are within 10 % of each
other: ``rank_of_goal`` is what would be left of their order if they were right but for the error that is the
goal (a median of ``GOAL``), on average. Kernels are timed alone, from a cold cache, which takes a constant
longer: ``cold_us``, the median over all; ``regions_cold`` has it added, to each as the other models have it.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import zipfile
from collections import defaultdict
from dataclasses import replace
from math import fsum
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "bench" / "results"
#: The median error of predictions that is asked for, and draws of it.
GOAL, DRAWS = 0.1, 2000
#: Of the nodes that a line's run saw go, the part that has to be found again.
FOUND = 0.97
#: Bytes of the holes that stand for weights.
HOLES = 30 << 30


def program_of(graphs, name, folder):
  """The static program of a model of the zip, and its nodes by name."""
  from mirage_onnx.importer import import_model, load_model

  with zipfile.ZipFile(graphs) as z:
    path = Path(folder) / f"{name}.onnx"
    path.write_bytes(z.read(f"{name}.onnx"))
  with open(Path(folder) / "weights.bin", "ab") as file:
    file.truncate(HOLES)
  return import_model(load_model(path))


def predicted_nodes(program, target):
  """Node -> microseconds, and the operators of which nothing is known."""
  from mirage_onnx.tune.baseline import model_table, node_times_us, with_floors

  table = node_times_us(program, model_table(target))
  whole = with_floors(table, program, target)
  unknown = sorted({n.op_type for n in program.nodes if n.name not in whole})
  return whole, unknown, sum(n not in table for n in whole)


def gone_nodes(row, program):
  """The nodes that nobody needs where the regions of a line are replaced, in all of their places."""
  from mirage_onnx.choosing.disappearing import disappearing
  from mirage_onnx.match.candidates import find_candidates
  from mirage_onnx.pipeline import limits_of

  local = row["target"] == "local"
  limits = replace(limits_of(steps=False, timed=local), reductions=local)
  places = defaultdict(list)
  for c in find_candidates(program, limits).candidates:
    places[c.region.key].append(c)
  known = {c.region.nodes: own for own in places.values() for c in own}
  asked = [(known[part], r["count"]) for r in row["replaced"] for part in parts_of(tuple(r["ops"]), known)]
  chosen, covered = [], set()
  # A custom node is named by the first node of its place; of a region with more places than were replaced
  # those are left that others have.
  begin = {re.sub(r"\.\d+$", "", name.split("/", 2)[2]) for name in row.get("launches", ()) if "/" in name}

  def order(c):
    return c.region.nodes[0] not in begin, len(covered & c.nodes)

  for own, count in sorted(asked, key=lambda a: len(a[0]) - a[1]):
    free = sorted((c for c in own if c not in chosen), key=order)
    chosen += free[:count]
    covered.update(*(c.nodes for c in free[:count]))
  return disappearing(program, chosen)


def parts_of(ops, known):
  """The regions that a custom node stands for: one, or several that are beside each other in one launch."""
  left, found = set(ops), []
  for part in sorted((part for part in known if left.issuperset(part)), key=len, reverse=True):
    if left.issuperset(part):
      found.append(part)
      left.difference_update(part)
  return found


def after_us(row, nodes, gone):
  """What is left of the nodes of a line, and its kernels as predicted in a model."""
  from mirage_onnx.tune.model_times import IN_MODEL_US

  left = fsum(us for n, us in nodes.items() if n not in gone)
  return left + fsum(r["count"] * (r["predicted_us"] + IN_MODEL_US) for r in row["replaced"])


def rank(pairs):
  """Spearman's correlation of pairs of numbers."""
  if len(pairs) < 3:
    return None
  a, b = (np.argsort(np.argsort(x)) for x in zip(*pairs, strict=True))
  return round(float(np.corrcoef(a, b)[0, 1]), 3)


def rank_of_goal(measured):
  """The mean rank correlation with themselves of numbers that are off by ``GOAL`` in the median."""
  rng, us = np.random.default_rng(0), np.array(measured)
  drawn = us * np.exp(GOAL / 0.6745 * rng.standard_normal((DRAWS, len(us))))
  return round(float(np.mean([rank(list(zip(us, d, strict=True))) for d in drawn])), 3)


def off(predicted, measured):
  return round(predicted / measured - 1, 3)


def said(errors):
  """Median and worst of errors, by size."""
  sizes = sorted(map(abs, errors))
  return (
    {"count": len(sizes), "median": round(statistics.median(sizes), 3), "worst": sizes[-1]} if sizes else {}
  )


def compared(gpu, rows, graphs, folder):
  """The models of one GPU; ``graphs``: the zip of each."""
  from mirage_onnx.target import TARGETS

  found = []
  for row in rows:
    program = program_of(graphs[row["model"]], row["model"], folder)
    nodes, unknown, floors = predicted_nodes(program, TARGETS[gpu])
    before = fsum(nodes.values())
    measured = row.get("onnxruntime_us") or row["whole_us"]
    line = {"model": row["model"], "target": row.get("target", ""), "measured_us": measured}
    line |= {"predicted_us": round(before, 1), "off": off(before, measured)}
    line |= {"unknown": unknown, "floors": floors}
    if row.get("replaced") and all(r["predicted_us"] for r in row["replaced"]):
      gone, told = gone_nodes(row, program), row.get("predicted") or {}
      after = after_us(row, nodes, gone)
      if row["target"] == "local" and len(gone) < FOUND * told.get("nodes_gone", 0):
        # Which places were replaced cannot be told from the line: what the run itself predicted.
        after, line["of_the_run"] = told["after_us"], True
      line |= {"after_measured_us": row["optimized_us"], "after_predicted_us": round(after, 1)}
      line |= {"after_off": off(after, row["optimized_us"]), "speedup": row["ratio"]}
      line["speedup_predicted"] = round(before / after, 3)
    found.append(line)
  kernels = [
    (r["predicted_us"], r["measured_us"]) for row in rows for r in row.get("replaced", ()) if r["measured_us"]
  ]
  ahead = [r for r in found if "after_off" in r and r["target"] != "local"]
  timed = [r for r in found if "after_off" in r and r["target"] == "local"]
  both = [(r["speedup_predicted"], r["speedup"]) for r in ahead]
  once = list({r["model"]: r for r in found}.values())
  return {
    "models": found,
    "before": {
      **said([r["off"] for r in once]),
      "rank": rank([(r["predicted_us"], r["measured_us"]) for r in once]),
    },
    "after": {
      **said([r["after_off"] for r in ahead]),
      "rank": rank([(r["after_predicted_us"], r["after_measured_us"]) for r in ahead]),
    },
    "after_timed": said([r["after_off"] for r in timed]),
    "speedups": {
      **said([off(*p) for p in both]),
      "rank": rank(both),
      "rank_of_goal": rank_of_goal([m for _, m in both]),
    },
    "regions": {**said([off(*k) for k in kernels]), "rank": rank(kernels)},
  }


def cold(found):
  """What kernels alone take longer than is predicted, and the errors of regions with that of other models.

  ``found``: GPU -> rows of models. None where there are fewer than two.
  """
  by_model = defaultdict(list)
  for gpu, rows in found.items():
    for row in rows:
      pairs = [(r["predicted_us"], r["measured_us"]) for r in row.get("replaced", ()) if r["measured_us"]]
      by_model[gpu, row["model"]] += pairs
  by_model = {key: pairs for key, pairs in by_model.items() if pairs}
  if len(by_model) < 2:
    return None
  more = {key: statistics.median(m - p for p, m in pairs) for key, pairs in by_model.items()}
  errors = []
  for key, pairs in by_model.items():
    others = statistics.median(us for other, us in more.items() if other != key)
    errors += [off(p + others, m) for p, m in pairs]
  return {
    "cold_us": round(statistics.median(m - p for own in by_model.values() for p, m in own), 2),
    "by_model": {f"{gpu} {model}": round(us, 2) for (gpu, model), us in more.items()}, **said(errors),
  }  # fmt: skip


def lines(path):
  return [json.loads(x) for x in path.read_text().splitlines()] if path.is_file() else []


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--graphs", nargs="+", default=[str(ROOT / ".dev" / "whole" / "graphs.zip")])
  parser.add_argument("--out", type=Path, default=RESULTS / "predictions.json")
  o = parser.parse_args()
  known = {}
  for graphs in o.graphs:
    with zipfile.ZipFile(graphs) as z:
      known |= {n.removesuffix(".onnx"): graphs for n in z.namelist() if n.endswith(".onnx")}
  found, every = {}, {}
  with tempfile.TemporaryDirectory() as folder:
    for gpu in ("h100", "h200"):
      rows = [r for r in lines(RESULTS / gpu / "whole.jsonl") if "ratio" in r and r["model"] in known]
      timed = {r["model"] for r in rows}
      alone = (r for r in lines(RESULTS / gpu / "origins.jsonl") if r["model"] in known)
      rows += [r for r in alone if r["model"] not in timed]
      every[gpu], found[gpu] = rows, compared(gpu, rows, known, folder)
      for r in found[gpu]["models"]:
        after = f"  {r['after_measured_us']:9.1f} {r['after_off']:+7.1%}" if "after_off" in r else ""
        print(f"{gpu} {r['model']:32} {r['measured_us']:9.1f} {r['off']:+7.1%}{after}  {r['unknown']}")
      print(gpu, {k: v for k, v in found[gpu].items() if k != "models"})
  found["regions_cold"] = cold(every)
  print("regions_cold", found["regions_cold"])
  o.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
  main()
