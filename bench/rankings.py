"""What the one formula would have taken of the numbers with wgmma that an H100 timed, beside the fastest.

    python bench/rankings.py [RECORD.json ...]
    python bench/rankings.py --programs

Of every case of the records (bench/results/h100: wgmma_*.json, many_queries*.json) all numbers with wgmma
that were timed are ranked by the formula of thread graphs (``cost/kernel_time.py``): how much longer the
first took than the fastest, and by what factor measured times are off (geometric mean, root mean square).
Beside it stands what the rankings of their own took that the search had until 2026-11-26
(bench/results/h100/rankings.json). The records are of kernels by themselves, so they take about 3 us longer
than what the formula means: in a row of a CUDA graph.

``--programs``: of the programs that the search puts first (bench/replay/programs.jsonl), timed kernel by
kernel (kernel_times.json), what its own costs (``cost/tiled.py``, ``cost/model.py``) and the formula take.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt
from pathlib import Path

from replay_record import FOLDER as REPLAY
from replay_record import read_group
from warpgroup_attention import CASES as CHAINS
from warpgroup_products import CASES as PRODUCTS
from warpgroup_products import text

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.cost.model import features, kernel_cost
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.superopt.tiled_numbers import tiled_cost
from mirage_onnx.target import H100

FOLDER = Path(__file__).resolve().parent / "results" / "h100"
OWN = FOLDER / "rankings.json"


def measured(paths):
  """name -> (numbers, us, bytes from memory, blocks) of records of ``kernel_times.py``."""
  found = {}
  for path in paths:
    record = json.loads(path.read_text())
    at = {c: i for i, c in enumerate(record["columns"])}
    columns = [at[c] for c in ("params", "us", "dram_bytes", "blocks")]
    found = {k[at["kernel"]]: tuple(k[c] for c in columns) for k in record["kernels"]} | found
  return found


def records():
  """The records with times of many numbers."""
  return [p for names in ("wgmma_*.json", "many_queries*.json") for p in sorted(FOLDER.glob(names))]


@cache
def graph_of(name):
  """The µGraph of a case and its extents."""
  if (chain := CHAINS.get(name)) is not None:
    # The records are of kernels that read all masks.
    return parse_ugraph(chain.text.replace(" sharp", "")), chain.extents
  rows, depth, columns, kind, dtype = PRODUCTS[name]
  return parse_ugraph(text(kind, dtype)), {"a0": rows, "a1": depth, "a2": columns}


def timed(record):
  """(name, numbers, us) of a case's numbers with wgmma."""
  for name, case in json.loads(record.read_text())["cases"].items():
    for numbers, us in case["us"].items():
      if "wgmma" in numbers:
        yield name, numbers, us[0]


@dataclass(frozen=True)
class Ranked:
  """A case: measured us and what the formula says, by numbers."""

  measured: dict[str, float]
  said: dict[str, float]

  @classmethod
  def of(cls, name, measured):
    graph, sizes = graph_of(name)
    said = {}
    for numbers in measured:
      params = KernelParams.from_text(numbers)
      extents = ugraph_extents(graph, (params,), sizes)
      said[numbers] = lowered_us(graph, graph.kernels[0], extents, params, H100)
    return cls(measured, said)

  def first(self):
    """The numbers that the formula would take, and how much longer they took than the fastest."""
    best = min(self.measured, key=lambda p: (self.said[p], p))
    return best, self.measured[best] / min(self.measured.values())


def ranked(record):
  """The cases of a record."""
  found = {}
  for name, numbers, us in timed(record):
    found.setdefault(name, {})[numbers] = us
  return {name: Ranked.of(name, measured) for name, measured in found.items()}


def summary(cases):
  """(first over fastest, measured over said, and how far that is off), of several cases."""
  firsts = [log(c.first()[1]) for c in cases]
  off = [log(us / c.said[p]) for c in cases for p, us in c.measured.items()]
  mean, spread = sum(off) / len(off), sqrt(sum(x * x for x in off) / len(off))
  return exp(sum(firsts) / len(firsts)), exp(mean), exp(spread)


def programs():
  """Name -> (us, by the search's own costs, by the formula) of its programs that were timed."""
  timed_us, found = measured([FOLDER / "kernel_times.json"]), {}
  for entry in read_group(REPLAY / "programs.jsonl"):
    times = [timed_us.get(f"{entry.name}.k{n}") for n in range(len(entry.params))]
    if not all(times):
      continue
    graph, params = parse_ugraph(entry.graph), [KernelParams.from_text(p) for p in entry.params]
    extents, tensors = ugraph_extents(graph, params, entry.extents), {t.name: t for t in graph.tensors}
    own = one = 0.0
    for kernel, numbers in zip(graph.kernels, params, strict=True):
      one += lowered_us(graph, kernel, extents, numbers, H100)
      tiled = lay_out(kernel, tensors).family is Family.TILED
      cost = tiled_cost(kernel, tensors, extents, numbers, H100) if tiled else None
      own += (cost or kernel_cost(features(kernel, tensors, extents), numbers, H100)).time_us
    found.setdefault(entry.name.rpartition(".")[0], []).append((sum(us for _, us, *_ in times), own, one))
  return {name: rows for name, rows in found.items() if len(rows) > 1}


def firsts_of_programs():
  """How much longer the first took than the fastest, by the search's own costs and by the formula."""
  every = programs()
  for name, by in (("the search's own costs", 1), ("the one formula", 2)):
    longer = [min(rows, key=lambda r: r[by])[0] / min(rows)[0] for rows in every.values()]
    mean = exp(sum(map(log, longer)) / len(longer))
    print(f"{len(longer)} programs by {name}: {mean:.3f}, worst {max(longer):.2f}")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("records", nargs="*", type=Path)
  parser.add_argument("--programs", action="store_true")
  options = parser.parse_args()
  if options.programs:
    firsts_of_programs()
    return 0
  own = json.loads(OWN.read_text())["first_over_fastest"]
  for path in options.records or records():
    found, before = ranked(path), own.get(path.stem, {})
    first, mean, off = summary(found.values())
    print(f"{path.stem}: {len(found)} cases; first over fastest {first:.3f}", end="")
    if before:
      print(f" (own rankings {exp(sum(map(log, before.values())) / len(before)):.3f})", end="")
    print(f", measured over said {mean:.3f}, off {off:.3f}")
    for name, case in found.items():
      params, longer = case.first()
      print(f"  {longer:.3f} ({before.get(name, 1):.3f}) {name}: {params.removesuffix(' instruction=wgmma')}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
